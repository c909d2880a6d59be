"""The spec that stands in the store with a run: what the run was last started with."""

import json
from collections.abc import Mapping
from typing import Any

from checkpointing.stores.contract import Missing, Store

Described = Mapping[str, Any]
"""A spec as it is stored with a run: JSON, nested as in its file."""


def store_spec(store: Store, run: str, described: Described) -> None:
    store.put(_name(run), json.dumps(described, indent=1).encode())


def stored_spec(store: Store, run: str) -> Described | None:
    """None where there is none, or where what is there can't be read as one."""
    try:
        found = json.loads(store.get(_name(run)))
    except (Missing, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _name(run: str) -> str:
    return f"runs/{run}/spec.json"
