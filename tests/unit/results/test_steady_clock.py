"""Clocks that are set while a run goes on: an hour back, a day ahead."""

import pytest

from checkpointing.stores.memory import MemoryStore
from jobs.run_progress.incident_outbox import IncidentOutbox
from reporting.long_runs.summarising import long_run
from reporting.recording.attempts import Incident, RecordedAttempt, Step
from reporting.recording.outbox import Outbox
from reporting.recording.recorder import Recorder
from reporting.recording.steady_clock import started_s, steady
from tests.unit.recorded import attempt

HOUR_S, DAY_S = 3600.0, 86_400.0
JUMPS = pytest.mark.parametrize("jump_s", [-HOUR_S, DAY_S])


class Machine:
    """``wall`` is what its clock shows, ``ticks`` what has really gone by."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        self.set_by_s = 0.0

    def wall(self) -> float:
        return 1.7e9 + self.passed_s + self.set_by_s

    def ticks(self) -> float:
        return 50.0 + self.passed_s


@JUMPS
def test_a_steady_clock_does_not_hear_of_it(jump_s: float) -> None:
    machine = Machine()
    clock = steady(machine.wall, machine.ticks)
    before = clock()
    machine.passed_s, machine.set_by_s = 10.0, jump_s
    assert (before, clock()) == (1.7e9, 1.7e9 + 10)


def test_a_worker_begins_when_its_clock_says_so_unless_that_can_not_be() -> None:
    assert started_s(1000.0, 1005.5) == 1005.5
    assert started_s(1000.0, 999.5) == 1000.0
    assert started_s(1000.0, 1000.0 - HOUR_S) == 1000.0
    assert started_s(1000.0, 1000.0 + DAY_S) == 1000.0


def worker(store: MemoryStore, machine: Machine, of: RecordedAttempt, jump_s: float) -> None:
    """Runs 30 s after its lease, restores for 10, then does a hundred steps of a second; after half of them
    somebody sets the clock.
    """
    machine.passed_s += 30
    recorder = Recorder(
        of,
        0,
        Outbox(store, 0),
        flush_s=60,
        clock=lambda: started_s(of.leased_s, machine.wall()),
        ticks=machine.ticks,
    )
    recorder.start()
    recorder.phase("restore")
    machine.passed_s += 10
    start_step = 100 * (of.term - 1)
    recorder.begin_at(start_step, of.term - 1 or None)
    for step in range(start_step + 1, start_step + 101):
        recorder.phase("productive")
        machine.passed_s += 1
        recorder.step(Step(step=step, position=step, epoch=1, tokens=1, loss=1.0))
        machine.set_by_s += jump_s if step == start_step + 50 else 0.0
    recorder.incident(Incident(kind="failure" if of.term < 3 else "end", step=start_step + 100))
    recorder.close(10)


@JUMPS
def test_a_run_s_ledger_is_of_the_time_that_really_went_by(jump_s: float) -> None:
    """Three attempts, the first two of which fail; the clock is set in each of them."""
    store, machine = MemoryStore(), Machine()
    clock = steady(machine.wall, machine.ticks)
    for term in (1, 2, 3):
        of = attempt(term=term, leased_s=clock(), start_step=None)
        worker(store, machine, of, jump_s)
        if term < 3:
            machine.passed_s += 5
            told = Incident(kind="failure", step=term * 100, seconds=5.0, text="rank 1: killed")
            IncidentOutbox(store).leave(of, told, now_s=clock())
    run = long_run(store, "r")
    assert run is not None and run.wall_sec is not None
    assert sum(run.phases.values()) == pytest.approx(run.wall_sec, rel=0.005)
    assert run.phases["productive"] == pytest.approx(300)
    assert run.phases["restore"] == pytest.approx(30)
    # When a worker of a clock that was set began nobody knows: then its place cost no time.
    assert machine.passed_s - 2 * 30 <= run.wall_sec + 1e-3 <= machine.passed_s + 1e-2
