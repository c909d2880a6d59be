"""A long run as its parts tell it: steps count once, and the ledger adds up, whatever happened to it."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpointing.stores.contract import Store, Unavailable
from checkpointing.stores.memory import MemoryStore
from reporting.long_runs.downsampling import Downsampled
from reporting.long_runs.ledger import PHASES, AttemptTiming, PhaseSpan, coarser, ledger
from reporting.long_runs.summarising import long_run, long_runs, write_steps
from reporting.long_runs.summary import LongRun
from reporting.recording.attempts import DeviceSample
from tests.unit.recorded import NOON_S, attempt, incident_row, leave, sample_row, step_row
from tests.unit.scenarios import KILLED_TWICE, STEP_S, Draw, Scenario, draws, history, record


def only(store: Store) -> LongRun:
    (run,), skipped = long_runs(store)
    assert skipped == ()
    return run


def test_steps_that_were_done_again_count_once() -> None:
    store = MemoryStore()
    record(store, KILLED_TWICE)
    run = only(store)
    # Of the first attempt 1 to 6 count, of the second 7 and 8, of the third all.
    assert run.steps == tuple(range(1, 21))
    assert run.losses == tuple(1.0 / step for step in range(1, 21))
    assert (run.num_steps, run.num_superseded) == (20, 4 + 4)
    assert run.tokens_per_sec == pytest.approx(64 / STEP_S)


def test_superseded_steps_stay_marked_in_the_table(tmp_path: Path) -> None:
    store = MemoryStore()
    record(store, KILLED_TWICE)
    assert write_steps(store, tmp_path / "steps.parquet") == (28, ())
    rows = pq.read_table(tmp_path / "steps.parquet").to_pylist()
    counted = [(row["term"], row["step"]) for row in rows if not row["superseded"]]
    assert counted == [(1, s) for s in range(1, 7)] + [(2, 7), (2, 8)] + [(3, s) for s in range(9, 21)]
    superseded = [(row["term"], row["step"]) for row in rows if row["superseded"]]
    assert superseded == [(1, s) for s in range(7, 11)] + [(2, s) for s in range(9, 13)]


def test_the_ledger_says_where_the_time_went() -> None:
    store = MemoryStore()
    record(store, KILLED_TWICE)
    run = only(store)
    assert run.wall_sec == 200 + 1 + 1 + 24
    assert run.phases == {
        "productive": 20 * STEP_S,
        "recompute": 8 * STEP_S,
        "restore": 3.0,
        "schedule": 3.0,
        # The first was missed at 30; nobody noticed that the second had died before the third began.
        "detect": (30 - 22) + (200 - 114),
        "idle": 100 - 30,
    }
    assert run.goodput == 20 * STEP_S / 226
    assert run.goodput_trace[-1] == (226, run.goodput)


def test_steps_that_only_another_rank_could_still_write_count_too() -> None:
    store = MemoryStore()
    record(store, KILLED_TWICE)
    rank_1 = [step_row(step, loss=0.5) for step in range(1, 13)]
    leave(store, attempt(term=1), "steps", rank_1, rank=1)
    run = only(store)
    assert (run.num_steps, run.num_superseded) == (20, 4 + 4 + 2)
    assert run.losses == tuple(1.0 / step for step in range(1, 21))
    assert run.tokens_per_sec == pytest.approx(64 / STEP_S)


def test_a_run_that_is_begun_afresh_supersedes_all_before_it() -> None:
    store = MemoryStore()
    record(store, [Scenario(at_s=0, start=0, end=5, ending="end"), Scenario(at_s=50, start=0, end=3)])
    run = only(store)
    assert (run.num_steps, run.num_superseded) == (3, 5)


def test_what_befell_it_is_told_in_order_and_a_failure_once_by_the_driver() -> None:
    store = MemoryStore()
    record(store, KILLED_TWICE)
    echoes = [incident_row("failure", happened_s=NOON_S + second, text="peer") for second in (29, 31)]
    leave(store, attempt(term=1), "incidents", echoes, rank=1)
    told = [(second, kind) for second, kind, _ in only(store).incidents]
    assert told == [
        (2, "restore"), (30, "failure"), (102, "restore"), (114, "failure"), (202, "restore"), (226, "end"),
    ]  # fmt: skip


def test_a_truncated_and_a_foreign_part_are_named_and_the_rest_counts(tmp_path: Path) -> None:
    store = MemoryStore()
    record(store, KILLED_TWICE)
    first, second, _ = sorted(name for name in store.list("runs/r/parts/steps"))
    store.put(first, store.get(first)[:-9])
    store.put(second, b"not ours")
    (run,), skipped = long_runs(store)
    assert run.steps == tuple(range(9, 21))
    assert [one.name for one in skipped] == [first, second]
    num_rows, also_skipped = write_steps(store, tmp_path / "steps.parquet")
    assert (num_rows, [one.name for one in also_skipped]) == (12, [first, second])


def test_a_run_of_which_nothing_can_be_read_is_none_and_its_parts_are_named() -> None:
    store = MemoryStore()
    store.put("runs/r/parts/steps/00001-00000-00000001-00000001.parquet", b"")
    runs, skipped = long_runs(store)
    assert runs == ()
    assert len(skipped) == 1
    assert long_run(store, "r") is None


def test_an_empty_store_has_no_runs_and_an_empty_table(tmp_path: Path) -> None:
    assert long_runs(MemoryStore()) == ((), ())
    assert write_steps(MemoryStore(), tmp_path / "steps.parquet") == (0, ())
    assert "superseded" in pq.read_table(tmp_path / "steps.parquet").column_names


def test_a_store_that_vanishes_is_an_error_and_not_a_short_report() -> None:
    class Vanishing(MemoryStore):
        def get(self, name: str) -> bytes:
            raise Unavailable("store: gone")

    store = Vanishing()
    record(store, KILLED_TWICE)
    with pytest.raises(Unavailable):
        long_runs(store)


def test_runs_are_told_apart_and_come_by_name() -> None:
    store = MemoryStore()
    record(store, [Scenario(at_s=0, start=0, end=3)], run="b")
    record(store, [Scenario(at_s=0, start=0, end=4)], run="a")
    runs, _ = long_runs(store)
    assert [(run.name, run.num_steps) for run in runs] == [("a", 4), ("b", 3)]


def test_a_step_far_beyond_the_usual_is_a_stall() -> None:
    store = MemoryStore()
    of = attempt()
    times = [1.0] * 20 + [60.0]
    leave(store, of, "steps", [step_row(number, step_s=step_s) for number, step_s in enumerate(times, 1)])
    leave(store, of, "phases", [("productive", NOON_S, NOON_S + 80, 80.0)])
    assert only(store).phases == {"productive": 30.0, "stall": 50.0}


def test_power_and_clock_are_traced_by_device_and_what_a_device_does_not_tell_is_not() -> None:
    store = MemoryStore()
    record(store, [Scenario(at_s=0, start=0, end=1)])
    samples = [
        sample_row(DeviceSample(device="gpu 0", utilization_pct=90.0, power_watts=600.0), NOON_S + 1),
        sample_row(DeviceSample(device="gpu 0", utilization_pct=95.0, power_watts=650.0), NOON_S + 2),
        sample_row(DeviceSample(device="gpu 1", clock_mhz=1400.0), NOON_S + 2),
    ]
    leave(store, attempt(), "samples", samples)
    run = only(store)
    assert run.power_watts == {"gpu 0": ((1.0, 600.0), (2.0, 650.0))}
    assert run.clock_mhz == {"gpu 1": ((2.0, 1400.0),)}


def test_a_year_of_spans_needs_no_years_memory_and_adds_up_all_the_same() -> None:
    store = MemoryStore()
    spans = [
        (phase, NOON_S + 10 * number, NOON_S + 10 * number + 10, seconds)
        for number in range(9_000)
        for phase, seconds in (("productive", 7.0), ("data wait", 3.0))
    ]
    for number in range(3):
        leave(store, attempt(), "phases", spans[number * 6_000 : number * 6_000 + 6_000], number=number + 1)
    run = only(store)
    assert run.phases == {"productive": 63_000.0, "data wait": 27_000.0}
    assert run.wall_sec == 90_000
    assert len(run.goodput_trace) <= 2_001


@settings(max_examples=15)
@given(draws)
def test_whatever_happened_steps_count_once_and_the_ledger_adds_up(drawn: list[Draw]) -> None:
    store = MemoryStore()
    of = history(drawn)
    record(store, of)
    run = only(store)
    assert run.steps == tuple(range(1, of[-1].end + 1))
    assert run.num_steps + run.num_superseded == sum(scenario.end - scenario.start for scenario in of)
    assert run.wall_sec is not None and run.goodput is not None
    assert sum(run.phases.values()) == pytest.approx(run.wall_sec, rel=0.005)
    assert run.wall_sec == pytest.approx(of[-1].at_s - of[0].at_s + 2 + STEP_S * (of[-1].end - of[-1].start))
    assert 0 <= run.goodput <= 1
    assert set(run.phases) <= set(PHASES)


def test_steps_of_an_attempt_that_was_passed_over_and_then_taken_up_again_count() -> None:
    """Somebody tried an older checkpoint, gave up, and went on from the newest after all."""
    store = MemoryStore()
    record(
        store,
        [
            Scenario(at_s=0, start=0, end=10, ending="end"),
            Scenario(at_s=100, start=4, end=6, parent=1, ending="interruption"),
            Scenario(at_s=200, start=10, end=12, parent=1, ending="end"),
        ],
    )
    run = only(store)
    assert (run.num_steps, run.num_superseded) == (12, 2)


def test_what_an_attempt_did_after_its_successors_lease_is_not_counted_twice() -> None:
    zombie = AttemptTiming(
        term=1, leased_s=0, spans=(PhaseSpan(start_s=0, end_s=100, seconds={"productive": 80, "eval": 20}),)
    )
    heir = AttemptTiming(
        term=2, leased_s=50, spans=(PhaseSpan(start_s=50, end_s=60, seconds={"productive": 10}),)
    )
    books = ledger([heir, zombie])
    assert books.wall_sec == 60
    assert books.phases == {"productive": 50, "eval": 10}


def test_a_hole_in_the_record_is_idle() -> None:
    spans = (
        PhaseSpan(start_s=0, end_s=10, seconds={"productive": 10}),
        PhaseSpan(start_s=30, end_s=40, seconds={"productive": 10}),
    )
    assert ledger([AttemptTiming(term=1, leased_s=0, spans=spans)]).phases == {"productive": 20, "idle": 20}
    assert ledger([AttemptTiming(term=1, leased_s=0, spans=tuple(coarser(spans)))]).phases == {
        "productive": 20,
        "idle": 20,
    }


def test_no_attempts_have_no_goodput() -> None:
    assert ledger([]).goodput is None


@given(st.integers(2, 20), st.integers(0, 200))
def test_a_thinned_series_is_short_in_order_and_ends_with_the_newest(most: int, num: int) -> None:
    downsampled: Downsampled[int] = Downsampled(most)
    for number in range(num):
        downsampled.add(number)
    points = downsampled.points()
    assert len(points) <= most + 1
    assert list(points) == sorted(set(points))
    assert points[:1] + points[-1:] == ((0, num - 1) if num > 1 else points[:1] + points[-1:])
