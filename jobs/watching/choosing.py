"""Which run or sweep is meant: the one of that name, or the one of the store that told something last."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from checkpointing.errors import NothingToResume
from checkpointing.generations.repository import Repository
from checkpointing.stores.contract import Missing, Store, StoreError
from jobs.run_progress.status_file import read_status_file
from jobs.run_progress.sweep_progress import read_sweep_progress
from jobs.watching.bounded_store import BoundedStore

_MOST_CANDIDATES = 200
_MOST_NAMES = 50_000
_TOLD = re.compile(r"(runs|sweeps)/([^/]+)/(status|progress|sweep)\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    kind: Literal["run", "sweep"]
    name: str


def choose(store: Store, name: str | None) -> Watched:
    """Raises ``NothingToResume`` if the store has neither a run nor a sweep of that name, or none at all.

    A run comes before a sweep of the same name.
    """
    bounded = BoundedStore(store)
    if name is None:
        return _newest(bounded)
    if Repository(bounded, name).refresh().term or _is_there(bounded, f"runs/{name}/status.json"):
        return Watched(kind="run", name=name)
    if _is_there(bounded, f"sweeps/{name}/sweep.json") or read_sweep_progress(bounded, name):
        return Watched(kind="sweep", name=name)
    raise NothingToResume(f"{store.url}: there is no run and no sweep {name!r}")


def _newest(store: BoundedStore) -> Watched:
    told = [(_told_s(store, one), one.kind, one.name) for one in islice(_candidates(store), _MOST_CANDIDATES)]
    if not told:
        raise NothingToResume(f"{store.url}: no run or sweep has told anything there; give the name of one")
    _, kind, name = max(told)
    return Watched(kind=kind, name=name)


def _candidates(store: Store) -> Iterator[Watched]:
    for folder in ("runs", "sweeps"):
        for name in islice(store.list(folder), _MOST_NAMES):
            if found := _TOLD.fullmatch(name):
                yield Watched(kind="run" if folder == "runs" else "sweep", name=found[2])


def _told_s(store: Store, one: Watched) -> float:
    try:
        read = read_status_file if one.kind == "run" else read_sweep_progress
        return float(read(store, one.name).get("told_s", 0.0))
    except StoreError:
        # One object that can't be read hides no other.
        return 0.0


def _is_there(store: Store, name: str) -> bool:
    try:
        return store.size(name) >= 0
    except Missing:
        return False
