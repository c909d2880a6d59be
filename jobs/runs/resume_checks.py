"""Checks whether a start asks for the same run as the one in the store."""

import json

from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import of_this_life
from checkpointing.stores.contract import Store
from jobs.commandline.usage_error import SpecError
from jobs.spec_schema.compatibility import refusals
from jobs.spec_schema.model import Model
from jobs.spec_schema.run_spec import RunSpec
from jobs.spec_schema.stored_spec import Described, stored_spec


def check_unchanged(repository: Repository, wanted: Described) -> bool:
    """Raises ``SpecError`` with one line for each change that would make it another run.

    A run that has saved nothing may still change. Then the result is False, and the run must not resume from
    generations on nodes' disks. If the stored spec cannot be read, the start is allowed.
    """
    if repository.view.term == 0 or (stored := stored_spec(repository.store, repository.run)) is None:
        return True
    place = f"{repository.store.url}/runs/{repository.run}"
    lines = refusals(stored, wanted, _usual(), place=place)
    if lines and of_this_life(repository.view):
        raise SpecError(lines)
    return not lines


def samples_before(repository: Repository) -> int | None:
    """How many samples made an epoch when the run was last started; None if that cannot be read."""
    stored = stored_spec(repository.store, repository.run) or {}
    found: int | None = stored.get("data", {}).get("samples")
    return found


def model_of_last_start(model: Model, store: Store, run: str) -> str:
    """The setting that gives a spec the shape that its folder had when the run was last started.

    The folder of ``model`` is gone. Raises ``SpecError`` if the run was not started from that folder.
    """
    stored = (stored_spec(store, run) or {}).get("model")
    is_known = isinstance(stored, dict) and stored.get("path") == model.path and stored.get("shape")
    if not is_known:
        raise SpecError([f"model: {model.missing}"])
    return f"model={json.dumps(stored)}"


def without_data(described: Described) -> Described:
    """The parts of a described run that can be compared without reading its data."""
    known = {key: value for key, value in described.items() if key != "data"}
    optimizer = {key: value for key, value in described["optimizer"].items() if key != "decay_steps"}
    return {**known, "optimizer": optimizer}


def _usual() -> Described:
    least = RunSpec.model_validate({"name": "any", "model": "llama-tiny", "steps": 1})
    return least.model_dump(mode="json")
