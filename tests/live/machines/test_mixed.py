"""Two groups of simulated devices on several real Ray nodes of this machine.

Each runs on its own nodes, and one that loses a node costs only its own cells.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cluster.cluster_file import read_cluster
from cluster.local_ray.simulated import MixedCluster, mixed_cluster, nodes_to_start
from cluster.nodes import SeenNode, query_cluster
from tests.live.command_line import ROOT, rows, run, running, sweep_command, write_spec
from tests.live.control_groups import control_group, why_not

FILE = ROOT / "cluster" / "mixed.yaml"
LONGHAUL = [sys.executable, "-m", "jobs.cli"]
GONE_AFTER_KILL_S = 15
DEADLINE_S = 240

# Enough steps for something to happen meanwhile, and little patience with nodes that are away.
SPEC = """
name: pair
groups: [nvidia, amd]
models: [llama-tiny]
axes: {strategy: [ddp], world_size: [1], seq_len: [32]}
measure: {steps: 20, warmup: 2}
repeats: 2
limits: {schedule_timeout_s: 10, cell_timeout_s: 120}
"""
LONG = SPEC.replace("steps: 20", "steps: 1500").replace("repeats: 2", "repeats: 3")
# A node that was killed is noticed in seconds, not in a quarter of a minute.
QUICK_TO_NOTICE = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A temporary directory of the cluster alone, by which its processes and files can be told."""
    path = Path(tempfile.mkdtemp(prefix="lht-", dir="/tmp"))
    yield path
    for process in left_processes(path):
        process.kill()
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[MixedCluster]:
    for name, value in QUICK_TO_NOTICE.items():
        monkeypatch.setenv(name, value)
    with mixed_cluster(read_cluster(FILE)) as found:
        yield found


@pytest.mark.soak
def test_two_groups_run_at_once_each_on_its_own_nodes_and_everything_says_that_it_is_simulated(
    tmp_path: Path, folder: Path
) -> None:
    store, shown = tmp_path / "store", tmp_path / "shown.json"
    show = f"{' '.join(LONGHAUL)} cluster show --cluster {FILE} --json > {shown}"
    sweep = " ".join(sweep_command(write_spec(tmp_path, SPEC), store))

    done = local("sh", "-c", f"{show} && {sweep} && exit 7", folder=folder)
    report = run([*LONGHAUL, "report", "--store", str(store), "--pull", str(tmp_path / "report")])

    assert done.returncode == 7, done.stdout + done.stderr
    assert left_processes(folder) == [] and list(folder.glob("lh-*")) == []
    assert all(f"{group} (simulated)" in done.stdout for group in ("nvidia", "amd"))
    found = rows(store)
    assert [row["status"] for row in found] == ["ok"] * 4
    assert all(row["simulated"] is True and row["mfu"] is None for row in found)
    assert nodes_used(found) == nodes_shown(json.loads(shown.read_text()))
    assert overlap(found, "nvidia", "amd")
    assert report.returncode == 0, report.stdout + report.stderr
    assert "simulated" in (tmp_path / "report" / "report.md").read_text()
    assert "simulated" in (tmp_path / "report" / "index.html").read_text()


@pytest.mark.soak
def test_a_group_that_is_lost_costs_only_its_own_cells_and_finishes_them_once_it_is_back(
    tmp_path: Path, cluster: MixedCluster
) -> None:
    store = tmp_path / "store"
    command = sweep_command(write_spec(tmp_path, LONG), store)

    with running(command, **cluster.environment) as process:
        wait_until(lambda: statuses(store, "amd") == ["ok"])
        lose("amd-0", cluster)
        output, _ = process.communicate(timeout=DEADLINE_S)

    assert process.returncode == 1, output
    assert statuses(store, "nvidia") == ["ok"] * 3
    failed = [row for row in rows(store) if row["group"] == "amd" and row["status"] != "ok"]
    assert {row["status"] for row in failed} <= {"crash", "unschedulable"}
    assert len(failed) == 2, output
    wait_until(lambda: state_of("amd-0", cluster).state == "lost")

    cluster.start([node for node in nodes_to_start(read_cluster(FILE)) if node.name == "amd-0"])
    again = run([*command, "--retry-failed"], **cluster.environment)

    assert again.returncode == 0, again.stdout + again.stderr
    assert statuses(store, "amd") == ["ok"] * 3
    assert (state_of("amd-0", cluster).state, state_of("amd-0", cluster).times_lost) == ("alive", 1)


@pytest.mark.soak
def test_a_node_that_is_drained_finishes_its_cell_and_gets_no_other(
    tmp_path: Path, cluster: MixedCluster
) -> None:
    store = tmp_path / "store"
    command = sweep_command(write_spec(tmp_path, LONG), store)

    with running(command, **cluster.environment) as process:
        wait_until(lambda: statuses(store, "amd") == ["ok"])
        drain("amd-0", cluster)
        output, _ = process.communicate(timeout=DEADLINE_S)
    before = rows(store)
    refused = run([*command, "--retry-failed"], **cluster.environment)

    assert process.returncode == 1, output
    # As soon as nothing runs on it Ray takes it away.
    assert state_of("amd-0", cluster).state == "drained"
    assert statuses(store, "nvidia") == ["ok"] * 3
    assert "unschedulable" in statuses(store, "amd")
    assert set(statuses(store, "amd")) == {"ok", "unschedulable"}
    assert refused.returncode == 2
    assert "there is no group 'amd'" in refused.stderr, refused.stdout + refused.stderr
    assert rows(store) == before


