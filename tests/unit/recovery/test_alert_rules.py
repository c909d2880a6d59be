"""Alarms: what raises each, what takes it back, and that quiet trainings raise none."""

import json
import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.alerts.rules import Alarm, Alarms, Bounds, Wanted
from jobs.execution.messages import Heartbeat
from jobs.training.task.events import Evaluated, Progress

RECORDED = Path(__file__).parents[2] / "golden" / "recorded_progress.json"
EVERY_MINUTE = Wanted(every_s=60.0, every_steps=None)
USUAL = Progress(
    step=0,
    num_steps=100_000,
    loss=3.0,
    tokens_per_s=1000.0,
    durable_step=None,
    durable_s=None,
    num_failed_saves=0,
    num_skipped_saves=0,
)
BEAT = Heartbeat(run_id="", rank=0, phase="window", step=1, num_steps=9, step_s=1.0, memory_bytes=0)


def raised(told: Iterable[Progress], alarms: Alarms | None = None, *, since: float = 0.0) -> list[Alarm]:
    """A word each second."""
    judge = alarms or Alarms(Bounds(stale_checkpoint=None), EVERY_MINUTE)
    return [alarm for second, one in enumerate(told) for alarm in judge.hear(one, since + second)]


def kinds(alarms: Iterable[Alarm]) -> list[tuple[str, bool]]:
    return [(alarm.kind, alarm.is_over) for alarm in alarms]


def words(losses: Sequence[float | None], speed: float = 1000.0) -> list[Progress]:
    return [replace(USUAL, step=n, loss=loss, tokens_per_s=speed) for n, loss in enumerate(losses, 1)]


def noisy(num: int, middle: float, share: float, seed: int) -> list[float]:
    draw = random.Random(seed)
    return [middle * (1 + draw.gauss(0, share)) for _ in range(num)]


@pytest.mark.parametrize("seed", [int(os.environ.get("LONGHAUL_SEED", "7"))])
def test_ten_thousand_simulated_quiet_steps_raise_nothing(seed: int) -> None:
    """Simulated: a falling loss with 5 % noise, a speed with 5 %, an evaluation now and then, saves in time;
    four ranks whose paces differ by 10 %, on devices that are busy for 90 %.
    """
    draw = random.Random(seed)
    told = []
    for step in range(1, 10_001):
        is_evaluated, loss = step % 50 == 0, 2.0 + 8.0 * step**-0.4
        one = replace(
            USUAL,
            step=step,
            loss=loss * (1 + draw.gauss(0, 0.05)),
            tokens_per_s=1000.0 * (1 + draw.gauss(0, 0.05)) * (0.3 if is_evaluated else 1.0),
            durable_step=step // 60 * 60,
        )
        told.append(one)
    alarms = Alarms(Bounds(), EVERY_MINUTE)
    assert raised(told, alarms) == []
    for second in range(0, 10_000, 5):
        beats = [
            replace(
                BEAT,
                rank=rank,
                pace_s=0.002 * (1 + abs(draw.gauss(0, 0.1))),
                utilization_pct=min(100.0, draw.gauss(90, 10)),
            )
            for rank in range(4)
        ]
        assert [alarm for beat in beats for alarm in alarms.hear(beat, second)] == []


def test_of_a_recorded_training_whose_cores_others_took_for_a_while_only_that_is_told() -> None:
    """Recorded of llama-tiny on two ranks: step, seconds, loss and tokens/s, about each second."""
    alarms = Alarms(Bounds(stale_checkpoint=None), EVERY_MINUTE)
    found = [
        alarm
        for step, at_s, loss, speed in json.loads(RECORDED.read_text())
        for alarm in alarms.hear(replace(USUAL, step=step, loss=loss, tokens_per_s=speed), at_s)
    ]
    assert kinds(found) == [("throughput drop", False), ("throughput drop", True)]
    assert found[0].text == "241 tokens/s, usual is 524"


def test_a_loss_that_is_not_finite_is_told_at_once_and_over_when_it_is() -> None:
    found = raised(words([3.0, None, None, 3.0]))
    assert kinds(found) == [("loss not finite", False), ("loss not finite", True)]
    assert (found[0].step, found[0].text) == (2, "the loss of step 2 is not finite")


