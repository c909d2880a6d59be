"""What telling the time costs a step: all that ``benchmark`` does at a step border."""

import time

import torch

from jobs.training.benchmark.timing import HostTimer
from jobs.training.task.context import RankStatus

NUM_BORDERS = 100_000
# The fastest step that we claim to measure; below it the Python of a step dominates anyway.
FASTEST_STEP_S = 1e-3
BOUND = 0.005


def main() -> bool:
    timer, status, device = HostTimer(), RankStatus(), torch.device("cpu")
    started = time.perf_counter()
    previous = started
    for index in range(NUM_BORDERS):
        if device.type == "cuda":
            torch.cuda.synchronize()
        timer.mark()
        now = time.perf_counter()
        status.step, status.step_s = index + 1, now - previous
        previous = now
    cost_s = (time.perf_counter() - started) / NUM_BORDERS
    share = cost_s / FASTEST_STEP_S
    print(f"timing calls   {cost_s * 1e6:.2f} us per step over {NUM_BORDERS:,} steps")
    print(f"               {share:.3%} of a step of {FASTEST_STEP_S * 1e3:.0f} ms (bound {BOUND:.1%})")
    return share < BOUND