@pytest.mark.soak
def test_a_node_that_leaves_between_planning_and_launch_leaves_a_row_that_says_so(
    tmp_path: Path, cluster: MixedCluster
) -> None:
    store = tmp_path / "store"
    lose("amd-0", cluster)
    wait_until(lambda: state_of("amd-0", cluster).state == "lost")

    # Planned on the file, which promises the node.
    command = sweep_command(write_spec(tmp_path, SPEC), store, "--cluster", str(FILE))
    done = run(command, **cluster.environment)

    assert done.returncode == 1, done.stdout + done.stderr
    assert statuses(store, "nvidia") == ["ok"] * 2
    assert statuses(store, "amd") == ["unschedulable"] * 2
    reasons = {row["error"]["reason"] for row in rows(store) if row["group"] == "amd"}
    assert all("not placed within 10 s: asked amd for 1 x" in reason for reason in reasons), reasons


@pytest.mark.soak
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_nothing_is_left_after_a_signal_and_the_command_hears_it(
    number: signal.Signals, code: int, tmp_path: Path, folder: Path
) -> None:
    word = tmp_path / "heard"
    command = f"trap 'echo {code} > {word}; exit {code}' INT TERM; touch {tmp_path}/up; sleep 1000 & wait"

    with running(local_command("sh", "-c", command), TMPDIR=str(folder)) as process:
        wait_until((tmp_path / "up").exists)
        os.kill(process.pid, number)
        output, _ = process.communicate(timeout=60)

    assert process.returncode == code, output
    assert word.read_text() == f"{code}\n"
    assert left_processes(folder) == [] and list(folder.glob("lh-*")) == []


@pytest.mark.soak
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("number", [None, signal.SIGTERM], ids=["end", "TERM"])
def test_no_process_outlives_it_whatever_that_calls_itself(
    number: signal.Signals | None, tmp_path: Path, folder: Path
) -> None:
    """Ray's agents and workers write their new names over the variables by which they could be told."""
    spec = write_spec(tmp_path, SPEC if number is None else LONG)
    command = local_command(*sweep_command(spec, tmp_path / "store"))
    with control_group() as group, running(group.entered_by(command), TMPDIR=str(folder)) as process:
        if number is not None:
            wait_until(lambda: any(name.startswith("ray::RayTrain") for name in group.names()))
            process.send_signal(number)
        code = process.wait(DEADLINE_S)
        left = group.names()
    assert (code == 0) == (number is None)
    assert left == []


@pytest.mark.soak
def test_nothing_is_left_15_s_after_kill_9_not_even_the_command(tmp_path: Path, folder: Path) -> None:
    command = local_command("sh", "-c", f"touch {tmp_path}/up; sleep 1000")
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"TMPDIR": str(folder)})
    wait_until((tmp_path / "up").exists)

    process.kill()

    process.wait(30)
    wait_until(lambda: not left_processes(folder) and not list(folder.glob("lh-*")), GONE_AFTER_KILL_S)


@pytest.mark.soak
def test_a_command_that_is_not_there_and_a_cluster_that_cannot_start_are_one_line(folder: Path) -> None:
    unknown = local("no-such-command", folder=folder)
    broken = run(local_command("true"), TMPDIR=str(folder), RAY_START_HOOK="nowhere.nothing")

    assert (unknown.returncode, unknown.stderr.count("\n")) == (127, 1), unknown.stderr
    assert list(folder.glob("lh-*")) == []
    assert (broken.returncode, broken.stderr.count("\n")) == (1, 1), broken.stderr


def local_command(*command: str) -> list[str]:
    return [*LONGHAUL, "cluster", "local", str(FILE), "--", *command]


def local(*command: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return run(local_command(*command), TMPDIR=str(folder))


def left_processes(folder: Path) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _environ(process).get("TMPDIR") == str(folder)]


def lose(name: str, cluster: MixedCluster) -> None:
    """SIGKILL for every process of the node: the raylet, what it started, and what serves it."""
    place = f"{cluster.root / name}/"
    named = [process for process in psutil.process_iter() if place in " ".join(_cmdline(process))]
    assert named, f"{name} has no process"
    children = [child for process in named for child in _children(process)]
    for process in {*named, *children}:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def drain(name: str, cluster: MixedCluster) -> None:
    node_id = state_of(name, cluster).node_id
    command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", f"--address={cluster.address}"]
    command += [
        f"--node-id={node_id}",
        "--reason=DRAIN_NODE_REASON_PREEMPTION",
        "--reason-message=maintenance",
    ]
    done = run([*command, "--deadline-remaining-seconds=600"], **cluster.environment)
    assert done.returncode == 0, done.stdout + done.stderr


def state_of(name: str, cluster: MixedCluster) -> SeenNode:
    (node,) = [node for node in query_cluster(cluster.address).nodes if node.name == name]
    return node


def statuses(store: Path, group: str) -> list[str]:
    return sorted(row["status"] for row in rows(store) if row["group"] == group)


def nodes_used(found: list[dict[str, Any]]) -> dict[str, set[str]]:
    """Group -> the beginnings of the ids of the nodes that its ranks ran on."""
    used: dict[str, set[str]] = {}
    for row in found:
        used.setdefault(row["group"], set()).update(row["per_rank"]["node"])
    return used


def nodes_shown(shown: dict[str, Any]) -> dict[str, set[str]]:
    groups = {group["group"]: group["nodes"] for group in shown["groups"]}
    return {name: {node["node_id"][:12] for node in groups[name]} for name in ("nvidia", "amd")}


def overlap(found: list[dict[str, Any]], one: str, other: str) -> bool:
    """Whether some run of one group was under way while one of the other was; ISO times sort as text."""
    spans = [(row["group"], row["started_at"], row["finished_at"]) for row in found]
    return any(a[1] < b[2] and b[1] < a[2] for a in spans if a[0] == one for b in spans if b[0] == other)


def wait_until(is_so: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    end = time.monotonic() + deadline_s
    while not is_so():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}
