"""A real Prometheus scrapes Ray's own port while a sweep measures and a run trains, for the dashboard."""

import json
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts import wait_until
from tests.live.command_line import ROOT, rows, run, running, sweep_command, write_spec
from tests.live.heads import Head, ray_head
from tests.live.prometheus import DEADLINE_S, IS_THERE, Prometheus, scraping

DASHBOARD = ROOT / "cluster/grafana/longhaul.json"
# A CPU has no known peak, and tells no power.
NOT_ON_A_CPU = {"ray_longhaul_mfu_ratio", "ray_longhaul_power_watts"}
# Two ranks, so that one is the slowest.
RUN = """
name: r
model: llama-tiny
world_size: 2
seq_len: 32
steps: 1000000
data: {samples: 4096}
checkpoint: {every_steps: 20, retention: {last: 2, epochs: false}}
record: {flush_s: 1, tensorboard: false}
limits: {schedule_timeout_s: 120}
"""
SWEEP = """
name: s
models: [llama-tiny]
axes: {world_size: [1], seq_len: [32]}
measure: {steps: 4, warmup: 1}
repeats: 1
limits: {schedule_timeout_s: 120, cell_timeout_s: 120}
"""

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not IS_THERE, reason="no prometheus on PATH: nothing has scraped Ray's port"),
]


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def head(port: int) -> Iterator[Head]:
    flags = ("--num-cpus=4", f"--metrics-export-port={port}")
    with ray_head(*flags, RAY_enable_metrics_collection="1") as head:
        yield head


@pytest.fixture
def prometheus(head: Head, port: int, tmp_path: Path) -> Iterator[Prometheus]:
    job = {"job_name": "ray", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
    with scraping(tmp_path, {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}) as found:
        yield found


def queries() -> dict[str, str]:
    """What each panel asks for, by its title and number, for this run alone."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return {
        f"{panel['title']} {number}": target["expr"].replace("$run", "r")
        for panel in dashboard["panels"]
        for number, target in enumerate(panel["targets"])
    }


def metrics_of(query: str) -> set[str]:
    return set(re.findall(r"\bray_longhaul_[a-z_]+", query))


def test_each_panel_shows_something_of_a_run_that_trains_and_a_sweep_shows_nothing(
    head: Head, prometheus: Prometheus, tmp_path: Path
) -> None:
    # A cell takes a node's cores for itself: it measures before the run trains.
    sweep = sweep_command(write_spec(tmp_path, SWEEP), tmp_path / "sweep")
    measured = run(sweep, RAY_ADDRESS=head.address)
    assert measured.returncode == 0, measured.stdout + measured.stderr
    assert [row["status"] for row in rows(tmp_path / "sweep")] == ["ok"]

    command = [sys.executable, "-m", "jobs.cli", "train", str(write_spec(tmp_path, RUN))]
    command += ["--store", str(tmp_path / "run")]
    with (
        (tmp_path / "said").open("w") as said,
        running(command, output=said, RAY_ADDRESS=head.address) as training,
    ):
        for panel, query in queries().items():
            if not metrics_of(query) & NOT_ON_A_CPU:
                wait_for_the_run(prometheus, panel, query)
        wait_until(lambda: stages(prometheus) == {"training"}, DEADLINE_S, "its stage")
        training.terminate()
        assert training.wait(DEADLINE_S) == 0

    assert prometheus.label_values("ray_longhaul_step", "run") == ["r"]
    assert {name for name in NOT_ON_A_CPU if prometheus.label_values(name, "run")} == set()
    wait_until(lambda: not prometheus.series("ray_longhaul_step"), DEADLINE_S, "the end of its series")
    ((_, step),) = prometheus.newest("ray_longhaul_step")
    assert f"r: stopped at step {step:.0f} (" in (tmp_path / "said").read_text(encoding="utf-8")
    last = {labels["stage"] for labels, value in prometheus.newest("ray_longhaul_stage") if value}
    assert last == {"stopped"}


def wait_for_the_run(prometheus: Prometheus, panel: str, query: str) -> None:
    def shows_it() -> bool:
        return {labels["run"] for labels, _ in prometheus.series(query)} == {"r"}

    wait_until(shows_it, DEADLINE_S, f"{panel}: {query}", every_s=1)


def stages(prometheus: Prometheus) -> set[str]:
    return {labels["stage"] for labels, _ in prometheus.series("ray_longhaul_stage == 1")}
