"""``ray job submit`` against a plain head without any label, and a cluster that has nothing to train on."""

import json
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from jobs.runs.resume_command import job_variables
from tests.live.command_line import DEADLINE_S, QUICK, ROOT, files, rows, run, sweep_command, write_spec
from tests.live.heads import Head, ray_head
from tests.live.runs.test_stopping import RUN, is_training, view_of, wait_until


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def port_for_metrics() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def head(home: Path, port_for_metrics: int) -> Iterator[Head]:
    """One whose metrics are off as in the files with which clusters are started."""
    flags = ("--num-cpus=2", f"--metrics-export-port={port_for_metrics}")
    closed = {"AUTOSCALER_METRIC_PORT": "-1", "DASHBOARD_METRIC_PORT": "-1"}
    with ray_head(*flags, LONGHAUL_HOME=str(home), RAY_enable_metrics_collection="0", **closed) as head:
        yield head


def test_rays_metrics_are_given_to_nobody_where_our_files_start_it(head: Head, port_for_metrics: int) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port_for_metrics), timeout=DEADLINE_S)

    control, dashboard = (int(address.rpartition(":")[2]) for address in (head.address, head.dashboard))
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


def test_a_submitted_sweep_leaves_its_rows_and_a_report_gathers_them(
    head: Head, home: Path, tmp_path: Path
) -> None:
    spec = write_spec(
        tmp_path, QUICK.replace("[ddp, fsdp]", "[ddp]").replace("world_size: [1]", "world_size: [1, 2]")
    )

    sweep = _submit(head, "python", "jobs/sweep.py", str(spec))
    left_by_sweep = len(files(home / "results"))
    # A script is its own command. Without a working directory it is one of a tree that is installed where
    # the head is.
    report = _submit(head, str(ROOT / "jobs" / "report.py"), "--json", upload=False)

    assert sweep.returncode == 0, sweep.stdout + sweep.stderr
    assert "2/2 runs" in sweep.stdout
    # A relative store of a job is below LONGHAUL_HOME: the job's own directory is temporary.
    assert [row["status"] for row in rows(home / "results")] == ["ok"] * 2
    assert left_by_sweep == 3
    assert report.returncode == 0, report.stdout + report.stderr
    (page,) = home.rglob("index.html")
    assert page.parent.parent == home / "results" / "reports"


def test_ray_job_stop_leaves_time_for_the_last_save(head: Head, tmp_path: Path) -> None:
    store = tmp_path / "store"
    # How many ranks there are makes no difference to the job, and each of them loads all libraries.
    spec = write_spec(tmp_path, RUN.replace("world_size: 2", "world_size: 1").replace("zero2", "ddp"))
    waits = json.dumps({"env_vars": job_variables(deadline_s=600)})
    begun = _submit(
        head, "python", "jobs/train.py", str(spec), "--store", str(store),
        flags=("--no-wait", "--submission-id=stop-me", "--runtime-env-json", waits),
    )  # fmt: skip
    assert begun.returncode == 0, begun.stdout + begun.stderr
    wait_until(is_training(store))
    stopped = _job(head, "stop", "stop-me")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    output = _job(head, "logs", "stop-me").stdout
    view = view_of(store, "r")
    assert view.stopped_step == view.generations[-1].step > 0, output
    assert f"r: stopped at step {view.stopped_step}" in output


# By default a cluster's groups are told with and without devices: `test_live_inventory`.
@pytest.mark.soak
def test_a_cluster_without_devices_is_named_as_such(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    with ray_head("--num-cpus=0") as bare:
        done = run(
            sweep_command(spec, tmp_path / "store"), RAY_ADDRESS=bare.address, RAY_AUTH_MODE="disabled"
        )

    assert done.returncode == 2
    assert "no node with devices" in done.stderr
    assert "Traceback" not in done.stderr


def _submit(
    head: Head, *entrypoint: str, upload: bool = True, flags: Sequence[str] = ()
) -> "subprocess.CompletedProcess[str]":
    return _job(head, "submit", *(["--working-dir=."] if upload else []), *flags, "--", *entrypoint)


def _job(head: Head, verb: str, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [head.ray, "job", verb, f"--address={head.dashboard}", *words]
    return run(command, deadline_s=DEADLINE_S, RAY_AUTH_MODE="disabled")
