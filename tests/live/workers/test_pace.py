"""A rank times its own device now and then, and the training doesn't notice."""

import time

import torch

from jobs.training.health.rank_speed import RankSpeed
from jobs.training.task.context import Context


class Later:
    """The real clock, put forward by what it is told."""

    def __init__(self) -> None:
        self.by_s = 0.0

    def __call__(self) -> float:
        return time.perf_counter() + self.by_s


def test_every_few_seconds_a_product_is_timed_that_draws_no_random_number() -> None:
    context = Context(rank=0, world_size=1, local_rank=0, device=torch.device("cpu"))
    ticks, drawn = Later(), torch.get_rng_state()
    pace = RankSpeed(context, ticks)
    paces = []
    for _ in range(3):
        pace.update()
        paces.append(context.status.pace_s)
        pace.update()
        paces.append(context.status.pace_s)
        ticks.by_s += 5
    first, same, second, still, third, last = paces
    assert first == same == 0.0
    assert 0 < second == still != third == last
    assert bool((torch.get_rng_state() == drawn).all())
