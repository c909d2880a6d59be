"""What a check for silent corruption costs, in steps: steps with one, beside the same steps without any. And
what a rank's look at its own speed costs.

One rank in a process of its own, so nothing is sent; of each way a step in turn.
"""

import json
import sys
import time
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from checkpointing.stores.memory import MemoryStore
from jobs.training.data.samples import Samples
from jobs.training.health.rank_speed import RankSpeed
from jobs.training.integrity.checking import Checks
from jobs.training.state.random_state import seed
from jobs.training.step import train_step
from jobs.training.strategies.build import build
from jobs.training.task.context import Context
from jobs.training.task.task import Task
from tests.bench.apart import apart
from tests.bench.ways import RECIPE, join_group

NUM_PAIRS, WARMUP = 20, 4
EVERY = 200
# Of the time of a run that checks each 200 steps.
BOUND = 0.012
# Of the time of any run.
SPEED_EVERY_S, SPEED_BOUND, NUM_LOOKS = 5.0, 0.01, 40
CPU = torch.device("cpu")


def main() -> bool:
    shares = []
    for grad_accum in (1, 4):
        found = apart(__name__, grad_accum)
        pairs = zip(found["plain_s"], found["checked_s"], strict=True)
        plain_s, more_s = median(found["plain_s"]), median(checked - plain for plain, checked in pairs)
        shares.append(more_s / (EVERY * plain_s))
        print(
            f"{'' if len(shares) > 1 else 'checks':14} costs {more_s:.3f} s, {more_s / plain_s:.2f} steps "
            f"of {plain_s:.3f} s with grad_accum {grad_accum}: {shares[-1]:.2%}, each {EVERY} steps"
        )
    size = f"{found['num_bytes'] / 1e9:.2f} GB of state"
    print(f"               {size}, {NUM_PAIRS} pairs of steps with and without (bound {BOUND:.1%})")
    speed = found["speed_s"]
    print(
        f"{'':14} a look at speed takes {speed * 1e3:.1f} ms each {SPEED_EVERY_S:g} s: "
        f"{speed / SPEED_EVERY_S:.2%} (bound {SPEED_BOUND:.0%})"
    )
    return max(shares) <= BOUND and speed <= SPEED_BOUND * SPEED_EVERY_S


def _measure(grad_accum: int) -> dict[str, Any]:
    """In the process of its own."""
    join_group()
    seed(RECIPE.seed, 0, CPU)
    recipe = replace(RECIPE, grad_accum=grad_accum)
    task = Task(
        run="bench", store=MemoryStore().url, recipe=recipe, vendor="cpu", simulated=False, num_steps=10**6,
        num_samples=256, saving=None, term=1, attempt="word", lineage="line", resume="latest", check_every=1,
    )  # fmt: skip
    context = Context(rank=0, world_size=1, local_rank=0, device=CPU)
    engine, samples = build(recipe, CPU), Samples(task, context)
    checks = Checks(task, context, engine, samples, 0, lambda _: None)
    taken: dict[bool, list[float]] = {False: [], True: []}
    for step in range(1, 2 * (WARMUP + NUM_PAIRS) + 1):
        rows = samples.rows((step - 1) * recipe.sequences_per_step)
        is_checked = step % 2 == 0
        started = time.perf_counter()
        if is_checked:
            checks.check(step, rows)
        train_step(engine, samples.on_device(rows), before_update=checks.conclude).item()
        taken[is_checked].append(time.perf_counter() - started)
    num_bytes = sum(piece.values.nbytes for piece in engine.targets())
    engine.close()
    return {
        "plain_s": taken[False][WARMUP:],
        "checked_s": taken[True][WARMUP:],
        "num_bytes": num_bytes,
        "speed_s": _look_s(context),
    }


def _look_s(context: Context) -> float:
    """What a rank's look at its own speed takes."""
    later = 0.0
    rank_speed, taken = RankSpeed(context, lambda: time.perf_counter() + later), []
    for _ in range(NUM_LOOKS):
        later += SPEED_EVERY_S
        started = time.perf_counter()
        rank_speed.update()
        taken.append(time.perf_counter() - started)
    return median(taken)


if __name__ == "__main__":
    print(json.dumps(_measure(int(sys.argv[1]))))
