"""What looking at a device costs of a core, at ten looks a second, beside starting a program for each look.

The device is a record: what a real driver's own code costs comes on top and has not been measured.
"""

import resource
import subprocess
import time
from collections.abc import Callable

from cluster.telemetry.nvml import open_nvml
from cluster.telemetry.readings import Nothing, Telemetry
from cluster.telemetry.sampler import Sampler
from tests.unit.devices import ADDRESS, H100

EVERY_S = 0.1
SPAN_S = 8.0
BOUND_PCT = 0.5


def main() -> bool:
    nothing = _of_a_core(lambda: _looking_at(Nothing(reason="to see what the bench itself costs")))
    looking = _of_a_core(lambda: _looking_at(open_nvml(H100(), ADDRESS)))
    starting = _of_a_core(_starting_programs)
    print(f"telemetry      {looking:.3f} % of a core at {1 / EVERY_S:.0f} looks/s (bound {BOUND_PCT} %)")
    print(
        f"               without a device {nothing:.3f} %, a program started for each look {starting:.3f} %"
    )
    return looking < BOUND_PCT


def _of_a_core(work: Callable[[], None]) -> float:
    before, started = _spent_s(), time.perf_counter()
    work()
    return 100 * (_spent_s() - before) / (time.perf_counter() - started)


def _spent_s() -> float:
    """By this process and those that it started."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _looking_at(telemetry: Telemetry) -> None:
    sampler = Sampler(telemetry, every_s=EVERY_S)
    sampler.start()
    try:
        sampler.begin()
        time.sleep(SPAN_S)
        sampler.end()
    finally:
        sampler.close()


def _starting_programs() -> None:
    """As ``nvidia-smi`` in a loop does, if it did nothing else."""
    ends = time.perf_counter() + SPAN_S
    while time.perf_counter() < ends:
        subprocess.run(["/bin/true"], check=True)
        time.sleep(EVERY_S)
