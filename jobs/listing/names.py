"""Finds out which runs and sweeps a store holds, from the names of its objects alone."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from checkpointing.stores.contract import Store

# A listing costs a request per thousand names.
MOST_NAMES = 2_000_000
MOST_RUNS = 20_000
# What `doctor --security` keeps in a bucket where deleting is denied: no run.
_TRIAL = "longhaul-security-trial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """``runs`` have a log. ``sweeps`` holds each sweep's measured runs. ``is_cut``: there may be more."""

    runs: set[str] = field(default_factory=set)
    sweeps: dict[str, set[str]] = field(default_factory=dict)
    is_cut: bool


def find(store: Store, *, most_names: int = MOST_NAMES, most_runs: int = MOST_RUNS) -> Found:
    names = _Counted(store, most_names)
    runs: set[str] = set()
    sweeps: dict[str, set[str]] = {}
    is_cut = False
    for parts in names.below("runs"):
        if len(parts) > 2 and parts[1] == "log" and parts[0] != _TRIAL:
            is_cut |= len(runs) >= most_runs and parts[0] not in runs
            if len(runs) < most_runs:
                runs.add(parts[0])
    for parts in names.below("sweeps"):
        is_cut |= len(sweeps) >= most_runs and parts[0] not in sweeps
        if len(sweeps) < most_runs or parts[0] in sweeps:
            measured = sweeps.setdefault(parts[0], set())
            if len(parts) == 4 and (parts[1], parts[3]) == ("runs", "result.json"):
                measured.add(parts[2])
    return Found(runs=runs, sweeps=sweeps, is_cut=is_cut or names.left == 0)


class _Counted:
    """The names below several folders, no more than ``left`` of all."""

    def __init__(self, store: Store, left: int) -> None:
        self._store = store
        self.left = left

    def below(self, folder: str) -> Iterator[list[str]]:
        for name in islice(self._store.list(folder), self.left):
            self.left -= 1
            yield name.split("/")[1:]
