"""The example of Ray Train, a worker of which is killed once: ``killed_in_ray STEP MARK STORE STEPS``.

``STEP`` -1 kills nobody. The Ray that it starts is its own, and is ended with it.
"""

import importlib
import os
import sys
from pathlib import Path

import torch.distributed as dist

from cluster.local_ray.private_ray import private_ray
from tests.live.durable.forked import example_of, kill_this_process_at


def loop(config: dict) -> None:
    """The example's loop. Ray calls it in each worker, where the example is as it stands in the docs."""
    if dist.get_rank() == 1 and (step := int(os.environ["KILLED_AT"])) >= 0:
        kill_this_process_at(step, once=Path(os.environ["KILLED_ONCE"]))
    example_of("ray_train").loop(config)


if __name__ == "__main__":
    os.environ["KILLED_AT"], os.environ["KILLED_ONCE"], store, num_steps = sys.argv[1:]
    example = example_of("ray_train")
    # Workers import what this file is called by, not ``__main__``.
    example.loop = importlib.import_module("tests.live.durable.killed_in_ray").loop
    with private_ray(num_cpus=2):
        example.main(store, int(num_steps))
