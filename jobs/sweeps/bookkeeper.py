"""Turns events of running jobs into rows in the store and lines for the waiting user."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import assert_never

from checkpointing.stores.contract import StoreError
from jobs.execution.messages import Event, Finished, Heartbeat, Started
from jobs.run_progress.sweep_progress import SweepProgress
from jobs.spec_schema.sweep_spec import SweepSpec
from jobs.sweeps.grid import Run
from jobs.sweeps.live_view import Display, expected_s
from jobs.sweeps.plan import Plan
from jobs.sweeps.results import Results, StoredResults
from jobs.sweeps.rows.result_record import RunAttempt, record_of, trace_name, without_trace
from jobs.sweeps.search.answers import Answer, answer_to, is_own_search, resumed
from jobs.sweeps.work_queues import Start
from jobs.training.task.measurement import Failure, Measurement, Profile
from reporting.results.records import RunRecord


class Bookkeeper:
    """Tracks which runs are wanted and which have a row. Call ``listen`` from one thread only."""

    def __init__(
        self,
        spec: SweepSpec,
        results: Results,
        found: StoredResults,
        runs: Iterable[Run],
        plans: dict[str, Plan],
    ) -> None:
        self._spec = spec
        self._results = results
        self._found = found
        self._runs = {run.run_id: run for run in runs}
        self._plans = plans
        self._started: dict[str, str] = {}
        self._records = {
            run.run_id: found.records[run.name] for run in self._runs.values() if run.name in found.records
        }

    @property
    def unreadable(self) -> list[str]:
        """One line per ``result.json`` that exists but can't be read as this run's result."""
        names = [run.name for run in self._runs.values() if run.name in self._found.unreadable]
        return [f"{name}: result.json is {self._found.unreadable[name]}; measured again" for name in names]

    @property
    def records(self) -> list[RunRecord]:
        """The rows found so far, at most one per run, in the order of the sweep."""
        return [self._records[run_id] for run_id in self._runs if run_id in self._records]

    @property
    def problems(self) -> list[str]:
        """One line per distinct error, with the number of runs that failed with it."""
        errors = [(record.status, record.error.reason) for record in self.records if record.error]
        return [f"{errors.count(found)} {found[0]}: {found[1]}" for found in dict.fromkeys(errors)]

    @property
    def is_all_ok(self) -> bool:
        return len(self._records) == len(self._runs) and all(
            record.status == "ok" for record in self._records.values()
        )

    def missing(self, *, retry_failed: bool) -> list[Run]:
        return [run for run in self._runs.values() if self.is_missing(run, retry_failed=retry_failed)]

    def record_of(self, run: Run) -> RunRecord | None:
        return self._records.get(run.run_id)

    def is_missing(self, run: Run, *, retry_failed: bool) -> bool:
        """Whether the run has no row, or one of a search that may go on, or one that is to be tried again."""
        record = self._records.get(run.run_id)
        if record is None or (retry_failed and record.status != "ok"):
            return True
        search = self._plans[run.cell.cell_id].search
        return search is not None and is_own_search(record) and resumed(search, record).goes_on

    def start_of(self, run: Run, *, retry_failed: bool) -> Start:
        """What to do in a run; None if it is known that no micro-batch fits."""
        plan = self._plans[run.cell.cell_id]
        if plan.search is None:
            return plan.recipe
        answer = self._answer(run)
        if answer is not None and answer.micro_batch is not None:
            return plan.recipe.in_micro_batches_of(answer.micro_batch)
        if retry_failed:
            return plan.search
        return None if answer is not None else resumed(plan.search, self._records.get(run.run_id))

    def nothing_fits(self, run: Run, display: Display) -> None:
        """Stores the row of a run that is not started, since an earlier one has found that nothing fits."""
        answer = self._answer(run)
        assert answer is not None
        reason = f"no micro-batch fits, as {answer.found_by} has found; --retry-failed looks again"
        self._finish(run, Failure(status="oom", reason=reason), display)

    def progress(self, runs: Sequence[Run]) -> SweepProgress:
        """What tells the store how far ``runs`` are, for those who look there."""
        return self._results.progress(num_runs=len(runs), expected_s=expected_s(runs, self._plans))

    def refuse(self, run: Run, failure: Failure, display: Display) -> None:
        """Stores a row for a run that is never started."""
        self._finish(run, failure, display)

    def listen(self, event: Event, display: Display) -> None:
        run = self._runs[event.run_id]
        match event:
            case Started():
                self._started[event.run_id] = _now()
                display.started(run)
            case Heartbeat():
                display.beat(run, event)
            case Finished():
                self._finish(run, event.outcome, display)
            case unknown:
                assert_never(unknown)

    def _answer(self, run: Run) -> Answer | None:
        """What is known of the cell's question, from all rows of the sweep, this start's included."""
        if not run.cell.question:
            return None
        stored = (record for record in self._found.records.values() if record.run_id not in self._records)
        return answer_to(run.cell.question, [*stored, *self._records.values()])

    def _finish(self, run: Run, outcome: Measurement | Failure, display: Display) -> None:
        now = _now()
        attempt = RunAttempt(
            number=self._attempt_number(run),
            started_at=self._started.get(run.run_id, now),
            finished_at=now,
        )
        answer = None if outcome.search else self._answer(run)
        record = record_of(self._spec, run, self._plans[run.cell.cell_id], outcome, attempt, answer)
        saved = self._results.save(run, self._with_trace(run, record, outcome))
        is_ours = saved.finished_at == record.finished_at
        if self._spec.logging == "full" and is_ours and isinstance(outcome, Measurement):
            self._results.write_file(run, "steps.jsonl", _step_lines(outcome))
        self._records[run.run_id] = saved
        display.finished(run, saved)

    def _with_trace(self, run: Run, record: RunRecord, outcome: Measurement | Failure) -> RunRecord:
        """Stores the run's trace, if it has one, before the record that names it. Without it the row counts
        all the same.
        """
        match outcome:
            case Measurement(profile=Profile(trace=bytes() as trace)):
                try:
                    self._results.write_file(run, trace_name(trace), trace)
                except StoreError as error:
                    return without_trace(record, str(error))
        return record

    def _attempt_number(self, run: Run) -> int:
        """The number of the next attempt of ``run``.

        An unreadable row counts as the first attempt, so that it is kept beside the new row.
        """
        if run.name in self._found.unreadable:
            return 2
        earlier = self._records.get(run.run_id)
        return earlier.attempt + 1 if earlier else 1


def _step_lines(measured: Measurement) -> bytes:
    steps = zip(measured.step_times_s, measured.losses, strict=True)
    rows = (
        {"step": step, "seconds": seconds, "loss": loss}
        for step, (seconds, loss) in enumerate(steps, start=1)
    )
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
