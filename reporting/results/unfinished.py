"""Tells which sweeps of a store have fewer results than their ``sweep.json`` names runs."""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Missing, Store, is_name
from reporting.results.rows import Row
from reporting.results.skipped import Skipped

_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """A sweep of whose ``num_runs`` runs ``num_missing`` have no result, not even an unreadable one."""

    sweep: str
    num_runs: int
    num_missing: int


def unfinished(store: Store, rows: Sequence[Row], skipped: Sequence[Skipped]) -> tuple[Unfinished, ...]:
    """Looks at the sweeps of ``rows``. A search for the best setting leaves out runs on purpose."""
    there = {*(row.source for row in rows), *(one.name for one in skipped)}
    searches = {row.sweep for row in rows if row.rung}
    sweeps = sorted({row.sweep for row in rows if row.sweep and not row.imported} - searches)
    return tuple(_unfinished(store, sweeps, there))


def _unfinished(store: Store, sweeps: Sequence[str], there: Collection[str]) -> Iterator[Unfinished]:
    for sweep in sweeps:
        names = _names(store, sweep)
        num_missing = sum(f"sweeps/{sweep}/runs/{name}/result.json" not in there for name in names)
        if num_missing:
            yield Unfinished(sweep=sweep, num_runs=len(names), num_missing=num_missing)


def _names(store: Store, sweep: str) -> set[str]:
    """The runs that the sweep wanted; none if its description is missing or is no such one."""
    # A result written by another tool may hold a sweep name that is no valid name here.
    with suppress(Missing, TooLarge, ValueError, KeyError, TypeError, RecursionError):
        if is_name(sweep):
            data = get_bounded(store, f"sweeps/{sweep}/sweep.json", most_bytes=_MOST_BYTES)
            names = json.loads(data)["runs"]
            return {name for name in names if isinstance(name, str)}
    return set()
