"""Writes a choice down as a spec, with a line beside what its reader will want to change. Pure."""

import json
import re
from pathlib import Path

from jobs.first_spec.choice import Chosen, Compared

_NUM_STEPS = 40
_MOST_CHARS = 64
_TAKEN = ("yes", "off", "null", "true", "false")


def run_text(chosen: Chosen, name: str) -> str:
    recipe = chosen.recipe
    sequences = recipe.sequences_per_step
    lines = [
        f"# A first training for {_where(chosen.group.name)}, written by `longhaul init`.",
        "# docs/train.md explains each key. Train it with: longhaul train FILE",
        f"name: {_quoted(name)}",
        f"model: {recipe.model.name:<24} # a preset, or {{path: FOLDER}} with a config.json",
        f"strategy: {recipe.strategy:<21} # ddp, fsdp, zero1, zero2 or zero3",
        f"world_size: {recipe.world_size:<19} # the number of devices",
        f"group: {_quoted(chosen.group.name)}",
        f"precision: {recipe.precision}",
        f"activation_checkpointing: {recipe.activation_checkpointing:<5} # full computes more and keeps less",
        f"seq_len: {recipe.seq_len:<22} # tokens per sample",
        f"micro_batch: {recipe.micro_batch:<18} # samples per device and pass",
        "grad_accum: 1",
        f"steps: {_NUM_STEPS:<24} # set it higher and run it again: it goes on",
        "# Random tokens. Your own: longhaul pack INPUT --out FOLDER, then {kind: tokens, path: FOLDER}",
        f"data: {{kind: synthetic, samples: {max(512, 8 * sequences)}}}",
        f"eval: {{every_steps: {_NUM_STEPS // 2}, samples: {2 * sequences}}}",
        "checkpoint:",
        f"  every_steps: {_NUM_STEPS // 4:<16} # or every_s: 600",
        "  retention: {last: 2, epochs: false, best: 1}",
    ]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def sweep_text(compared: Compared, name: str) -> str:
    recipe = compared.recipe
    groups = ", ".join(_quoted(group.name) for group in compared.groups)
    lines = [
        f"# A first comparison for {_where(groups)}, written by `longhaul init`.",
        "# docs/sweep.md explains each key. Measure it with: longhaul sweep FILE",
        f"name: {_quoted(name)}",
        f"groups: [{groups}]",
        f"models: [{recipe.model.name}]",
        "axes:",
        f"  strategy: [{', '.join(compared.strategies)}]",
        f"  world_size: [{', '.join(map(str, compared.world_sizes))}]",
        f"  seq_len: [{recipe.seq_len}]",
        f"  micro_batch: [{recipe.micro_batch}]",
        f"  precision: [{recipe.precision}]",
        f"  activation_checkpointing: [{recipe.activation_checkpointing}]",
        "measure: {steps: 20, warmup: 5}",
        "repeats: 2                      # 5 and more show smaller differences",
    ]
    return "".join(f"{line}\n" for line in lines)


def name_of(file: Path, kind: str) -> str:
    """The name of what a file describes: that of the file, as far as it is a plain name."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem).strip("-._")[:_MOST_CHARS]
    return f"first-{kind}" if plain in ("", "run", "sweep") else plain


def _quoted(name: str) -> str:
    """A name that YAML could take for a number or a truth value stands in quotes."""
    is_word = re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{2,}", name)
    return name if is_word and name.lower() not in _TAKEN else json.dumps(name)


def _where(groups: str) -> str:
    return "this machine" if groups == "local" else f"group {groups}"
