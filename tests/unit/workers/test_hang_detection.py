"""When a run counts as hanging or out of time, told by a clock that is told the time."""

from dataclasses import replace
from itertools import permutations, product
from typing import Any

import pytest

from jobs.execution.hang_detection import HangDetection, limits_of_jobs
from jobs.execution.messages import Heartbeat, SessionLimits
from jobs.training.task.job import Job, Window
from jobs.training.task.presets import PRESETS
from tests.unit.builders import run_of, sweep

LIMITS = SessionLimits(schedule_timeout_s=60, cell_timeout_s=600, hang_timeout_s=30)


def beat(rank: int, phase: Any, step: int = 0, step_s: float = 0.0) -> Heartbeat:
    return Heartbeat(
        run_id="r", rank=rank, phase=phase, step=step, num_steps=100, step_s=step_s, memory_bytes=0
    )


def stepping(progress: HangDetection, *, until: int, step_s: float, ranks: int = 1) -> None:
    """One beat of every rank after each step of the window, on time."""
    for step in range(until + 1):
        for rank in range(ranks):
            progress.note(beat(rank, "window", step, step_s), now=step * step_s)


def test_steps_on_time_are_no_failure() -> None:
    progress = HangDetection(LIMITS, 1, now=0)
    stepping(progress, until=50, step_s=10)
    assert progress.failure(now=505) is None


def test_no_step_for_the_floor_is_a_hang_of_the_rank_behind() -> None:
    progress = HangDetection(LIMITS, 2, now=0)
    stepping(progress, until=10, step_s=1, ranks=2)
    progress.note(beat(0, "window", 11, 1), now=11)
    for now in range(12, 42):
        progress.note(beat(0, "window", 11, 1), now)
        progress.note(beat(1, "window", 10, 1), now)
        assert progress.failure(now) is None
    failure = progress.failure(now=41.5)
    assert failure is not None
    assert (failure.status, failure.phase, failure.ranks) == ("hang", "window", (1,))
    assert failure.reason == "no step for 30 s; rank 1 is furthest behind, in window at step 10 of 100"


def test_slow_steps_get_five_times_their_p99() -> None:
    progress = HangDetection(LIMITS, 1, now=0)
    stepping(progress, until=4, step_s=20)
    for now in range(81, 181):
        progress.note(beat(0, "window", 4, 20), now)
        assert progress.failure(now) is None
    progress.note(beat(0, "window", 4, 20), now=181)
    failure = progress.failure(now=181)
    assert failure is not None
    assert failure.reason.startswith("no step for 100 s;")


def evaluating(rank: int, num_batches: int) -> Heartbeat:
    return replace(beat(rank, "window", 4, 1), doing="eval", num_batches=num_batches)


