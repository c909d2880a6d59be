"""Takes a run's lease: rank 0 asks the store who else is at work on the run, and tells the other ranks."""

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from checkpointing.errors import Corrupt, NothingToResume
from checkpointing.generations.choice import find
from checkpointing.generations.repository import Repository
from checkpointing.stores.contract import StoreError
from jobs.commandline.owner import owner_name, state_of
from jobs.commandline.usage_error import Occupied, SpecError
from jobs.durable.errors import DurableError
from jobs.run_progress.run_state import GOING_ON
from jobs.run_progress.status_file import read_status_file
from jobs.runs.driver_presence import DriverPresence
from jobs.spec_schema.own_loop import OwnLoop
from jobs.spec_schema.stored_spec import store_spec, stored_spec
from jobs.training.ranks.gathering import from_rank_0

# A launcher that starts ranks anew may not have ended the last one of the old ones yet.
OWNER_ENDS_S = 10.0
_LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """What all ranks know of their attempt; see ``Task``."""

    term: int
    attempt: str
    lineage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Word:
    lease: Lease | None = None
    problem: str = ""


def share_lease(take: Callable[[], Lease], rank: int) -> Lease:
    """Rank 0's lease on all ranks. Collective. If rank 0 got none, all ranks raise its problem."""
    word = _Word()
    if rank == 0:
        try:
            word = _Word(lease=take())
        except (StoreError, SpecError, NothingToResume, Corrupt) as error:
            word = _Word(problem=str(error))
    word = from_rank_0(word, _Word)
    if word.lease is None:
        raise DurableError(word.problem)
    return word.lease


def take_lease(
    spec: OwnLoop, repository: Repository, presence: DriverPresence, *, fresh: bool, resume: str
) -> Lease:
    """Fences every earlier attempt; raises ``Occupied`` if another process is at work on the run."""
    store, run = repository.store, repository.run
    store.probe()
    view = repository.refresh()
    _refuse_other_kinds(repository)
    if resume != "latest" and resume not in {one.name for one in repository.unnamed(resume)}:
        find(view, resume, spec.checkpoint.retention)
    if view.term:
        _refuse_others(repository, presence)
    term = repository.take_over(owner_name(os.getpid()), fresh=fresh, what=resume)
    store_spec(store, run, spec.described())
    return Lease(term=term, attempt=secrets.token_hex(4), lineage=repository.lineage())


def _refuse_other_kinds(repository: Repository) -> None:
    stored = stored_spec(repository.store, repository.run) if repository.view.term else None
    if stored is not None and not stored.get("own_loop"):
        raise SpecError([f"{repository.run}: is a run of `longhaul train`; give this one another name"])


def _refuse_others(repository: Repository, presence: DriverPresence) -> None:
    owner = _settled_owner(repository)
    if owner == "gone":
        return
    try:
        if owner == "alive":
            raise Occupied([])
        with presence:
            presence.refuse()
    except Occupied:
        run, url = repository.run, repository.store.url
        raise Occupied(
            [
                f"{run}: another process is at work on it ({repository.view.owner.partition(' ')[0]}); stop "
                f"it first (longhaul stop {run} --store {url}), or give this run another name"
            ]
        ) from None


def _settled_owner(repository: Repository) -> str:
    """The state of the last owner; one that is about to end gets a moment to do so."""
    end_s = time.monotonic() + OWNER_ENDS_S
    while (state := state_of(repository.view.owner)) == "alive" and not _has_ended(repository):
        if time.monotonic() > end_s:
            return state
        time.sleep(_LOOK_EVERY_S)
        repository.refresh()
    return "gone" if state == "alive" else state


def _has_ended(repository: Repository) -> bool:
    """Whether the last attempt is over, though its process lives."""
    view = repository.view
    if view.finished_step is not None or view.stopped_step is not None:
        return True
    told = read_status_file(repository.store, repository.run)
    return told.get("attempt") == view.term and told.get("stage") not in GOING_ON
