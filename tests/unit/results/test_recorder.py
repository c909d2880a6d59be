"""What a training appends arrives in the store, whatever the store does, and never reaches the training."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from checkpointing.stores.contract import Buffer, Unavailable
from checkpointing.stores.memory import MemoryStore
from cluster.telemetry.sampler import Sampler
from jobs.training.device.device_sample import sample_of
from reporting.recording.attempts import (
    DeviceSample,
    Incident,
    LossesBySource,
    LossOverRanks,
    RecordedAttempt,
    Step,
)
from reporting.recording.outbox import Outbox
from reporting.recording.parts import decode_part, encode_part, part_attempt, parts_of, rows_in, table_of
from reporting.recording.recorder import Recorder, Sink
from tests.unit.devices import Hanging
from tests.unit.recorded import attempt, step_row

DEADLINE_S = 10.0


class AwayStore(MemoryStore):
    """``is_away`` fails all writes, ``num_failing`` so many; ``num_lost`` land, but their answers don't."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.num_failing = 0
        self.num_lost = 0

    def create(self, name: str, data: Buffer) -> None:
        if self.is_away or self.num_failing:
            self.num_failing = max(0, self.num_failing - 1)
            raise Unavailable("store: it is away")
        super().create(name, data)
        if self.num_lost:
            self.num_lost -= 1
            raise Unavailable("store: the answer got lost")


