"""The gauges of a run: what its driver hears, as numbers for Prometheus."""

import json
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.execution.messages import Heartbeat
from jobs.gauges.emitter import Emitter
from jobs.gauges.metrics import METRICS, PREFIX, Reading
from jobs.gauges.run_gauges import RunGauges
from tests.unit.builders import run_of, sweep

DASHBOARD = Path(__file__).parents[3] / "cluster" / "grafana" / "longhaul.json"
RECIPE = run_of(sweep(), 1).cell.recipe
BEAT = Heartbeat(run_id="", rank=0, phase="window", step=0, num_steps=9, step_s=1.0, memory_bytes=0)
STATUS: dict[str, Any] = {
    "stage": "training", "step": 35, "num_steps": 40, "loss": 1.5, "tokens_per_s": 1000.0, "durable_step": 30,
    "durable_s": 990.0, "num_failed_saves": 2, "data_wait_share": 0.43,
}  # fmt: skip


def values(gauges: RunGauges, now: float = 0.0) -> dict[tuple[str, str | None], float]:
    found = gauges.readings(now, wall_s=1000.0)
    return {(one.metric.name.removeprefix("longhaul_"), one.kind): one.value for one in found}


def test_a_status_becomes_numbers_and_what_is_unknown_is_left_out() -> None:
    gauges = RunGauges(None, 0.0)
    gauges.tell(STATUS)
    found = values(gauges)
    assert found["step", None] == 35
    assert found["loss", None] == 1.5
    assert found["durable_age_seconds", None] == 10.0
    assert found["steps_at_risk", None] == 5
    assert found["failed_saves", None] == 2
    assert found["data_wait_ratio", None] == 0.43
    assert (found["stage", "training"], found["stage", "waiting"]) == (1, 0)
    assert ("mfu_ratio", None) not in found and ("power_watts", None) not in found
    gauges.tell({**STATUS, "loss": None, "tokens_per_s": float("nan"), "stage": "waiting"})
    found = values(gauges)
    assert ("loss", None) not in found
    assert found["stage", "waiting"] == 1
    assert found["data_wait_ratio", None] == 0


def test_mfu_is_told_where_the_devices_peak_is_known() -> None:
    gauges = RunGauges("NVIDIA H100 80GB HBM3", 0.0)
    gauges.begins(replace(RECIPE, precision="bf16"), 0.0)
    gauges.tell(STATUS)
    mfu = values(gauges)["mfu_ratio", None]
    gauges.tell({**STATUS, "tokens_per_s": 2000.0})
    assert 0 < mfu < 1
    assert values(gauges)["mfu_ratio", None] == pytest.approx(2 * mfu)
    gauges.tell({**STATUS, "stage": "waiting"})
    assert values(gauges)["tokens_per_second", None] == 0


def test_the_time_is_spent_as_rank_0_tells_it_and_nothing_of_it_is_lost() -> None:
    gauges = RunGauges(None, 0.0)
    gauges.begins(RECIPE, 2.0)
    gauges.hear(replace(BEAT, doing="restore"), 5.0)
    gauges.hear(replace(BEAT, doing="productive", step=10), 6.0)
    gauges.hear(replace(BEAT, rank=1, doing="save"), 8.0)
    gauges.hear(replace(BEAT, doing="something else", step=10), 16.0)
    gauges.failed("host lost", 17.0)
    gauges.begins(RECIPE, 20.0)
    gauges.hear(replace(BEAT, doing="productive", step=8), 21.0)
    gauges.hear(replace(BEAT, doing="productive", step=11), 23.0)
    found = values(gauges, 30.0)
    spent = {
        phase: seconds for (name, phase), seconds in found.items() if name == "phase_seconds" and seconds
    }
    assert spent == {
        "start": 3.0, "schedule": 4.0, "restore": 1.0, "productive": 17.0, "wait": 3.0, "recompute": 2.0,
    }  # fmt: skip
    assert sum(spent.values()) == 30.0
    assert found["restarts", "host lost"] == 1
    assert found["restarts", "hang"] == 0


def test_the_slowest_rank_is_told_by_the_same_product_and_power_is_that_of_all() -> None:
    gauges = RunGauges(None, 0.0)
    for rank, pace_s in enumerate((1.0, 1.0, 3.0, 1.0)):
        gauges.hear(replace(BEAT, rank=rank, pace_s=pace_s, power_watts=100.0), 0.0)
    found = values(gauges)
    assert (found["slowest_rank", None], found["slowest_rank_ratio", None]) == (2, 3.0)
    assert found["power_watts", None] == 400.0
    # The ranks of a new attempt are others.
    gauges.begins(RECIPE, 0.0)
    assert ("slowest_rank", None) not in values(gauges)


def test_ten_thousand_ranks_are_one_set_of_metrics() -> None:
    gauges = RunGauges(None, 0.0)
    for rank in range(10_000):
        gauges.hear(replace(BEAT, rank=rank, pace_s=1.0 + rank, power_watts=1.0), 0.0)
    assert len(values(gauges)) < 60


def test_an_error_and_a_hang_of_what_publishes_are_nobodys_concern(caplog: pytest.LogCaptureFixture) -> None:
    tried, hangs = threading.Semaphore(0), threading.Event()

    def publish(_readings: Sequence[Reading]) -> None:
        tried.release()
        raise RuntimeError("Ray is gone")

    with Emitter(RunGauges(None, 0.0), publish, every_s=0.0):
        for _ in range(3):
            assert tried.acquire(timeout=30)
    assert [record.getMessage() for record in caplog.records] == [
        "metrics for Prometheus: RuntimeError: Ray is gone"
    ]
    with Emitter(RunGauges(None, 0.0), lambda _readings: bool(hangs.wait(60)) and None, every_s=0.0):
        pass
    hangs.set()


def test_every_panel_names_metrics_that_there_are_and_each_metric_has_a_panel() -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    shown = {name for one in expressions for name in re.findall(r"\b[a-z]+_longhaul_[a-z_]+", one)}
    assert shown == {PREFIX + name for name in METRICS}
    assert all('run=~"$run"' in one for one in expressions)
    (run,) = [one for one in dashboard["templating"]["list"] if one["name"] == "run"]
    assert run["definition"] == f"label_values({PREFIX}longhaul_step, run)"


def test_no_two_panels_lie_on_each_other() -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    taken: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in dashboard["panels"]):
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24 and not own & taken
        taken |= own
