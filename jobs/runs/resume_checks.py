"""Whether a start asks for the same run as the one that its store holds."""

import json
from collections.abc import Mapping
from typing import Any

from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import of_this_life
from checkpointing.stores.contract import Missing, Store
from jobs.commandline.usage_error import SpecError
from jobs.spec_schema.compatibility import Described, refusals
from jobs.spec_schema.run_spec import RunSpec


def check_unchanged(repository: Repository, wanted: Described) -> bool:
    """``SpecError`` with a line for each change. A run that has saved nothing yet may still become any; False
    if it does, and must not go on from what lies on nodes' disks.
    """
    if repository.view.term == 0 or (stored := _stored_spec(repository.store, repository.run)) is None:
        return True
    place = f"{repository.store.url}/runs/{repository.run}"
    lines = refusals(stored, wanted, _usual(), place=place)
    if lines and of_this_life(repository.view):
        raise SpecError(lines)
    return not lines


def samples_before(repository: Repository) -> int | None:
    """How many made an epoch when the run was last started; None where that can't be read."""
    stored = _stored_spec(repository.store, repository.run) or {}
    found: int | None = stored.get("data", {}).get("samples")
    return found


def without_data(described: Described) -> Described:
    """What can be compared without a look at the data."""
    known = {key: value for key, value in described.items() if key != "data"}
    optimizer = {key: value for key, value in described["optimizer"].items() if key != "decay_steps"}
    return {**known, "optimizer": optimizer}


def _stored_spec(store: Store, run: str) -> Mapping[str, Any] | None:
    """None where it can't be read: then nothing speaks against going on."""
    try:
        found = json.loads(store.get(f"runs/{run}/spec.json"))
    except (Missing, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _usual() -> Described:
    least = RunSpec.model_validate({"name": "any", "model": "llama-tiny", "steps": 1})
    return least.model_dump(mode="json")
