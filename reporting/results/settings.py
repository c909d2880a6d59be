"""The settings that exchange memory for time: their columns, and what a reader is told of them.

A row without such a column, from before it was there or from somebody else, has the first word of each and no
number.
"""

import re
from typing import Any

_KERNELS = ("flash", "efficient", "cudnn", "math", "flex")

# What is said of each word, by column. Of the usual word, which comes first, nothing is said.
SETTINGS: dict[str, dict[str, str]] = {
    "activation_checkpointing": {
        "none": "",
        "selective": "selective checkpointing",
        "full": "full checkpointing",
    },
    "cross_entropy": {"whole": "", "chunked": "chunked loss"},
    "compile": {"none": "", "block": "compiled blocks"},
    "attention": {"auto": "", **{kernel: f"{kernel} attention" for kernel in _KERNELS}},
    "fp8": {"none": "", "tensorwise": "tensorwise fp8", "rowwise": "rowwise fp8"},
    "offload": {"none": "", "optimizer": "offloaded optimizer"},
}
# What is said of a number, by column. Usually there is none.
NUMBERS: dict[str, str] = {"shard_within": "sharded within {}"}
# What is said where a switch is on, by column.
SWITCHES: dict[str, str] = {"deterministic": "deterministic"}
NAMES = (*SETTINGS, *NUMBERS, *SWITCHES)


def settings_of(recipe_or_row: object) -> dict[str, Any]:
    """The settings by name, of anything that has an attribute for each."""
    return {name: getattr(recipe_or_row, name) for name in NAMES}


def settings_text(recipe_or_row: object) -> str:
    """The settings that are not the usual ones, as ``full checkpointing, chunked loss``; often empty."""
    return ", ".join(filter(None, (_said(*setting) for setting in settings_of(recipe_or_row).items())))


def _said(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name in SWITCHES:
        return SWITCHES[name] if value else ""
    if name in NUMBERS:
        return NUMBERS[name].format(value)
    if value in SETTINGS[name]:
        return SETTINGS[name][value]
    # Somebody else's word, which ends up in pages, charts and terminals.
    return f"{name} {re.sub(r'[^A-Za-z0-9._-]', '_', value[:20])}"
