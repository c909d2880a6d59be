"""Events of running jobs become rows; what has a row is not measured again."""

import json
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Self

from checkpointing.stores.contract import Buffer, Full
from checkpointing.stores.memory import MemoryStore
from jobs.execution.messages import Finished, Heartbeat, Started
from jobs.spec_schema.sweep_spec import SweepSpec
from jobs.sweeps.bookkeeper import Bookkeeper
from jobs.sweeps.grid import Run, schedule
from jobs.sweeps.results import Results
from jobs.training.task.job import Recipe
from jobs.training.task.measurement import Failure, NoProfile
from jobs.training.task.search.largest_batch import BatchSearch
from reporting.results.records import RunRecord
from tests.unit.builders import CRASH, cells_of, measurement, plans_of, profile, sweep

FOUR_RUNS = sweep(axes={"strategy": ["ddp", "fsdp"]}, repeats=2)


@dataclass
class Heard:
    """A display that remembers what it was told."""

    lines: list[tuple[str, str]] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def note(self, text: str) -> None:
        self.lines.append(("note", text))

    def started(self, run: Run) -> None:
        self.lines.append(("started", run.run_id))

    def beat(self, run: Run, beat: Heartbeat) -> None:
        self.lines.append(("beat", run.run_id))

    def finished(self, run: Run, record: RunRecord) -> None:
        self.lines.append((record.status, run.run_id))


@dataclass
class Desk:
    """A sweep and its store; ``open`` is what each start of the sweep does."""

    spec: SweepSpec = FOUR_RUNS
    store: MemoryStore = field(default_factory=MemoryStore)
    heard: Heard = field(default_factory=Heard)

    @property
    def runs(self) -> list[Run]:
        return schedule(self.spec, cells_of(self.spec))

    def open(self) -> Bookkeeper:
        results = Results(self.store, self.spec.name)
        return Bookkeeper(self.spec, results, results.load(), self.runs, plans_of(self.spec))

    def finish(self, book: Bookkeeper, run: Run, outcome: Any = None) -> None:
        book.listen(Started(run_id=run.run_id), self.heard)
        outcome = outcome or measurement(run.run_id)
        book.listen(Finished(run_id=run.run_id, outcome=outcome), self.heard)

    def row(self, run: Run) -> dict[str, Any]:
        found = json.loads(self.store.get(f"sweeps/trial/runs/{run.name}/result.json"))
        assert isinstance(found, dict)
        return found


def test_at_first_every_run_is_missing_in_the_order_of_the_sweep() -> None:
    desk = Desk()
    assert desk.open().missing(retry_failed=False) == desk.runs


def test_a_finished_run_has_a_row_at_once_and_is_never_missing_again() -> None:
    desk = Desk()
    first, *others = desk.runs
    desk.finish(desk.open(), first)
    assert desk.row(first)["status"] == "ok"
    assert desk.open().missing(retry_failed=False) == others
    assert desk.open().missing(retry_failed=True) == others


def test_a_failed_run_is_missing_only_to_a_retry() -> None:
    desk = Desk()
    first, *others = desk.runs
    desk.finish(desk.open(), first, CRASH)
    assert desk.open().missing(retry_failed=False) == others
    assert desk.open().missing(retry_failed=True) == [first, *others]


def test_a_retry_is_the_next_attempt_and_keeps_the_one_before() -> None:
    desk = Desk()
    run = desk.runs[0]
    for outcome in (CRASH, replace(CRASH, status="hang"), measurement(run.run_id)):
        desk.finish(desk.open(), run, outcome)
    row = desk.row(run)
    kept = sorted(name.rpartition("/")[2] for name in desk.store.list("sweeps") if "/attempts/" in name)
    assert (row["attempt"], row["status"], kept) == (3, "ok", ["001.json", "002.json"])


def test_another_repeat_is_all_that_a_longer_sweep_misses() -> None:
    desk = Desk()
    book = desk.open()
    for run in desk.runs:
        desk.finish(book, run)
    desk.spec = sweep(axes={"strategy": ["ddp", "fsdp"]}, repeats=3)
    assert [run.repeat for run in desk.open().missing(retry_failed=False)] == [3, 3]


def test_a_file_that_is_no_result_is_named_and_measured_again() -> None:
    desk = Desk()
    first, *_ = desk.runs
    desk.store.put(f"sweeps/trial/runs/{first.name}/result.json", b'{"status": "ok"')
    desk.store.put("sweeps/trial/runs/of-another-spec/result.json", b"?")
    book = desk.open()
    (line,) = book.unreadable
    assert line.startswith(f"{first.name}: result.json is not JSON")
    assert line.endswith("; measured again")
    assert first in book.missing(retry_failed=False)
    desk.finish(book, first)
    assert desk.row(first)["attempt"] == 2
    assert desk.store.get(f"sweeps/trial/runs/{first.name}/attempts/001.json") == b'{"status": "ok"'