def test_a_loss_far_above_the_usual_is_a_spike_and_a_single_odd_batch_is_none() -> None:
    usual = noisy(40, 3.0, 0.02, seed=1)
    assert raised(words([*usual, 9.0, *usual])) == []
    found = raised(words([*usual, 9.0, 9.5, 10.0, *usual]))
    assert kinds(found) == [("loss spike", False), ("loss spike", True)]
    assert found[0].facts["loss"] == 9.5
    assert found[0].text.startswith("loss 9.5000, usual is 3.0")


def test_a_loss_that_is_noisy_anyway_or_of_which_little_is_known_is_no_spike() -> None:
    noise = [2.0 + 2.0 * (n % 3) for n in range(60)]
    assert raised(words([*noise, 9.5, 9.5, 9.5])) == []
    assert raised(words([*[3.0] * 18, 9.0, 9.0])) == []
    assert len(raised(words([*[3.0] * 20, 9.0, 9.0, 9.0]))) == 1


def test_workers_that_saw_a_bad_loss_first_raise_it_too() -> None:
    alarms = Alarms(Bounds(), EVERY_MINUTE)
    text = "the loss of step 7 or its gradient is not a finite number"
    (found,) = alarms.invalid_loss(text, 1.0)
    assert (found.kind, found.text) == ("loss not finite", text)
    assert alarms.invalid_loss(text, 2.0) == []
    (found,) = alarms.invalid_loss("the loss is 9 at step 7 and has been above 4", 3.0)
    assert found.kind == "loss spike"


def test_a_device_that_computes_wrongly_is_told_of_once_in_a_while() -> None:
    alarms = Alarms(Bounds(), EVERY_MINUTE)
    (found,) = alarms.corruption("rank 1 computes other gradients", 1.0)
    assert (found.kind, found.text) == ("silent corruption", "rank 1 computes other gradients")
    assert alarms.corruption("rank 2 too", 2.0) == []


def test_a_lasting_drop_of_the_speed_is_told_and_one_slow_second_is_not() -> None:
    fast, slow = noisy(60, 1000.0, 0.05, seed=2), noisy(20, 500.0, 0.05, seed=3)

    def told(*speeds: float) -> list[Progress]:
        return [replace(USUAL, step=n, tokens_per_s=speed) for n, speed in enumerate(speeds, 1)]

    assert raised(told(*fast, 100.0, *fast)) == []
    found = raised(told(*fast, *slow, *fast))
    assert kinds(found) == [("throughput drop", False), ("throughput drop", True)]
    assert found[0].step <= 60 + 8
    assert found[0].facts["usual_tokens_per_s"] == pytest.approx(1000.0, rel=0.05)


def test_a_speed_that_comes_back_by_half_is_not_over_yet() -> None:
    told = [replace(USUAL, step=n, tokens_per_s=speed) for n, speed in enumerate([1000.0] * 60 + [600.0] * 9)]
    told += [replace(USUAL, tokens_per_s=750.0)] * 20
    assert kinds(raised(told)) == [("throughput drop", False)]
    told += [replace(USUAL, tokens_per_s=900.0)] * 9
    assert kinds(raised(told)) == [("throughput drop", False), ("throughput drop", True)]


def test_what_is_usual_is_learnt_anew_by_each_attempt() -> None:
    alarms = Alarms(Bounds(stale_checkpoint=None), EVERY_MINUTE)
    told = [replace(USUAL, step=n, tokens_per_s=1000.0) for n in range(60)]
    assert raised(told, alarms) == []
    alarms.begins()
    assert raised([replace(one, tokens_per_s=400.0) for one in told], alarms, since=100) == []


def durable(step: int, since: int) -> Progress:
    return replace(USUAL, step=step, durable_step=since)


def test_a_checkpoint_three_times_as_old_as_it_is_to_get_is_stale_until_a_newer_one_is_there() -> None:
    alarms = Alarms(Bounds(), EVERY_MINUTE)
    told = [*(durable(n, 0) for n in range(1, 190)), durable(190, 185)]
    found = raised(told, alarms)
    assert kinds(found) == [("stale checkpoint", False), ("stale checkpoint", True)]
    assert found[0].text == "nothing newly durable for 181 s and 181 steps, wanted is every 60 s"


