"""A real Prometheus scrapes Ray while a small run trains: each panel of the dashboard shows something."""

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.live.command_line import ROOT, running
from tests.live.gauges.made_up_devices import RUN as MADE_UP
from tests.live.heads import ray_head
from tests.unit.gauges.test_run_gauges import DASHBOARD

# A CPU has no peak in our table, and no telemetry of its power.
OF_DEVICES = ("longhaul_mfu_ratio", "longhaul_power_watts")
DEADLINE_S = 180
CONFIG = """
global: {scrape_interval: 1s}
scrape_configs: [{job_name: ray, static_configs: [{targets: ["127.0.0.1:%d"]}]}]
"""


def test_every_panel_shows_something_of_a_run_that_trains(tmp_path: Path) -> None:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no prometheus on PATH (Debian's package): no panel was asked for its figures")
    ray_port, own_port = free_ports(2)
    quick = {"RAY_metrics_report_interval_ms": "1000"}
    with (
        ray_head("--num-cpus=2", f"--metrics-export-port={ray_port}", **quick) as head,
        prometheus(program, tmp_path, ray_port, own_port),
    ):
        joined = {"RAY_ADDRESS": head.address, "RAY_AUTH_MODE": "disabled", **quick}
        train = [
            sys.executable,
            "-m",
            "jobs.cli",
            "train",
            "--run",
            "real",
            "--store",
            str(tmp_path / "store"),
        ]
        made_up = [sys.executable, "-m", "tests.live.gauges.made_up_devices"]
        with (
            running([*train, "--set", "steps=100000"], output=subprocess.DEVNULL, **joined),
            running(made_up, **joined),
        ):
            silent = wait_for_all(own_port, expressions())
    assert silent == []


def expressions() -> list[str]:
    """Each panel's, of the run that has such a metric."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    found = [target["expr"] for panel in panels for target in panel["targets"]]
    return [
        one.replace("$run", MADE_UP if any(name in one for name in OF_DEVICES) else "real") for one in found
    ]


def wait_for_all(port: int, wanted: list[str]) -> list[str]:
    """Those that show nothing in time."""
    end = time.monotonic() + DEADLINE_S
    while wanted and time.monotonic() < end:
        wanted = [one for one in wanted if not has_figures(port, one)]
        time.sleep(0.5)
    return wanted


def has_figures(port: int, expression: str) -> bool:
    with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        try:
            connection.request("GET", f"/api/v1/query?query={quote(expression)}")
            answer = json.loads(connection.getresponse().read())
        except (OSError, HTTPException):
            return False
    assert answer["status"] == "success", answer
    return bool(answer["data"]["result"])


@contextmanager
def prometheus(program: str, folder: Path, ray_port: int, own_port: int) -> Iterator[None]:
    config = folder / "prometheus.yml"
    config.write_text(CONFIG % ray_port, encoding="utf-8")
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'figures'}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{own_port}"], cwd=ROOT, stdout=log, stderr=log
        )
        try:
            yield
        finally:
            process.kill()
            process.wait(timeout=30)


def free_ports(num: int) -> list[int]:
    with socket.socket() as first, socket.socket() as second:
        sockets = [first, second][:num]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
