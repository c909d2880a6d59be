"""Reads how each run and sweep of a store is doing, many at a time. A line says what can't be read.

Runs whose drivers seem to be at work are looked at again, all together: a driver that is there says something
new within a few seconds.
"""

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Any

from checkpointing.errors import Corrupt, NothingToResume
from checkpointing.generations.repository import Repository, existing_run
from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Missing, Store, Unavailable
from jobs.listing.names import Found
from jobs.run_progress.status_file import read_status_file
from jobs.runs.listening import LISTENED_S, Report
from jobs.runs.status import may_report_again, reported_status, state_text
from jobs.sweeps.results import Results
from reporting.results.redaction import without_credentials

_NUM_READERS = 16
_NUM_LOOKS = 2
_UNREADABLE = (Corrupt, NothingToResume, Missing, ValueError, TypeError, OverflowError, RecursionError)
# A sweep of 100,000 runs names each in its description.
_MOST_BYTES = 20_000_000
_MOST_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """A run in the list. ``age_s``: since the newest word of it, a status or a checkpoint. ``group``: where
    its newest attempt runs or ran, if its driver has said so.
    """

    run: str
    state: str
    step: int | None = None
    num_steps: int | None = None
    age_s: float | None = None
    newest_generation: str | None = None
    newest_durable_age_s: float | None = None
    group: str | None = None
    is_readable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepLine:
    """A sweep in the list. ``age_s``: since the newest result, as far as its description tells."""

    sweep: str
    state: str
    num_measured: int
    num_runs: int | None = None
    age_s: float | None = None
    is_readable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Both lists are in order of age, the newest first, then by name."""

    runs: tuple[RunLine, ...]
    sweeps: tuple[SweepLine, ...]
    is_cut: bool

    def as_data(self, store: str) -> dict[str, Any]:
        return {"schema_version": 1, "store": store, **asdict(self)}


@dataclass(slots=True, kw_only=True)
class _Look:
    """A run whose log could be read. ``newer`` is None while its driver has said nothing new."""

    repository: Repository
    report: Report
    newer: Report | None = None

    @property
    def is_open(self) -> bool:
        return self.newer is None and may_report_again(self.report, self.repository.view)


def read(
    store: Store, found: Found, clock: Callable[[], float], *, pause: Callable[[float], None] = time.sleep
) -> Listed:
    with ThreadPoolExecutor(_NUM_READERS) as pool:
        looks = dict(
            zip(sorted(found.runs), pool.map(partial(_look, store), sorted(found.runs)), strict=True)
        )
        _listen(pool, [look for look in looks.values() if isinstance(look, _Look)], pause)
        runs = [*pool.map(lambda run: _run(run, looks[run], clock), looks)]
        sweeps = [
            *pool.map(lambda name: _sweep(store, name, found.sweeps[name], clock), sorted(found.sweeps))
        ]
    return Listed(
        runs=tuple(sorted(runs, key=lambda line: _order(line.age_s, line.run))),
        sweeps=tuple(sorted(sweeps, key=lambda line: _order(line.age_s, line.sweep))),
        is_cut=found.is_cut,
    )


def _order(age_s: float | None, name: str) -> tuple[float, str]:
    return float("inf") if age_s is None else age_s, name


def _look(store: Store, run: str) -> _Look | Exception:
    try:
        return _Look(report=read_status_file(store, run), repository=existing_run(store, run))
    except Unavailable:
        raise
    except _UNREADABLE as error:
        return error


def _listen(pool: ThreadPoolExecutor, looks: Sequence[_Look], pause: Callable[[float], None]) -> None:
    """Gives all drivers the same ``LISTENED_S`` to say something new."""
    for _ in range(_NUM_LOOKS):
        if not (waiting := [look for look in looks if look.is_open]):
            return
        pause(LISTENED_S / _NUM_LOOKS)
        list(pool.map(_look_again, waiting))


def _look_again(look: _Look) -> None:
    report = read_status_file(look.repository.store, look.repository.run)
    look.newer = report if report and report != look.report else None


def _run(run: str, look: _Look | Exception, clock: Callable[[], float]) -> RunLine:
    try:
        if isinstance(look, Exception):
            raise look
        told = reported_status(look.repository, look.report, clock=clock, hears=lambda _: look.newer)
    except Unavailable:
        raise
    except _UNREADABLE as error:
        return RunLine(run=run, state=f"can't be read: {_first_line(error)}", is_readable=False)
    ages = [age for age in (told["told_age_s"], told["newest_durable_age_s"]) if age is not None]
    return RunLine(
        run=run,
        state=state_text(told)[:_MOST_CHARS],
        step=told["step"],
        num_steps=told["num_steps"],
        age_s=min(ages, default=None),
        newest_generation=told["newest_generation"],
        newest_durable_age_s=told["newest_durable_age_s"],
        group=told["group"],
    )


def _sweep(store: Store, sweep: str, measured: Collection[str], clock: Callable[[], float]) -> SweepLine:
    planned = _planned(store, sweep)
    if planned is None:
        state = "its sweep.json can't be read"
        return SweepLine(sweep=sweep, state=state, num_measured=len(measured), is_readable=False)
    left = sum(1 for run in planned if run not in measured)
    newest = next((run for run in reversed(planned) if run in measured), None)
    return SweepLine(
        sweep=sweep,
        state="unfinished" if left else "done",
        num_measured=len(planned) - left,
        num_runs=len(planned),
        age_s=_age_s(store, sweep, newest, clock) if newest else None,
    )


def _planned(store: Store, sweep: str) -> list[str] | None:
    """The names of the sweep's runs, in the order in which they are measured."""
    with suppress(Missing, TooLarge, ValueError, RecursionError):
        told = json.loads(get_bounded(store, f"sweeps/{sweep}/sweep.json", most_bytes=_MOST_BYTES))
        runs = told.get("runs") if isinstance(told, Mapping) else None
        return [run for run in runs if isinstance(run, str)] if isinstance(runs, list) else None
    return None


def _age_s(store: Store, sweep: str, run: str, clock: Callable[[], float]) -> float | None:
    with suppress(Missing, ValueError, OverflowError):
        if store.size(f"sweeps/{sweep}/runs/{run}/result.json") > _MOST_BYTES:
            return None
        finished_at = Results(store, sweep).finished_at(run)
        moment = datetime.fromisoformat(finished_at or "")
        return max(0.0, clock() - moment.timestamp()) if moment.tzinfo else None
    return None


def _first_line(error: Exception) -> str:
    return without_credentials(str(error) or type(error).__name__).splitlines()[0][:_MOST_CHARS]