def test_evaluating_for_long_is_no_slow_training_and_puts_nothing_at_risk() -> None:
    alarms = Alarms(Bounds(), EVERY_MINUTE)
    now, found = 0.0, []
    for step in range(1, 200):
        found += alarms.hear(Evaluated(step=step, val_loss=2.0), now)
        now += 100.0
        found += alarms.hear(replace(durable(step, step // 40 * 40), tokens_per_s=10.0), now)
        for _ in range(3):
            now += 1.0
            found += alarms.hear(durable(step, step // 40 * 40), now)
    assert found == []


def test_evaluating_after_every_step_is_no_drop_of_the_speed() -> None:
    alarms = Alarms(Bounds(stale_checkpoint=None), EVERY_MINUTE)
    assert raised([replace(USUAL, step=n) for n in range(60)], alarms) == []
    slow = replace(USUAL, tokens_per_s=10.0)
    for second in range(60, 90):
        assert alarms.hear(Evaluated(step=second, val_loss=2.0), second) == []
        assert alarms.hear(slow, second) == []


def test_a_driver_whose_run_has_an_old_checkpoint_has_the_time_to_make_a_new_one() -> None:
    alarms = Alarms(Bounds(), EVERY_MINUTE)
    alarms.begins()
    assert alarms.look(4000.0) == []
    assert raised([durable(n, 90) for n in range(100, 270)], alarms, since=5000.0) == []


def test_a_cadence_in_steps_counts_steps_as_long_as_they_are_done_however_slowly() -> None:
    alarms = Alarms(Bounds(), Wanted(every_s=None, every_steps=10))
    assert raised([durable(n, n // 10 * 10) for n in range(1, 100)], alarms) == []
    for n in range(100, 200):
        assert alarms.hear(durable(n, n // 10 * 10), 100 + 20 * (n - 100)) == []


def attempts(alarms: Alarms, *, lengths_s: Iterable[int], step: int = 0, since: float = 0.0) -> list[Alarm]:
    """Each goes on from ``step``, does one a second, saves nothing and fails; a second later the next one."""
    found = []
    for length_s in lengths_s:
        alarms.begins()
        found += raised([durable(step + n, step) for n in range(1, length_s + 1)], alarms, since=since)
        since += length_s
        alarms.failed(since)
        since += 1
    return found


def test_attempts_that_die_too_soon_to_save_anything_are_told_once_until_one_does_save() -> None:
    alarms = Alarms(Bounds(), EVERY_MINUTE)
    found = attempts(alarms, lengths_s=[50] * 20)
    assert kinds(found) == [("stale checkpoint", False)]
    assert found[0].text == "nothing newly durable for 181 s and 175 steps, wanted is every 60 s"
    alarms.begins()
    saved = raised([durable(1, 0), durable(2, 1), durable(3, 1)], alarms, since=5000.0)
    assert kinds(saved) == [("stale checkpoint", True)]


def test_steps_that_are_done_again_and_again_count_each_time() -> None:
    alarms = Alarms(Bounds(), Wanted(every_s=None, every_steps=20))
    assert kinds(attempts(alarms, lengths_s=[15] * 9)) == [("stale checkpoint", False)]


def test_to_go_on_from_what_was_saved_and_not_heard_of_is_news_and_from_something_older_is_not() -> None:
    alarms = Alarms(Bounds(), EVERY_MINUTE)
    assert attempts(alarms, lengths_s=[100], step=60) == []
    assert attempts(alarms, lengths_s=[100], step=80, since=101.0) == []
    assert kinds(attempts(alarms, lengths_s=[100], step=30, since=202.0)) == [("stale checkpoint", False)]


@pytest.mark.parametrize(
    "wanted", [Wanted(every_s=20.0, every_steps=None), Wanted(every_s=None, every_steps=20)]
)
def test_a_run_that_stands_still_between_two_attempts_is_told_and_one_that_evaluates_is_not(
    wanted: Wanted,
) -> None:
    alarms = Alarms(Bounds(), wanted)
    alarms.begins()
    assert raised([durable(n, n // 20 * 20) for n in range(1, 50)], alarms) == []
    assert alarms.look(5000.0) == []
    alarms.failed(50.0)
    assert alarms.look(99.0) == []
    (found,) = alarms.look(101.0)
    assert (found.kind, found.step) == ("stale checkpoint", 49)
    alarms.begins()
    assert alarms.look(5000.0) == []


def test_a_driver_of_which_no_attempt_ever_trains_counts_from_the_first_that_failed() -> None:
    alarms = Alarms(Bounds(), EVERY_MINUTE)
    for now in (10.0, 100.0, 180.0):
        alarms.failed(now)
        assert alarms.look(now) == []
    assert kinds(alarms.look(191.0)) == [("stale checkpoint", False)]


def test_a_run_that_is_given_up_is_told() -> None:
    (found,) = Alarms(Bounds(), EVERY_MINUTE).given_up("3 errors: rank 1: boom", 5.0)
    assert (found.kind, found.text) == ("given up", "3 errors: rank 1: boom")


def test_a_cadence_in_steps_is_held_against_steps() -> None:
    alarms = Alarms(Bounds(), Wanted(every_s=60.0, every_steps=1000))
    assert raised([durable(n, 0) for n in range(500)], alarms) == []
    alarms = Alarms(Bounds(), Wanted(every_s=None, every_steps=10))
    (found,) = raised([durable(n, 0) for n in range(1, 40)], alarms)
    assert (found.kind, found.step) == ("stale checkpoint", 32)


@pytest.mark.parametrize(
    "wanted", [Wanted(every_s=1.0, every_steps=None), Wanted(every_s=None, every_steps=1)]
)
def test_a_store_has_half_a_minute_however_often_it_is_asked(wanted: Wanted) -> None:
    assert raised([durable(n, 0) for n in range(31)], Alarms(Bounds(), wanted)) == []
    assert len(raised([durable(n, 0) for n in range(33)], Alarms(Bounds(), wanted))) == 1


def test_where_nothing_is_saved_nothing_is_stale() -> None:
    alarms = Alarms(Bounds(), Wanted(every_s=None, every_steps=None))
    assert raised([durable(n, 0) for n in range(2000)], alarms) == []


@pytest.mark.parametrize(("node", "who"), [("", "rank 2"), ("gpu-7", "rank 2 on gpu-7")])
def test_a_rank_that_takes_longer_by_itself_is_a_straggler(node: str, who: str) -> None:
    alarms = Alarms(Bounds(), EVERY_MINUTE)
    found: list[Alarm] = []
    draw = random.Random(4)
    for second in range(60):
        for rank in range(4):
            slower = 2.0 if rank == 2 and 20 <= second < 40 else 1.0
            pace_s = 0.002 * slower * (1 + draw.gauss(0, 0.05))
            beat = replace(BEAT, rank=rank, pace_s=pace_s, node=node if rank == 2 else "")
            found += alarms.hear(beat, second)
    assert kinds(found) == [("straggler", False), ("straggler", True)]
    assert (found[0].facts["rank"], found[0].facts.get("node", "")) == (2, node)
    assert found[0].text.startswith(f"{who} takes ")


def test_a_rank_that_copies_slowly_is_told_with_its_node_though_its_product_is_as_fast_as_any() -> None:
    alarms, found = Alarms(Bounds(), EVERY_MINUTE), list[Alarm]()
    for second in range(60):
        for rank in range(4):
            slower = 3.0 if rank == 1 and 20 <= second < 40 else 1.0
            times = {"pace_s": 0.001 * (1 + min(second, 9)), "copy_s": 0.002 * slower * (1 + second * 1e-6)}
            found += alarms.hear(replace(BEAT, rank=rank, node=f"host-{rank}", **times), second)
    assert kinds(found) == [("straggler", False), ("straggler", True)]
    assert found[0].text == (
        "rank 1 on host-1 takes 3.00 times as long as the others for the same copy from host memory"
    )
    assert {**found[0].facts, "ratio": 3} == {"rank": 1, "ratio": 3, "work": "copy", "node": "host-1"}


def test_a_throttled_rank_is_no_less_slow_because_most_looks_meet_it_between_throttles() -> None:
    alarms, found = Alarms(Bounds(), EVERY_MINUTE), list[Alarm]()
    for second in range(400):
        for rank in range(3):
            is_throttled = rank == 1 and (second < 20 or (second < 300 and second % 3 == 0))
            pace_s = (0.02 if is_throttled else 0.002) * (1 + second * 1e-6)
            found += alarms.hear(replace(BEAT, rank=rank, pace_s=pace_s), second)
        if second == 299:
            assert kinds(found) == [("straggler", False)]
    assert kinds(found) == [("straggler", False), ("straggler", True)]


def test_a_rank_alone_is_no_straggler_and_a_pace_that_is_told_again_counts_once() -> None:
    alarms = Alarms(Bounds(), EVERY_MINUTE)
    beats = [replace(BEAT, rank=rank, pace_s=pace) for rank, pace in ((0, 0.1), (1, 0.9))]
    alone = [alarm for second in range(99) for alarm in alarms.hear(replace(BEAT, pace_s=second), second)]
    told_again = [alarm for second in range(99) for beat in beats for alarm in alarms.hear(beat, second)]
    assert (alone, told_again) == ([], [])


def test_a_device_that_idles_for_a_minute_is_told_and_one_that_tells_nothing_is_not() -> None:
    alarms = Alarms(Bounds(), EVERY_MINUTE)
    silent = [alarm for second in range(300) for alarm in alarms.hear(BEAT, second)]
    busy = [
        alarm
        for second in range(300)
        for alarm in alarms.hear(replace(BEAT, utilization_pct=95.0), second / 2)
    ]
    idle = [
        alarm
        for second in range(300)
        for alarm in alarms.hear(replace(BEAT, rank=1, utilization_pct=5.0), second / 2)
    ]
    assert (silent, busy, kinds(idle)) == ([], [], [("low utilization", False)])
    assert idle[0].text == "the device of rank 1 was busy for 5 % of the last minute"


def test_a_device_that_idles_for_less_than_a_minute_is_not_told() -> None:
    alarms, idle = Alarms(Bounds(), EVERY_MINUTE), replace(BEAT, utilization_pct=5.0)
    assert [alarm for second in range(55) for alarm in alarms.hear(idle, second)] == []
    assert len([alarm for second in range(55, 57) for alarm in alarms.hear(idle, second)]) == 1


def test_between_bad_and_good_nothing_is_told_and_not_twice_within_the_interval() -> None:
    alarms = Alarms(Bounds(stale_checkpoint=None, min_interval_s=300.0), EVERY_MINUTE)
    flapping = words([3.0, None] * 200)
    found = raised(flapping, alarms)
    rings = [alarm.step for alarm in found if not alarm.is_over]
    assert rings == [2, 302]


def test_what_is_switched_off_is_never_raised_but_a_loss_that_is_no_number() -> None:
    bounds = Bounds(
        loss_spike=None, throughput_drop=None, straggler=None, stale_checkpoint=None, utilization_pct=None
    )
    alarms = Alarms(bounds, EVERY_MINUTE)
    found = raised(words([*[3.0] * 50, *[90.0] * 400], speed=1.0), alarms)
    slow = replace(BEAT, rank=1, utilization_pct=0.0)
    for second in range(200):
        found += alarms.hear(replace(BEAT, pace_s=second), second)
        found += alarms.hear(replace(slow, pace_s=9 * second), second)
    assert found == []
    assert kinds(raised(words([None]), alarms)) == [("loss not finite", False)]


def test_a_minute_of_waiting_for_samples_is_told_and_a_slow_beginning_is_not() -> None:
    def told(*shares: float | None) -> list[Progress]:
        return [replace(USUAL, step=n, data_wait_share=share) for n, share in enumerate(shares, 1)]

    assert raised(told(*[0.9] * 29, *[0.0] * 200)) == []
    assert raised(told(*[None] * 200)) == []
    assert raised(told(*[0.19] * 200)) == []
    # Above the half of its bound it is not over.
    found = raised(told(*[0.43] * 60, *[0.11] * 100, *[0.05] * 60))
    assert kinds(found) == [("waiting for data", False), ("waiting for data", True)]
    assert found[0].text == "the training waited for samples for 43% of the last minute"
    assert [found[0].step, found[1].step] == [60, 190]
    alarms = Alarms(Bounds(stale_checkpoint=None), EVERY_MINUTE)
    raised(told(*[0.9] * 59), alarms)
    alarms.begins()
    assert raised(told(*[0.9] * 59), alarms, since=100) == []
    assert (
        raised(told(*[0.9] * 200), Alarms(Bounds(stale_checkpoint=None, data_wait=None), EVERY_MINUTE)) == []
    )
