"""What each restart cost, phase by phase, whatever the clocks say; and that nothing of the time is lost."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpointing.stores.memory import MemoryStore
from reporting.long_runs.summarising import long_run
from reporting.long_runs.summary import LongRun
from reporting.recording.attempts import DRIVER, DeviceSample
from tests.unit.recorded import NOON_S, attempt, incident_row, leave, sample_row
from tests.unit.scenarios import STEP_S, Draw, Scenario, draws, history, record


def told(*attempts: Scenario) -> LongRun:
    store = MemoryStore()
    record(store, attempts)
    run = long_run(store, "r")
    assert run is not None
    return run


# Its checkpoint is of step 8; it was killed after step 10, at 22, and the driver saw it 4 s later.
KILLED = Scenario(at_s=0, start=0, end=10, noticed_s=26, heard=(10, 22), pause_s=2, world_size=4)
NEXT = Scenario(at_s=28, start=8, end=20, parent=1, ending="end", world_size=3)


def test_a_killed_worker_costs_what_each_phase_took() -> None:
    run = told(KILLED, NEXT)
    (found,) = run.recoveries
    assert found.phases == {"detect": 4, "wait": 2, "schedule": 1, "restore": 1, "recompute": 2 * STEP_S}
    assert (found.term, found.step, found.num_redone) == (1, 8, 2)
    assert (found.cause, found.text) == ("failure", "rank 1: killed")
    # Four devices stood still, and did again what was lost; three were waited for.
    assert found.device_s == 4 * (4 + 2 + 4) + 3 * (1 + 1)
    assert run.phases["wait"] == 2


def test_the_time_of_a_step_that_never_ended_went_into_noticing_it() -> None:
    hung = replace(KILLED, hung_s=30, noticed_s=60, heard=(10, 22.5), pause_s=0)
    (found,) = told(hung, replace(NEXT, at_s=60)).recoveries
    assert found.phases["detect"] == 60 - 22
    assert found.phases["recompute"] == 2 * STEP_S


def test_steps_whose_records_were_lost_with_the_worker_were_done_again_too() -> None:
    (found,) = told(replace(KILLED, recorded=7), replace(NEXT, start=6)).recoveries
    assert found.phases == {
        "detect": 4, "wait": 2, "schedule": 1, "restore": 1, "recompute": STEP_S + 3 * STEP_S,
    }  # fmt: skip
    assert found.num_redone == 1 + 3


def test_steps_whose_records_were_lost_but_that_were_saved_were_not_done_again() -> None:
    run = told(replace(KILLED, recorded=7), replace(NEXT, start=9))
    (found,) = run.recoveries
    assert (found.num_redone, found.phases["recompute"]) == (1, STEP_S)
    assert run.phases["productive"] == (9 + 11) * STEP_S
    assert run.goodput_trace[-1] == (run.wall_sec, run.goodput)
    (found,) = told(replace(KILLED, recorded=7), replace(NEXT, start=10)).recoveries
    assert (found.num_redone, "recompute" in found.phases) == (0, False)


def test_steps_of_which_no_record_was_left_at_all_were_done_again_from_where_they_began() -> None:
    second = replace(KILLED, at_s=100, start=8, end=12, parent=1, recorded=8, noticed_s=114, heard=(12, 110))
    _, found = told(KILLED, second, Scenario(at_s=116, start=11, end=20, parent=2)).recoveries
    assert (found.num_redone, found.phases["recompute"]) == (1, STEP_S)


def test_an_attempt_that_found_no_place_cost_the_time_in_which_it_was_sought() -> None:
    store = MemoryStore()
    record(store, (KILLED,))
    homeless = attempt(term=2, leased_s=NOON_S + 28, start_step=None, world_size=4)
    words = [incident_row("failure", happened_s=NOON_S + 328, text="no room"), incident_row("restart")]
    leave(store, homeless, "incidents", words, rank=DRIVER)
    following = attempt(term=3, leased_s=NOON_S + 338, start_step=8, parent_term=1)
    leave(store, following, "phases", [("start", NOON_S + 340, NOON_S + 343, 3.0)])
    run = long_run(store, "r")
    assert run is not None
    first, second = run.recoveries
    assert first.phases == {"detect": 4, "wait": 2, "recompute": 2 * STEP_S}
    assert second.phases == {"schedule": 300 + 2, "wait": 10, "start": 3}
    assert sum(run.phases.values()) == run.wall_sec == 343


def test_a_driver_that_died_too_leaves_everything_to_noticing() -> None:
    (found,) = told(replace(KILLED, noticed_s=None, pause_s=None), NEXT).recoveries
    assert found.phases["detect"] == 6
    assert (found.cause, found.text) == ("failure", "it ended without a word; last heard of here")


def test_nobody_waits_for_a_run_that_was_stopped() -> None:
    run = told(
        Scenario(at_s=0, start=0, end=10, ending="stop"), Scenario(at_s=500, start=10, end=11, parent=1)
    )
    (found,) = run.recoveries
    assert (found.cause, found.phases) == ("stop", {"schedule": 1, "restore": 1})
    assert (found.num_redone, run.phases["idle"]) == (0, 500 - 22)


def test_a_run_that_never_restarted_has_none() -> None:
    assert told(Scenario(at_s=0, start=0, end=3)).recoveries == ()


@pytest.mark.parametrize("skew_s", [-3600.0, -3.5, 3600.0])
def test_workers_whose_clock_is_wrong_are_moved_to_where_they_must_have_been(skew_s: float) -> None:
    exact, found = (told(*(replace(one, skew_s=skew) for one in (KILLED, NEXT))) for skew in (0.0, skew_s))
    assert found.wall_sec == pytest.approx(exact.wall_sec, abs=1.0 if skew_s < 0 else skew_s)
    assert sum(found.phases.values()) == pytest.approx(found.wall_sec)
    assert found.phases["recompute"] == exact.phases["recompute"]
    # The first attempt is held by what the driver heard of it.
    assert found.recoveries[0].phases["detect"] == exact.recoveries[0].phases["detect"]


def test_a_driver_whose_clock_went_back_loses_nothing_of_the_next_attempt() -> None:
    run = told(KILLED, replace(NEXT, at_s=-1000))
    assert run.phases["productive"] == 20 * STEP_S
    assert run.recoveries[0].phases == {"detect": 4, "schedule": 1, "restore": 1, "recompute": 2 * STEP_S}
    assert run.wall_sec == 26 + 2 + 12 * STEP_S


@pytest.mark.parametrize("skew_s", [-3600.0, -3.5, 3600.0])
def test_what_befell_a_run_is_told_on_the_line_of_its_ledger_whatever_the_workers_clock_says(
    skew_s: float,
) -> None:
    exact, found = (told(replace(KILLED, skew_s=skew), NEXT) for skew in (0.0, skew_s))
    assert found.incidents == exact.incidents
    assert found.recoveries == exact.recoveries


def test_after_a_driver_whose_clock_went_back_nothing_happens_before_the_run_began() -> None:
    store = MemoryStore()
    back = replace(NEXT, at_s=-1000, noticed_s=-970, heard=(20, -974), pause_s=0)
    record(store, (KILLED, back, Scenario(at_s=-970, start=20, end=21, parent=2)))
    of_second = attempt(term=2, leased_s=NOON_S - 1000, start_step=8, parent_term=1)
    sample = DeviceSample(device="gpu 0", power_watts=600.0)
    leave(store, of_second, "samples", [sample_row(sample, NOON_S - 999)])
    run = long_run(store, "r")
    assert run is not None
    # Its lease is taken to be where the first attempt's failure was known.
    assert [one.at_s for one in run.recoveries] == [26, 26 + 30]
    restores = [second for second, kind, _ in run.incidents if kind == "restore"]
    assert restores == [2, 26 + 2, 26 + 30 + 2]
    assert run.power_watts == {"gpu 0": ((26 + 1, 600.0),)}


@settings(max_examples=25)
@given(draws, st.lists(st.floats(-5, 5), min_size=4, max_size=4), st.floats(0, 60), st.floats(0, 30))
def test_all_restarts_and_what_lies_between_them_add_up_to_the_ledger(
    drawn: list[Draw], skews: list[float], hung_s: float, pause_s: float
) -> None:
    attempts = [
        replace(
            scenario,
            skew_s=skew,
            hung_s=0.0 if scenario.ending == "end" else hung_s,
            pause_s=pause_s,
            heard=None if scenario.noticed_s is None else (scenario.end, scenario.noticed_s - pause_s),
        )
        for scenario, skew in zip(history(drawn), skews, strict=False)
    ]
    last = attempts[-1]
    run = told(*attempts, Scenario(at_s=last.at_s + 500, start=0, end=1, ending="end"))
    assert run.wall_sec is not None
    assert sum(run.phases.values()) == pytest.approx(run.wall_sec, rel=0.005)
    assert min(run.phases.values()) >= 0
    for name in ("detect", "wait", "recompute"):
        spent = sum(one.phases.get(name, 0.0) for one in run.recoveries)
        assert spent == pytest.approx(run.phases.get(name, 0.0), abs=1e-5)
    for name in ("schedule", "start", "restore"):
        # The first attempt's own is no restart's.
        assert sum(one.phases.get(name, 0.0) for one in run.recoveries) <= run.phases.get(name, 0.0) + 1e-5
