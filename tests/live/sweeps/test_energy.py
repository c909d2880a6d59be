"""The energy of a window that really ran, of a device that is made up: no test here has had a real one."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from cluster.telemetry.readings import Reading
from jobs.sweeps.rows.energy import power_of
from jobs.training.benchmark.measure import measure
from jobs.training.task.context import Context
from jobs.training.task.job import Job, Window
from jobs.training.task.measurement import Measurement
from tests.live.ranks import run_ranks
from tests.unit.builders import cells_of, sweep

WATTS = 250.0


class Heater:
    """Draws the same power all the time; its counter is ``off`` by that factor."""

    def __init__(self, off: float) -> None:
        self._off = off

    def settings(self) -> dict[str, str]:
        return {}

    def read(self) -> Reading:
        return Reading(
            energy_joules=self._off * WATTS * time.perf_counter(),
            power_watts=WATTS,
            power_cap_watts=500.0,
            power_cap_default_watts=700.0,
            clock_mhz=1_400.0,
            throttle=("power cap",),
        )


def measured(off: float) -> Measurement | None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    context = Context(
        rank=rank, world_size=world_size, local_rank=rank, device=torch.device("cpu"), node="here"
    )
    recipe = replace(cells_of(sweep())[0].recipe, world_size=world_size)
    job = Job(run_id="a", recipe=recipe, window=Window(steps=200, warmup=2), vendor="cpu")
    return measure(job, context, Heater(off))


@pytest.mark.soak
@pytest.mark.parametrize(("off", "is_believed"), [(1.0, True), (1.5, False)])
def test_a_windows_energy_is_all_ranks_counters_where_their_power_agrees(
    tmp_path: Path, off: float, is_believed: bool
) -> None:
    found, _ = run_ranks(measured, off, num_ranks=2, tmp_path=tmp_path)
    assert found is not None
    power = power_of(found.ranks, num_tokens=1_000)
    assert power is not None and power.energy_integrated_joules is not None
    # A look before the window and one after it: a little more than the window, on each of two ranks.
    assert power.energy_integrated_joules > 0.98 * 2 * WATTS * found.window_s
    if is_believed:
        assert power.energy_joules == pytest.approx(power.energy_integrated_joules, rel=0.1)
    else:
        assert power.energy_joules is None
    assert (power.power_cap_watts, power.clock_mhz_median, power.throttled) == (
        500.0,
        1_400.0,
        {"power cap": 100.0},
    )
