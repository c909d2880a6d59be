"""Tells which sweeps of a store have fewer results than their ``sweep.json`` names runs."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Missing, Store, is_name
from reporting.results.records import RecordError, parsed
from reporting.results.rows import Row
from reporting.results.skipped import Skipped

_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """A sweep of whose ``num_runs`` runs ``num_missing`` have no result, not even an unreadable one."""

    sweep: str
    num_runs: int
    num_missing: int


def unfinished(
    store: Store, rows: Sequence[Row], skipped: Sequence[Skipped]
) -> tuple[tuple[Unfinished, ...], tuple[Skipped, ...]]:
    """Looks at the sweeps of ``rows``. A search for the best setting leaves out runs on purpose. Descriptions
    that can't be read come second: nobody knows what their sweeps lack.
    """
    there = {*(row.source for row in rows), *(one.name for one in skipped)}
    searches = {row.sweep for row in rows if row.rung}
    sweeps = sorted({row.sweep for row in rows if row.sweep and not row.imported} - searches)
    found: list[Unfinished] = []
    unread: list[Skipped] = []
    for sweep in sweeps:
        try:
            found.extend(_unfinished(sweep, _runs(store, sweep), there))
        except RecordError as error:
            unread.append(Skipped(name=f"sweeps/{sweep}/sweep.json", reason=str(error)))
    return tuple(found), tuple(unread)


def _unfinished(sweep: str, runs: Collection[str], there: Collection[str]) -> Iterator[Unfinished]:
    num_missing = sum(f"sweeps/{sweep}/runs/{run}/result.json" not in there for run in runs)
    if num_missing:
        yield Unfinished(sweep=sweep, num_runs=len(runs), num_missing=num_missing)


def _runs(store: Store, sweep: str) -> set[str]:
    """The runs that the sweep wanted; none if nothing describes it. Raises ``RecordError``."""
    # A result written by another tool may hold a sweep name that is no valid name here.
    if not is_name(sweep):
        return set()
    try:
        found = parsed(get_bounded(store, f"sweeps/{sweep}/sweep.json", most_bytes=_MOST_BYTES))
    except TooLarge as error:
        raise RecordError(str(error)) from None
    except Missing:
        return set()
    runs = found.get("runs") if isinstance(found, dict) else None
    if not isinstance(runs, list):
        raise RecordError("it does not say which runs the sweep has")
    return {run for run in runs if isinstance(run, str)}