def test_each_batch_of_an_evaluation_has_its_limit_for_itself() -> None:
    progress = HangDetection(replace(LIMITS, patience_s={"eval": 100}), 2, now=0)
    stepping(progress, until=4, step_s=1, ranks=2)
    for now in range(5, 350):
        for rank in range(2):
            progress.note(evaluating(rank, num_batches=now // 90), now)
        assert progress.failure(now) is None
    for now in range(350, 452):
        progress.note(evaluating(0, num_batches=4), now)
        progress.note(evaluating(1, num_batches=3), now)
    failure = progress.failure(now=451)
    assert failure is not None
    assert failure.reason == "no step for 100 s; rank 1 is furthest behind, in eval at step 4 of 100"


def test_batches_of_an_evaluation_make_the_step_before_them_no_usual_one() -> None:
    progress = HangDetection(LIMITS, 1, now=0)
    stepping(progress, until=200, step_s=1)
    for number in range(400):
        slow = replace(beat(0, "window", 201, 20), doing="eval", num_batches=number)
        progress.note(slow, now=220 + number)
    progress.note(beat(0, "window", 202, 1), now=620)
    progress.note(beat(0, "window", 202, 1), now=651)
    failure = progress.failure(now=651)
    assert failure is not None
    assert failure.reason.startswith("no step for 30 s;")


def test_the_first_step_gets_ten_times_the_floor() -> None:
    progress = HangDetection(LIMITS, 1, now=0)
    progress.note(beat(0, "setup"), now=1)
    for now in range(2, 303):
        progress.note(beat(0, "warmup"), now)
        assert progress.failure(now) is None
    progress.note(beat(0, "warmup"), now=303)
    failure = progress.failure(now=303)
    assert failure is not None
    assert failure.status == "hang"


def test_a_silent_rank_is_a_hang_in_any_phase() -> None:
    progress = HangDetection(LIMITS, 3, now=0)
    for now in range(31):
        progress.note(beat(1, "setup"), now)
    failure = progress.failure(now=31)
    assert failure is not None
    assert (failure.status, failure.ranks) == ("hang", (0, 2))
    assert failure.reason == "ranks 0, 2 are silent for 30 s, before any sign of life"


@pytest.mark.parametrize(
    ("silent", "other", "where"),
    [
        (beat(0, "warmup", 1), "window", "in warmup at step 1 of 100"),
        (beat(0, "window", 7), "warmup", "in window at step 7 of 100"),
    ],
    ids=["behind the other", "ahead of the other"],
)
def test_a_silent_rank_is_where_it_was_last_heard_however_far_the_others_are(
    silent: Heartbeat, other: str, where: str
) -> None:
    progress = HangDetection(LIMITS, 2, now=0)
    progress.note(silent, now=0)
    for now in range(31):
        progress.note(beat(1, other, now), now)
    failure = progress.failure(now=31)
    assert failure is not None
    assert (failure.ranks, failure.phase) == ((0,), "window")
    assert failure.reason == f"rank 0 is silent for 30 s, {where}"


def test_a_rank_that_was_never_heard_has_no_place() -> None:
    failure = HangDetection(LIMITS, 1, now=0).failure(now=31)
    assert failure is not None
    assert failure.reason == "rank 0 is silent for 30 s, before any sign of life"
    assert failure.phase is None


def test_news_after_a_long_wait_of_the_driver_clears_everyone() -> None:
    progress = HangDetection(LIMITS, 1, now=0)
    stepping(progress, until=10, step_s=1)
    progress.note(beat(0, "window", 40, 1), now=100)
    assert progress.failure(now=100) is None


def test_progress_until_the_limit_is_a_timeout() -> None:
    progress = HangDetection(LIMITS, 1, now=0)
    stepping(progress, until=601, step_s=1)
    failure = progress.failure(now=601)
    assert failure is not None
    assert failure.status == "timeout"
    assert failure.reason == (
        "not done after 600 s, in window at step 601 of 100; raise limits.cell_timeout_s to let it go on"
    )


TALK_S = 121  # Of two ranks: two minutes, and half a second for each.


def of_cells(num_ranks: int = 2, preset: str = "llama-tiny") -> SessionLimits:
    recipe = replace(run_of(sweep()).cell.recipe, world_size=num_ranks, model=PRESETS[preset])
    job = Job(run_id="r", recipe=recipe, window=Window(), vendor="cpu")
    return limits_of_jobs((job,), LIMITS)


def standing(progress: HangDetection, of_rank_0: Heartbeat, of_rank_1: Heartbeat, *, until: int) -> None:
    """Both ranks beat from second 1 on, and nothing changes; ``until`` is still in time."""
    for now in range(1, until + 1):
        progress.note(of_rank_0, now)
        progress.note(of_rank_1, now)
        assert progress.failure(now) is None, now


@pytest.mark.parametrize("phase", ["setup", "gather", "teardown"])
def test_ranks_of_a_cell_that_only_talk_are_not_given_the_whole_limit_of_the_cell(phase: str) -> None:
    progress = HangDetection(of_cells(), 2, now=0)
    standing(progress, beat(0, phase), beat(1, phase), until=TALK_S)
    failure = progress.failure(now=TALK_S + 1)
    assert failure is not None
    assert (failure.status, failure.phase, failure.ranks) == ("hang", phase, (0, 1))
    assert failure.reason == (
        f"no step for 121 s; ranks 0, 1 are furthest behind, in {phase}; ranks that can't reach each other "
        "stand like this: `longhaul doctor` tries the links; name the interface (NCCL_SOCKET_IFNAME, "
        "GLOO_SOCKET_IFNAME), and open all ports between the nodes"
    )


def test_more_ranks_may_talk_for_longer() -> None:
    assert of_cells(1000).patience_s["setup"] == 620


def test_a_slow_rank_that_builds_its_model_is_waited_for_and_for_longer_the_larger_the_model() -> None:
    building = replace(beat(1, "setup"), doing="building the model")
    progress = HangDetection(of_cells(), 2, now=0)
    # Not until the end of the cell, which comes before.
    standing(progress, beat(0, "setup"), building, until=600)
    names = ("llama-tiny", "llama-3.1-8b")
    small, large = (of_cells(preset=name).patience_s[building.doing] for name in names)
    assert small > 721 and large - small > 1500


def test_what_a_spec_asks_to_wait_for_and_the_writing_of_a_trace_are_no_hang() -> None:
    for phase in ("cooldown", "trace"):
        standing(HangDetection(of_cells(), 2, now=0), beat(0, phase), beat(1, "teardown"), until=600)


def test_one_phase_without_any_change_until_the_limit_is_a_hang() -> None:
    progress = HangDetection(LIMITS, 1, now=0)
    for now in range(601):
        progress.note(beat(0, "setup"), now)
        assert progress.failure(now) is None
    progress.note(beat(0, "setup"), now=601)
    failure = progress.failure(now=601)
    assert failure is not None
    assert (failure.status, failure.reason) == ("hang", "no change of phase for 600 s, in setup")


def test_a_rank_that_waits_for_the_others_results_is_not_the_one_behind() -> None:
    progress = HangDetection(LIMITS, 2, now=0)
    stepping(progress, until=10, step_s=1, ranks=2)
    for now in range(11, 43):
        progress.note(beat(0, "gather"), now)
        progress.note(beat(1, "window", 10), now)
    failure = progress.failure(now=42)
    assert failure is not None
    assert failure.ranks == (1,)
    assert progress.phase == "gather"


def test_profiled_steps_are_steps() -> None:
    progress = HangDetection(LIMITS, 1, now=0)
    stepping(progress, until=10, step_s=1)
    progress.note(beat(0, "gather"), now=11)
    for now in range(12, 53):
        progress.note(beat(0, "profile", 1, 1), now)
    failure = progress.failure(now=52)
    assert failure is not None
    assert failure.reason == "no step for 30 s; rank 0 is furthest behind, in profile at step 1 of 100"


def on_device(rank: int, launched: int, done: int, marks: int = 0) -> Heartbeat:
    return replace(beat(rank, "window", launched, 1), device_step=done, device_marks=marks)


def blamed(stands: list[Heartbeat]) -> tuple[tuple[int, ...], str]:
    """Who is blamed once these ranks have stood still for long, after steps in time."""
    progress = HangDetection(LIMITS, len(stands), now=0)
    stepping(progress, until=40, step_s=1, ranks=len(stands))
    for now in (41, 72):
        for stand in stands:
            progress.note(stand, now)
    failure = progress.failure(now=72)
    assert failure is not None and failure.status == "hang"
    return failure.ranks, failure.reason


@pytest.mark.parametrize("guilty", range(3))
def test_a_device_that_hangs_is_blamed_however_far_hosts_launched_and_whoever_is_heard_first(
    guilty: int,
) -> None:
    """The others wait at step 42 for its gradients, with all their own kernels done."""
    for launched in product((42, 43), repeat=3):
        for places in (((41, 0), (41, 2)), ((41, 1), (41, 2)), ((40, 2), (41, 0))):
            of_guilty, of_others = places
            stands = [
                on_device(rank, launched[rank], *(of_guilty if rank == guilty else of_others))
                for rank in range(3)
            ]
            for order in permutations(stands):
                ranks, reason = blamed(list(order))
                assert ranks == (guilty,)
                assert reason == (
                    f"no step for 30 s; rank {guilty} is furthest behind, in window at step "
                    f"{launched[guilty]} of 100, its device done with step {of_guilty[0]}"
                )


def test_devices_that_are_equally_far_leave_the_blame_to_their_hosts() -> None:
    ranks, _ = blamed([on_device(0, 42, 41), on_device(1, 41, 41), on_device(2, 42, 41)])
    assert ranks == (1,)


def test_a_device_of_which_nothing_is_known_is_not_compared_with_others() -> None:
    assert blamed([on_device(0, 41, 40), beat(1, "window", 42, 1)])[0] == (0,)
    ranks, reason = blamed([on_device(0, 42, 40), beat(1, "window", 41, 1)])
    assert ranks == (1,)
    assert reason.endswith("in window at step 41 of 100")
