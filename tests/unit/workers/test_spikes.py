"""When a loss counts as gone wrong, and when it is only a noisy one."""

import random
from collections.abc import Iterable

from jobs.training.task.spikes import Spike, SpikeBound, Spikes

BOUND = SpikeBound()
ENOUGH = BOUND.num_recent // 2


def noisy(level: float, number: int, *, noise: float, seed: int = 0) -> list[float]:
    dice = random.Random(seed)
    return [level + dice.gauss(0.0, noise) for _ in range(number)]


def spikes_in(losses: Iterable[float], bound: SpikeBound = BOUND) -> list[Spike]:
    eye = Spikes(bound)
    return [found for loss in losses if (found := eye.add(loss)) is not None]


def test_a_loss_that_stays_high_is_a_spike_at_its_third_look() -> None:
    (spike,) = spikes_in([*noisy(2.5, ENOUGH, noise=0.05), 5.0, 5.5, 6.0])
    assert spike.loss == 6.0
    assert 3.5 < spike.bound < 4.5


def test_an_odd_batch_is_none() -> None:
    losses = noisy(2.5, 200, noise=0.05)
    for place in range(50, 200, 10):
        losses[place] = losses[place + 1] = 9.0
    assert spikes_in(losses) == []


def test_before_enough_was_seen_nothing_is_too_high() -> None:
    assert spikes_in([*noisy(2.5, ENOUGH - 1, noise=0.05), *[50.0] * 3]) == []


def test_what_falls_as_trainings_do_is_never_too_high() -> None:
    falling = [11.0 * 0.97**number + 2.0 for number in range(500)]
    noise = noisy(0.0, 500, noise=0.1, seed=3)
    assert spikes_in(map(sum, zip(falling, noise, strict=True))) == []


def test_noise_alone_is_no_spike_whatever_its_size() -> None:
    for seed, noise in enumerate((0.001, 0.05, 0.3)):
        assert spikes_in(noisy(2.5, 10_000, noise=noise, seed=seed)) == [], seed


def test_a_small_loss_may_be_noisy_in_proportion() -> None:
    losses = [abs(loss) for loss in noisy(0.1, 5000, noise=0.05)]
    highest = 1.5 * 0.1
    assert any(min(three) > highest for three in zip(losses, losses[1:], losses[2:], strict=False))
    assert spikes_in(losses) == []


def test_a_loss_that_creeps_up_is_followed() -> None:
    assert spikes_in([2.0 + 0.005 * number for number in range(1000)]) == []


def test_a_spike_does_not_raise_its_own_bound() -> None:
    losses = [*noisy(2.5, ENOUGH, noise=0.05), *[6.0] * 30]
    found = spikes_in(losses)
    assert len(found) == 28
    assert len({spike.bound for spike in found}) == 1
