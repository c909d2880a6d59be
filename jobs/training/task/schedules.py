"""The learning rate as a share of the full rate, computed from the number of updates alone. Pure.

A resumed training needs nothing but that number, and every strategy has the same rate at the same step.
"""

import math
from typing import assert_never

from jobs.training.task.job import OptimizerConfig


def lr_factor(num_updates: int, config: OptimizerConfig) -> float:
    """The share of the full learning rate for the update that follows ``num_updates`` others.

    In the warm-up the n-th update has n / ``warmup_steps``. After it the share is 1 under the constant
    schedule. Under the others it falls to ``min_lr_ratio``, reached after ``decay_steps`` updates in all, and
    stays there.
    """
    warmup = config.warmup_steps
    if num_updates < warmup:
        return (num_updates + 1) / warmup
    if config.schedule == "constant" or config.decay_steps is None:
        return 1.0
    if num_updates >= config.decay_steps:
        return config.min_lr_ratio
    done = (num_updates - warmup) / (config.decay_steps - warmup)
    return config.min_lr_ratio + (1.0 - config.min_lr_ratio) * _remaining(done, config)


def _remaining(done: float, config: OptimizerConfig) -> float:
    """The part of the decay that is left: falls from 1 to 0 while ``done`` goes from 0 to 1."""
    match config.schedule:
        case "constant":
            return 1.0
        case "linear":
            return 1.0 - done
        case "cosine":
            return (1.0 + math.cos(math.pi * done)) / 2.0
        case unknown:
            assert_never(unknown)
