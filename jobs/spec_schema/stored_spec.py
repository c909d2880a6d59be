"""Reads and writes the spec stored with a run: the one of the run's last start."""

import json
from collections.abc import Mapping
from typing import Any

from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Missing, Store
from jobs.training.ranks.typed_json import decode
from jobs.training.task.presets import PRESETS, ModelConfig, ModelShape, config_named

_MOST_BYTES = 2**20

Described = Mapping[str, Any]
"""A spec as stored with a run: JSON, nested as in its file."""


def store_spec(store: Store, run: str, described: Described) -> None:
    store.put(_name(run), json.dumps(described, indent=1).encode())


def stored_spec(store: Store, run: str) -> Described | None:
    """The stored spec, or None if it is missing or can't be read as one."""
    try:
        found = json.loads(get_bounded(store, _name(run), most_bytes=_MOST_BYTES))
    except (Missing, TooLarge, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def stored_model(described: Described) -> ModelConfig | None:
    """The model of a stored spec; None if it is a preset of another version, or can't be read."""
    match described.get("model"):
        case str(name):
            return PRESETS.get(name)
        case {"name": str(name), "shape": dict(shape)}:
            try:
                return config_named(decode(ModelShape, json.dumps(shape).encode()), name)
            except ValueError:
                return None
        case _:
            return None


def _name(run: str) -> str:
    return f"runs/{run}/spec.json"
