"""Reads what the store says of one run, while it goes on."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from checkpointing.generations.repository import Repository, existing_run
from checkpointing.stores.contract import Store
from jobs.run_progress.status_file import read_status_file
from jobs.runs.listening import Ear, Report
from jobs.runs.status import recorded_facts, reported_status
from jobs.watching.bounded_store import BoundedStore
from reporting.analysis.findings import Chart, Findings
from reporting.long_runs.summarising import long_run
from reporting.long_runs.summary import LongRun
from reporting.results.redaction import without_credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecords:
    """What the run's parts say, and pictures of it; ``run`` is None before the first part."""

    run: LongRun | None
    charts: tuple[Chart, ...] = ()

    def as_data(self) -> dict[str, Any] | None:
        return recorded_facts(self.run)


class RunReading:
    """``status`` and ``records`` may be called by one thread each."""

    def __init__(
        self,
        store: Store,
        run: str,
        *,
        with_charts: bool = False,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = BoundedStore(store)
        self._name = run
        self._with_charts = with_charts
        self._clock = clock
        self._ear = Ear(ticks=ticks)
        self._repository: Repository | None = None
        self._drawn = RunRecords(run=None)

    def status(self) -> dict[str, Any]:
        """A handful of requests, however long the log is. Raises ``NothingToResume`` or ``StoreError``."""
        if self._repository is None:
            self._repository = existing_run(self._store, self._name)
        else:
            self._repository.refresh()
        report = read_status_file(self._store, self._name)
        return reported_status(self._repository, report, clock=self._clock, hears=self._hear)

    def _hear(self, report: Report) -> Report | None:
        return report if self._ear.hears(report) else None

    def records(self) -> RunRecords:
        """Reads the parts that are new; drawing takes most of a second. Raises ``StoreError``."""
        found = long_run(self._store, self._name)
        if found != self._drawn.run:
            is_drawn = self._with_charts and found is not None
            self._drawn = RunRecords(run=found, charts=_charts(self._store.url, [found]) if is_drawn else ())
        return self._drawn


def _charts(store: str, runs: Sequence[LongRun | None]) -> tuple[Chart, ...]:
    # The import loads matplotlib, which neither a terminal nor JSON needs.
    from reporting.charts.drawing import draw

    known = tuple(run for run in runs if run is not None)
    return draw(
        Findings(
            name="",
            store=without_credentials(store),
            newest_at=None,
            answer=(),
            rows=(),
            cells=(),
            comparisons=(),
            advice=(),
            pareto=frozenset(),
            checks=(),
            skipped=(),
            runs=known,
        )
    )
