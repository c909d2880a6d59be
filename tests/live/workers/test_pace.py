"""A rank times its own device and memory now and then, and the training doesn't notice."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from jobs.alerts.rules import Alarm, Alarms, Bounds, Wanted
from jobs.execution.messages import Heartbeat
from jobs.training.health.rank_speed import RankSpeed
from jobs.training.task.context import Context, RankStatus
from tests.live.ranks import run_ranks

NUM_RANKS, NUM_LOOKS = 3, 9
SLOWER = 10


class Later:
    """The real clock, put forward by what it is told."""

    def __init__(self) -> None:
        self.by_s = 0.0

    def __call__(self) -> float:
        return time.perf_counter() + self.by_s


def test_every_few_seconds_a_product_and_a_copy_are_timed_that_draw_no_random_number() -> None:
    context = Context(rank=0, world_size=1, local_rank=0, device=torch.device("cpu"))
    ticks, drawn = Later(), torch.get_rng_state()
    pace = RankSpeed(context, ticks)
    paces = []
    for _ in range(3):
        pace.update()
        paces.append((context.status.pace_s, context.status.copy_s))
        pace.update()
        paces.append((context.status.pace_s, context.status.copy_s))
        ticks.by_s += 5
    first, same, second, still, third, last = paces
    assert first == same == (0.0, 0.0)
    assert second == still
    assert third == last
    assert all(0 < before != after for before, after in zip(second, third, strict=True))
    assert bool((torch.get_rng_state() == drawn).all())


def time_in_turn(slow_rank: int, work: str) -> list[RankStatus]:
    """Runs on a rank: what it tells of itself, time after time. No two ranks work at the same moment.

    What the slow rank is asked to do once is done so often by what lies below.
    """
    torch.set_num_threads(1)
    rank, ticks = dist.get_rank(), Later()
    context = Context(rank=rank, world_size=NUM_RANKS, local_rank=0, device=torch.device("cpu"))
    speed, told = RankSpeed(context, ticks), []
    with pytest.MonkeyPatch.context() as patch:
        if rank == slow_rank:
            patch.setattr(*repeated(torch, "mm") if work == "product" else repeated(torch.Tensor, "copy_"))
        for number in range(NUM_LOOKS * NUM_RANKS):
            if number % NUM_RANKS == rank:
                ticks.by_s += 5
                speed.update()
                told.append(replace(context.status))
            dist.barrier()
    return told


def repeated(owner: Any, name: str) -> tuple[Any, str, Callable[..., Any]]:
    once = getattr(owner, name)

    def often(*given: Any, **named: Any) -> Any:
        return [once(*given, **named) for _ in range(SLOWER)][-1]

    return owner, name, often


@pytest.mark.parametrize("work", ["product", "copy"])
def test_a_rank_whose_device_or_memory_is_slow_is_named_with_its_node_and_by_what_it_is_slow(
    work: str, tmp_path: Path
) -> None:
    told = run_ranks(time_in_turn, 1, work, num_ranks=NUM_RANKS, tmp_path=tmp_path, deadline_s=120)

    alarms, found = Alarms(Bounds(straggler=2.0), Wanted(every_s=None, every_steps=None)), list[Alarm]()
    for look in range(NUM_LOOKS):
        for rank, status in enumerate(of_rank[look] for of_rank in told):
            beat = Heartbeat(
                run_id="r", rank=rank, phase="window", step=look, num_steps=99, step_s=1.0, memory_bytes=0,
                pace_s=status.pace_s, copy_s=status.copy_s, node=f"gpu-{rank}",
            )  # fmt: skip
            found += alarms.hear(beat, 5.0 * look)

    (alarm,) = found
    assert (alarm.kind, alarm.is_over) == ("straggler", False)
    assert (alarm.facts["rank"], alarm.facts["node"], alarm.facts["work"]) == (1, "gpu-1", work)