class Ticks:
    """A clock that goes on by what it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def a_step(number: int, **changes: Any) -> Step:
    values: dict[str, Any] = {"step": number, "position": number, "epoch": 1, "tokens": 64, "loss": 2.5}
    return Step(**{**values, **changes})


@contextmanager
def recording(
    store: MemoryStore,
    *,
    of: RecordedAttempt | None = None,
    rank: int = 0,
    flush_s: float = 3600.0,
    outbox: Outbox | None = None,
    **more: Any,
) -> Iterator[Recorder]:
    recorder = Recorder(of or attempt(), rank, outbox or Outbox(store, rank), flush_s=flush_s, **more)
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.close(DEADLINE_S)


def rows(store: MemoryStore, table: str) -> list[dict[str, Any]]:
    names = [name for name in parts_of(store) if name.table == table]
    return [row for name in names for row in rows_in(decode_part(name, store.get(str(name))))]


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.002)


def test_a_step_is_recorded_with_what_it_took() -> None:
    store, ticks = MemoryStore(), Ticks()
    with recording(store, ticks=ticks, clock=lambda: 1000.0) as recorder:
        recorder.phase("data wait")
        ticks.now += 1
        recorder.phase("productive")
        ticks.now += 4
        recorder.phase("save")
        ticks.now += 2
        recorder.step(a_step(1, learning_rate=0.1, grad_norm=3))
    [row] = rows(store, "steps")
    assert (row["step_s"], row["data_wait_s"], row["ended_s"]) == (4, 1, 1007)
    assert (row["loss"], row["grad_norm"], row["learning_rate"]) == (2.5, 3, 0.1)
    assert (row["run"], row["term"], row["rank"]) == ("r", 1, 0)


def test_a_step_waits_for_its_loss_over_ranks_and_no_step_is_recorded_before_an_earlier_one() -> None:
    store, loss = MemoryStore(), LossOverRanks()
    with recording(store, flush_s=0.01) as recorder:
        recorder.step(a_step(1))
        recorder.step(a_step(2, loss=loss))
        recorder.step(a_step(3))
        wait_until(lambda: len(rows(store, "phases")) > 3)
        assert [row["step"] for row in rows(store, "steps")] == [1]
        loss.know(2.25)
        wait_until(lambda: len(rows(store, "steps")) == 3)
    assert [(row["step"], row["loss"]) for row in rows(store, "steps")] == [(1, 2.5), (2, 2.25), (3, 2.5)]


def test_a_step_of_a_mixture_waits_for_the_loss_of_each_source() -> None:
    store, known, lost = MemoryStore(), LossesBySource(("web", "code", "books")), LossesBySource(("web",))
    with recording(store, flush_s=0.01) as recorder:
        recorder.step(a_step(1, source_losses=known))
        recorder.step(a_step(2, source_losses=lost))
        wait_until(lambda: len(rows(store, "phases")) > 3)
        assert rows(store, "steps") == []
        known.know([6.0, 4.0, 5.0, 2.0, 0.0, 0.0])
        wait_until(lambda: len(rows(store, "steps")) == 1)
        lost.know(None)
    told = [row["source_losses"] for row in rows(store, "steps")]
    assert told == ['{"web": 1.5, "code": 2.5}', None]


def test_a_loss_over_ranks_that_never_became_known_is_null() -> None:
    store = MemoryStore()
    with recording(store) as recorder:
        recorder.step(a_step(1, loss=LossOverRanks()))
    assert [(row["step"], row["loss"]) for row in rows(store, "steps")] == [(1, None)]


def test_the_phases_of_a_span_add_up_to_its_length() -> None:
    store, ticks = MemoryStore(), Ticks()
    with recording(store, ticks=ticks) as recorder:
        for phase in ("restore", "data wait", "productive", "eval", "productive"):
            ticks.now += 3
            recorder.phase(phase)
    found = rows(store, "phases")
    assert {row["phase"]: row["seconds"] for row in found} == {
        "start": 3, "restore": 3, "data wait": 3, "productive": 3, "eval": 3,
    }  # fmt: skip
    assert {row["ended_s"] - row["started_s"] for row in found} == {15}


def test_half_of_a_long_phase_is_written_before_it_ends_and_not_twice() -> None:
    store, ticks = MemoryStore(), Ticks()
    with recording(store, ticks=ticks) as recorder:
        recorder.phase("restore")
        ticks.now += 100
        recorder.begin_at(0)
        wait_until(lambda: bool(rows(store, "phases")))
        assert [(row["phase"], row["seconds"]) for row in rows(store, "phases")] == [("restore", 100)]
        ticks.now += 20
        recorder.phase("data wait")
    assert sum(row["seconds"] for row in rows(store, "phases") if row["phase"] == "restore") == 120


def test_the_beginning_of_an_attempt_is_written_at_once() -> None:
    """Else a crash in the first seconds would hide what the steps before it have become."""
    store = MemoryStore()
    with recording(store, of=attempt(start_step=None)) as recorder:
        recorder.incident(Incident(kind="restore", step=30))
        recorder.begin_at(30)
        wait_until(lambda: bool(rows(store, "incidents")))
        [name] = [name for name in parts_of(store) if name.table == "incidents"]
        assert part_attempt(name, store.get(str(name))).start_step == 30


def test_the_attempt_says_which_attention_kernel_runs() -> None:
    store = MemoryStore()
    with recording(store, of=attempt(start_step=None)) as recorder:
        recorder.attends_by("math")
        recorder.begin_at(0)
        recorder.step(a_step(1))
    kernels = {part_attempt(name, store.get(str(name))).attention_kernel for name in parts_of(store)}
    assert kernels == {"math"}


def test_rows_are_written_every_so_often_and_need_no_end() -> None:
    store = MemoryStore()
    with recording(store, flush_s=0.01) as recorder:
        recorder.step(a_step(1))
        wait_until(lambda: len(rows(store, "steps")) == 1)
        recorder.step(a_step(2))
        wait_until(lambda: len(rows(store, "steps")) == 2)


def test_a_store_that_was_away_gets_everything_once_it_is_back() -> None:
    store = AwayStore()
    store.is_away = True
    with recording(store, flush_s=0.01) as recorder:
        recorder.step(a_step(1))
        recorder.step(a_step(2))
        store.is_away = False
    assert [row["step"] for row in rows(store, "steps")] == [1, 2]


def test_an_answer_that_got_lost_doubles_nothing() -> None:
    store = AwayStore()
    store.num_lost = 1
    outbox = Outbox(store, 0)
    are_sent = []
    for number in (1, 2):
        outbox.add("steps", attempt(), table_of("steps", attempt(), 0, [step_row(number)]))
        are_sent.append(outbox.send(attempt()))
    assert are_sent == [False, True]
    assert [row["step"] for row in rows(store, "steps")] == [1, 2]


def test_at_the_end_a_write_that_fails_is_tried_again() -> None:
    store = AwayStore()
    with recording(store, rank=1) as recorder:
        recorder.step(a_step(1))
        # One flush may be on its way as it ends, and the last one.
        store.num_failing = 2
    assert [row["step"] for row in rows(store, "steps")] == [1]


def test_a_store_that_stays_away_costs_the_oldest_rows_and_that_is_told() -> None:
    store = AwayStore()
    store.is_away = True
    parts = [table_of("steps", attempt(), 1, [step_row(number)]) for number in (1, 2, 3)]
    outbox = Outbox(store, 1, most_bytes=3 * len(encode_part("steps", attempt(), parts[0])) - 1)
    for part in parts:
        outbox.add("steps", attempt(), part)
        assert not outbox.send(attempt())
    store.is_away = False
    with recording(store, rank=1, outbox=outbox):
        pass
    assert [row["step"] for row in rows(store, "steps")] == [2, 3]
    [told] = rows(store, "incidents")
    assert told["kind"] == "dropped records"
    assert told["text"].startswith("1 rows were dropped")


def test_a_store_that_is_away_at_the_end_holds_nobody_up_for_longer_than_asked() -> None:
    store = AwayStore()
    store.is_away = True
    recorder = Recorder(attempt(), 0, Outbox(store, 0), flush_s=3600)
    recorder.start()
    recorder.step(a_step(1))
    recorder.close(0.01)
    assert rows(store, "steps") == []


class Broken:
    """A loss on a device that has failed."""

    def __float__(self) -> float:
        raise RuntimeError("device-side assert triggered")


def test_a_loss_that_can_not_be_read_any_more_is_null() -> None:
    store = MemoryStore()
    with recording(store) as recorder:
        recorder.step(a_step(1, loss=Broken()))
        recorder.step(a_step(2, loss=float("inf")))
    assert [row["loss"] for row in rows(store, "steps")] == [None, None]


def test_a_sink_that_fails_only_warns_and_only_once() -> None:
    store = MemoryStore()

    def fail(_window: object) -> None:
        raise OSError("no such host")

    sinks: list[Sink] = [fail]
    with recording(store, sinks=sinks, flush_s=0.01) as recorder:
        recorder.step(a_step(1))
        wait_until(lambda: len(rows(store, "incidents")) == 1)
        recorder.step(a_step(2))
        wait_until(lambda: len(rows(store, "steps")) == 2)
    [warning] = rows(store, "incidents")
    assert "no such host" in warning["text"]


def test_a_device_is_looked_at_and_its_memory_goes_with_the_steps() -> None:
    store = MemoryStore()
    sample = DeviceSample(device="gpu 0", utilization_pct=98.0, power_watts=650.0, memory_bytes=7_000)
    with recording(store, sample_device=lambda: sample, flush_s=0.01) as recorder:
        wait_until(lambda: bool(rows(store, "samples")))
        recorder.step(a_step(1))
    assert {row["power_watts"] for row in rows(store, "samples")} == {650.0}
    assert [row["memory_bytes"] for row in rows(store, "steps")] == [7_000]


def test_a_device_that_can_not_be_looked_at_is_told_once() -> None:
    store = MemoryStore()

    def sample() -> DeviceSample:
        raise RuntimeError("NVML: driver mismatch")

    with recording(store, sample_device=sample, flush_s=0.01) as recorder:
        for number in (1, 2):
            recorder.step(a_step(number))
            wait_until(lambda number=number: len(rows(store, "steps")) == number)  # type: ignore[misc]  # bound now
    assert [row["kind"] for row in rows(store, "incidents")] == ["warning"]


def test_a_driver_that_hangs_costs_a_look_its_numbers_and_no_row() -> None:
    store, driver = MemoryStore(), Hanging()
    sampler = Sampler(driver, patience_s=0.01)
    sampler.start()
    with recording(store, sample_device=lambda: sample_of("gpu 0", sampler.newest(), 7_000), flush_s=0.01):
        assert driver.is_asked.wait(DEADLINE_S)
        wait_until(lambda: bool(rows(store, "samples")))
    driver.may_answer.set()
    sampler.close()
    samples = rows(store, "samples")
    assert {(row["device"], row["memory_bytes"], row["power_watts"]) for row in samples} == {
        ("gpu 0", 7_000, None)
    }


def test_only_rank_0_keeps_the_ledger() -> None:
    store = MemoryStore()
    with recording(store, rank=1) as recorder:
        recorder.step(a_step(1))
    assert rows(store, "phases") == []
    assert len(rows(store, "steps")) == 1


def test_a_ledger_that_nobody_keeps_takes_no_room() -> None:
    """Rank 0's has room for a hundred thousand changes between two flushes."""
    nums_told = []
    for rank in (0, 1):
        store = MemoryStore()
        with recording(store, rank=rank) as recorder:
            for _ in range(100_010):
                recorder.phase("productive")
        nums_told.append(len(rows(store, "incidents")))
    assert nums_told == [1, 0]


