"""``python -m tests.live.gauges.made_up_devices``: gauges of made-up devices, on the Ray of RAY_ADDRESS.

A CPU tells neither its power nor its peak, so a real training here lacks these two metrics.
"""

import os
import signal
import time
from dataclasses import replace

import ray

from jobs.gauges.emitter import Emitter
from jobs.gauges.ray_gauges import RayGauges
from jobs.gauges.run_gauges import RunGauges
from tests.unit.gauges.test_run_gauges import BEAT, RECIPE, STATUS

RUN = "made-up"


def main() -> None:
    ray.init(address=os.environ["RAY_ADDRESS"], logging_level="ERROR")
    gauges = RunGauges("NVIDIA H100 80GB HBM3", time.monotonic())
    gauges.begins(replace(RECIPE, precision="bf16"), time.monotonic())
    gauges.tell(STATUS)
    for rank in range(2):
        gauges.hear(replace(BEAT, rank=rank, pace_s=1.0 + rank, power_watts=300.0), time.monotonic())
    with Emitter(gauges, RayGauges(RUN).publish, every_s=1.0):
        signal.pause()


if __name__ == "__main__":
    main()