def test_a_result_of_another_sweep_at_the_same_time_is_adopted() -> None:
    desk = Desk()
    run = desk.runs[0]
    ours, theirs = desk.open(), desk.open()
    desk.finish(theirs, run, measurement(run.run_id, step_s=0.5))
    desk.finish(ours, run, measurement(run.run_id, step_s=0.1))
    assert [record.mean_step_time_sec for record in ours.records] == [0.5]
    assert ours.records == theirs.records


def test_a_row_says_when_its_run_started_and_ended() -> None:
    desk = Desk()
    desk.finish(desk.open(), desk.runs[0])
    row = desk.row(desk.runs[0])
    started, finished = (datetime.fromisoformat(row[name]) for name in ("started_at", "finished_at"))
    assert started <= finished
    assert started.utcoffset() is not None


def test_all_is_ok_only_when_every_run_has_a_row_that_is_ok() -> None:
    desk = Desk()
    book = desk.open()
    *most, last = desk.runs
    for run in most:
        desk.finish(book, run)
    assert not book.is_all_ok
    desk.finish(book, last, CRASH)
    assert not book.is_all_ok
    desk.finish(book, last)
    assert book.is_all_ok


def test_a_sweep_that_another_start_finished_is_ok_too() -> None:
    desk = Desk()
    for run in desk.runs:
        desk.finish(desk.open(), run)
    assert desk.open().is_all_ok


def test_rows_come_in_the_order_of_the_sweep_however_they_ended() -> None:
    desk = Desk()
    book = desk.open()
    for run in reversed(desk.runs):
        desk.finish(book, run)
    assert [record.order for record in book.records] == [1, 2, 3, 4]


def test_a_refused_run_has_a_row_without_having_started() -> None:
    desk = Desk()
    book = desk.open()
    refusal = Failure(status="unschedulable", reason="local has 1 device, 2 were asked for")
    book.refuse(desk.runs[0], refusal, desk.heard)
    assert desk.row(desk.runs[0])["error"]["reason"] == refusal.reason
    assert desk.heard.lines == [("unschedulable", desk.runs[0].run_id)]


def test_equal_problems_become_one_line_with_their_number() -> None:
    desk = Desk()
    book = desk.open()
    one, two, three, four = desk.runs
    for run in (one, three):
        desk.finish(book, run, CRASH)
    desk.finish(book, two, Failure(status="oom", reason="no more"))
    desk.finish(book, four)
    assert sorted(book.problems) == ["1 oom: no more", "2 crash: RuntimeError: boom"]


def test_every_event_is_shown() -> None:
    desk = Desk()
    book = desk.open()
    run_id = desk.runs[0].run_id
    book.listen(Started(run_id=run_id), desk.heard)
    book.listen(
        Heartbeat(run_id=run_id, rank=0, phase="window", step=1, num_steps=9, step_s=0.1, memory_bytes=1),
        desk.heard,
    )
    book.listen(Finished(run_id=run_id, outcome=measurement(run_id)), desk.heard)
    assert desk.heard.lines == [("started", run_id), ("beat", run_id), ("ok", run_id)]


def test_benchmark_mode_leaves_one_file_per_run() -> None:
    desk = Desk()
    desk.finish(desk.open(), desk.runs[0])
    assert list(desk.store.list("sweeps")) == [f"sweeps/trial/runs/{desk.runs[0].name}/result.json"]


def test_full_logging_adds_a_line_per_step() -> None:
    desk = Desk(spec=sweep(logging="full"))
    run = desk.runs[0]
    desk.finish(desk.open(), run, measurement(run.run_id, num_steps=3))
    lines = desk.store.get(f"sweeps/trial/runs/{run.name}/steps.jsonl").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 1, "seconds": 0.1, "loss": 6.5},
        {"step": 2, "seconds": 0.1, "loss": 6.4},
        {"step": 3, "seconds": 0.1, "loss": 6.3},
    ]


class OfRows(MemoryStore):
    """A store without room for anything but results."""

    def put(self, name: str, data: Buffer) -> None:
        if not name.endswith("/result.json"):
            raise Full(f"{name}: no room")
        super().put(name, data)


def test_a_trace_lies_beside_the_result_that_names_it() -> None:
    desk = Desk()
    run = desk.runs[0]
    desk.finish(desk.open(), run, measurement(run.run_id, profile=profile(trace=b"zipped")))
    told = desk.row(run)["profile"]
    assert (told["trace_bytes"], told["trace_problem"]) == (6, None)
    assert desk.store.get(f"sweeps/trial/runs/{run.name}/{told['trace']}") == b"zipped"
    assert desk.open().missing(retry_failed=True) == desk.runs[1:]


def test_another_start_of_the_sweep_replaces_no_trace_that_a_row_names() -> None:
    desk = Desk()
    run = desk.runs[0]
    books = [desk.open(), desk.open()]
    for book, trace in zip(books, (b"first", b"second"), strict=True):
        desk.finish(book, run, measurement(run.run_id, profile=profile(trace=trace)))
    assert desk.store.get(f"sweeps/trial/runs/{run.name}/{desk.row(run)['profile']['trace']}") == b"first"