def test_merging_deletes_only_parts_that_this_rank_wrote() -> None:
    store = MemoryStore()
    theirs = Outbox(store, 1, merged_at=100)
    theirs.add("steps", attempt(), table_of("steps", attempt(), 1, [step_row(0)]))
    assert theirs.send(attempt())
    store.put("runs/r/parts/steps/notes.txt", b"mine")
    before = set(store.list("runs"))
    outbox = Outbox(store, 0, merged_at=2)
    for number in range(9):
        outbox.add("steps", attempt(), table_of("steps", attempt(), 0, [step_row(number)]))
        assert outbox.send(attempt())
    assert before <= set(store.list("runs"))


@pytest.mark.parametrize("num_flushes", [1, 3, 4, 9, 20])
def test_many_flushes_become_few_parts_and_each_row_stays_once(num_flushes: int) -> None:
    store = MemoryStore()
    outbox = Outbox(store, 0, merged_at=3)
    for number in range(num_flushes):
        outbox.add("steps", attempt(), table_of("steps", attempt(), 0, [step_row(number)]))
        assert outbox.send(attempt())
        assert [row["step"] for row in rows(store, "steps")] == list(range(number + 1))
    # One for each merge, what the last merge replaced, and what is not merged yet.
    assert len(list(store.list("runs"))) <= num_flushes // 3 + 2 * 3
