"""``ray job submit`` against a plain head without any label, and a cluster that has nothing to train on."""

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.live.command_line import DEADLINE_S, QUICK, ROOT, files, rows, run, sweep_command, write_spec
from tests.live.heads import Head, ray_head


def test_a_submitted_sweep_leaves_its_rows_the_other_forms_find_them_and_a_report_gathers_them(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    with ray_head("--num-cpus=2", LONGHAUL_HOME=str(home)) as head:
        spec = write_spec(
            tmp_path, QUICK.replace("[ddp, fsdp]", "[ddp]").replace("world_size: [1]", "world_size: [1, 2]")
        )

        first = _submit(head, "python", "jobs/sweep.py", str(spec))
        # Without a working directory: from a tree that is installed where the head is.
        again = _submit(head, str(ROOT / "jobs" / "sweep.py"), str(spec), upload=False)
        left_by_sweeps = len(files(home / "results"))
        # A script of the working directory is its own command.
        report = _submit(head, "jobs/report.py", "--json")

    assert first.returncode == 0, first.stdout + first.stderr
    assert "2/2 runs" in first.stdout
    assert again.returncode == 0, again.stdout + again.stderr
    assert "runs," not in again.stdout, "it measured again"
    # A relative store of a job is below LONGHAUL_HOME: the job's own directory is temporary.
    assert [row["status"] for row in rows(home / "results")] == ["ok"] * 2
    assert left_by_sweeps == 3
    assert report.returncode == 0, report.stdout + report.stderr
    (page,) = home.rglob("index.html")
    assert page.parent.parent == home / "results" / "reports"


@pytest.fixture(scope="module")
def port_for_metrics() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def bare_head(port_for_metrics: int) -> Iterator[Head]:
    """One without devices, whose metrics are off as in the files with which clusters are started."""
    flags = ("--num-cpus=0", f"--metrics-export-port={port_for_metrics}")
    closed = {"AUTOSCALER_METRIC_PORT": "-1", "DASHBOARD_METRIC_PORT": "-1"}
    with ray_head(*flags, RAY_enable_metrics_collection="0", **closed) as head:
        yield head


def test_rays_metrics_are_given_to_nobody_where_our_files_start_it(
    bare_head: Head, port_for_metrics: int
) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port_for_metrics), timeout=DEADLINE_S)

    control, dashboard = (
        int(address.rpartition(":")[2]) for address in (bare_head.address, bare_head.dashboard)
    )
    ports = _ports_of_processes_beside(control)
    assert ports["gcs_server"] == {control}
    assert ports["dashboard.py"] == {dashboard}
    assert ports["monitor.py"] == set()


def _ports_of_processes_beside(control_port: int) -> dict[str, set[int]]:
    """The ports at which the processes of one head listen, by the name of what each runs."""
    every = list(psutil.process_iter(["pid", "ppid", "cmdline"]))
    (control,) = [one for one in every if control_port in _ports(one) and _program(one) == "gcs_server"]
    return {_program(one): _ports(one) for one in every if one.info["ppid"] == control.info["ppid"]}


def _ports(process: psutil.Process) -> set[int]:
    try:
        return {one.laddr.port for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
    except psutil.Error:
        return set()


def _program(process: psutil.Process) -> str:
    words = [Path(word).name for word in process.info["cmdline"] or [""]]
    return next((word for word in words if word.endswith(".py")), words[0])


def test_a_cluster_without_devices_is_named_as_such(bare_head: Head, tmp_path: Path) -> None:
    done = run(
        sweep_command(write_spec(tmp_path), tmp_path / "store"),
        RAY_ADDRESS=bare_head.address,
        RAY_AUTH_MODE="disabled",
    )

    assert done.returncode == 2
    assert "no node with devices" in done.stderr
    assert "Traceback" not in done.stderr


def _submit(head: Head, *entrypoint: str, upload: bool = True) -> "subprocess.CompletedProcess[str]":
    command = [head.ray, "job", "submit", f"--address={head.dashboard}"]
    command += ["--working-dir=."] if upload else []
    return run([*command, "--", *entrypoint], deadline_s=DEADLINE_S, RAY_AUTH_MODE="disabled")