def test_a_trace_that_the_store_does_not_take_costs_the_run_nothing() -> None:
    desk = Desk(store=OfRows())
    run = desk.runs[0]
    desk.finish(desk.open(), run, measurement(run.run_id, profile=profile()))
    row = desk.row(run)
    assert (row["status"], row["profile"]["trace"], row["profile"]["steps"]) == ("ok", None, 3)
    assert row["profile"]["trace_problem"].endswith("no room")


def test_a_run_whose_profile_failed_has_its_numbers_and_is_not_measured_again() -> None:
    desk = Desk()
    run = desk.runs[0]
    failed = NoProfile(reason="rank 1: RuntimeError: no events")
    desk.finish(desk.open(), run, measurement(run.run_id, profile=failed))
    row = desk.row(run)
    assert (row["status"], row["profile"]["problem"]) == ("ok", "rank 1: RuntimeError: no events")
    assert row["tokens_per_sec"] is not None
    assert run not in desk.open().missing(retry_failed=True)


LARGEST = sweep(axes={"micro_batch": "max"}, global_batch=8, repeats=3)


def searched(run: Run, *, fitted: tuple[int, ...], failed: tuple[int, ...]) -> BatchSearch:
    plan = plans_of(LARGEST)[run.cell.cell_id]
    assert plan.search is not None
    return replace(plan.search, fitted=fitted, failed=failed)


def test_later_repeats_measure_the_micro_batch_that_the_first_has_found_also_after_a_restart() -> None:
    desk = Desk(spec=LARGEST)
    first, second, third = desk.runs
    book = desk.open()
    assert book.start_of(first, retry_failed=False) == searched(first, fitted=(), failed=())
    search = searched(first, fitted=(1, 4), failed=(8,))
    desk.finish(book, first, measurement(first.run_id, search=search))
    for start in (book.start_of(second, retry_failed=False), desk.open().start_of(third, retry_failed=True)):
        assert isinstance(start, Recipe)
        assert (start.micro_batch, start.grad_accum) == (4, 2)
    desk.finish(desk.open(), second)
    rows = [desk.row(run) for run in (first, second)]
    assert [(row["per_device_batch"], row["grad_accum"]) for row in rows] == [(4, 2), (4, 2)]
    asked = [row["batch_search"] for row in rows]
    assert [(one["asked"], one["num_trials"], one["smallest_failed"]) for one in asked] == [
        ("max", 3, 8), ("max", 0, 8),
    ]  # fmt: skip
    assert asked[1]["found_by"] == first.run_id


def test_where_nothing_fits_later_repeats_are_not_started_unless_asked() -> None:
    desk = Desk(spec=LARGEST)
    first, second, _ = desk.runs
    search = searched(first, fitted=(), failed=(8, 4, 1))
    desk.finish(desk.open(), first, Failure(status="oom", reason="too much", search=search))
    book = desk.open()
    assert book.start_of(second, retry_failed=False) is None
    assert isinstance(book.start_of(second, retry_failed=True), BatchSearch)
    book.nothing_fits(second, desk.heard)
    assert desk.row(second)["status"] == "oom"
    assert first.run_id in desk.row(second)["error"]["reason"]


def test_a_search_that_was_cut_short_is_missing_and_goes_on_with_what_it_knows() -> None:
    desk = Desk(spec=LARGEST)
    first, second, _ = desk.runs
    search = searched(first, fitted=(), failed=(8,))
    desk.finish(desk.open(), first, Failure(status="oom", reason="too much", search=search))
    book = desk.open()
    assert first in book.missing(retry_failed=False)
    assert book.start_of(first, retry_failed=False) == search
    assert book.start_of(second, retry_failed=False) != search, "nobody knows the answer yet"
    desk.finish(book, first, measurement(first.run_id, search=replace(search, fitted=(4,))))
    assert desk.open().missing(retry_failed=False) == [run for run in desk.runs if run != first]
    assert desk.row(first)["attempt"] == 2


def test_what_a_rank_fails_of_does_not_replace_the_cause_that_its_peer_has_told() -> None:
    desk = Desk(spec=LARGEST)
    first, *_ = desk.runs
    search = searched(first, fitted=(), failed=(8,))
    desk.finish(desk.open(), first, Failure(status="oom", reason="too much", search=search))
    cause, echo = desk.open(), desk.open()
    search = replace(search, failed=(8, 4))
    desk.finish(cause, first, Failure(status="oom", reason="too much", search=search))
    desk.finish(echo, first, Failure(status="crash", reason="RuntimeError: connection closed by peer"))
    assert (desk.row(first)["status"], desk.row(first)["attempt"]) == ("oom", 2)
    assert desk.open().start_of(first, retry_failed=False) == search
