"""Processes that are forked from one that has loaded everything, and those that start without it."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from types import MappingProxyType, SimpleNamespace
from typing import Any, get_args

import psutil
import pytest
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.v2._internal.constants import (
    COLLECTIVE_TIMEOUT_S_ENV_VAR,
    HEALTH_CHECK_INTERVAL_S_ENV_VAR,
    WORKER_HEALTH_CHECK_TIMEOUT_S_ENV_VAR,
)

from cluster.inventory import Vendor, WorkerGroup
from cluster.live import live_inventory
from cluster.local_ray import timeouts
from cluster.local_ray.private_ray import ray_for_driver
from cluster.local_ray.variables import variables
from jobs.execution.resources import Claim
from jobs.launch.forkserver import client
from jobs.launch.forkserver.actor import ForkserverActor, remove_socket
from jobs.launch.forkserver.pool import ForkserverPool, LoadedFor, kind_for, nodes_beside
from jobs.launch.ray_train import trainer
from jobs.training.task.job import Strategy
from tests.live.command_line import ROOT
from tests.live.runs.test_train import wait_until

# It only bounds: what is loaded for workers to come leaves the machine to all others.
PATIENCE_S = 500
# As Ray calls them.
IN_TRAIN_NAMES = {
    COLLECTIVE_TIMEOUT_S_ENV_VAR,
    HEALTH_CHECK_INTERVAL_S_ENV_VAR,
    WORKER_HEALTH_CHECK_TIMEOUT_S_ENV_VAR,
}
CPUS = WorkerGroup(name="local", vendor="cpu", nodes=())
CLAIM = Claim(num_workers=1, resources={"CPU": 1.0}, selector={}, strategy="PACK")
TELLS = """
import json, os, signal, sys, time
facts = {
    "pid": os.getpid(), "parent": os.getppid(), "group": os.getpgrp(), "words": sys.argv, "name": __name__,
    "folder": os.getcwd(), "variables": dict(os.environ), "input": sys.stdin.read(),
    "path": sys.path[0], "has_loaded": "ray.train" in sys.modules,
    "waits": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
}
with open("ran", "a") as ran:
    print(os.getpid(), file=ran)
print(json.dumps(facts), flush=True)
print("to stderr", file=sys.stderr, flush=True)
if "--stays" in sys.argv:
    time.sleep(600)
sys.exit(3)
"""


# Everything that a build of torch for devices would ask the driver by. This build only counts the questions.
ASKS = """
import json, os, sys
import pynvml, torch

asked = []
def watch(owner, name):
    as_it_is = getattr(owner, name)
    def ask(*args, **kwargs):
        asked.append(name)
        return as_it_is(*args, **kwargs)
    setattr(owner, name, ask)

for name in ("is_available", "device_count", "_lazy_init", "get_device_properties", "get_device_capability",
             "current_device", "set_device"):
    watch(torch.cuda, name)
watch(pynvml, "nvmlInit")

import jobs.launch.ray_train.trainer
from jobs.training.preload import is_cut_off, load, touched_device

for strategy in sys.argv[1:]:
    load(strategy)
assert sys.modules["pynvml"] is pynvml and "amdsmi" not in sys.modules
print()
print(json.dumps({"asked": asked, "touched": touched_device(), "is_cut_off": is_cut_off()}))
"""
SPOILT = """
import sys
from types import ModuleType, SimpleNamespace

cuda = SimpleNamespace(is_initialized=lambda: False, _is_in_bad_fork=lambda: False)
if "jobs.launch.forkserver.server" in sys.orig_argv:
    sys.modules["torch"] = ModuleType("torch")
    sys.modules["torch"].cuda = cuda
    {spoils}
"""


@contextmanager
def a_parent(folder: Path, *load: str, **environment: str) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "jobs.launch.forkserver.server", str(folder / "raylet.key"), *load]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, env={**os.environ, **environment})
    try:
        wait_until((folder / "raylet.key").is_socket, PATIENCE_S)
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """One for all tests that leave it alone, as it loads for ten seconds: its folder, and its process."""
    folder = tmp_path_factory.mktemp("parent")
    with a_parent(folder) as process:
        yield folder, process.pid


def start(
    folder: Path, *words: str, script: str = TELLS, environment: Mapping[str, str] = MappingProxyType({})
) -> "subprocess.Popen[str]":
    """What Ray starts in place of Python."""
    path = folder / "tells.py"
    path.write_text(script)
    command = [sys.executable, str(ROOT / "jobs/launch/forkserver/client.py"), "key", "-s", str(path)]
    return subprocess.Popen(
        [*command, f"--raylet-name={folder / 'raylet'}", *words],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "ONLY": "here", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told_by(process: "subprocess.Popen[str]") -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def test_a_child_has_what_the_process_was_given_that_asked_for_it(parent: tuple[Path, int]) -> None:
    folder, parent_pid = parent
    with start(folder) as asking:
        output, errors = asking.communicate(timeout=PATIENCE_S)
        told = json.loads(output)
    assert told["parent"] == parent_pid
    assert told["has_loaded"] and told["waits"]
    assert told["group"] == told["pid"]
    assert told["words"] == [str(folder / "tells.py"), f"--raylet-name={folder / 'raylet'}"]
    assert (told["name"], told["folder"], told["input"]) == ("__main__", str(folder), "")
    assert told["path"] == str(folder)
    assert told["variables"]["ONLY"] == "here" and "HOME" not in told["variables"]
    assert errors == "to stderr\n"


def test_who_has_asked_lives_as_long_as_the_child(parent: tuple[Path, int]) -> None:
    folder, _ = parent
    with start(folder, "--stays") as asking:
        pid = told_by(asking)["pid"]
        assert pid != asking.pid
        assert asking.poll() is None
        os.kill(pid, signal.SIGKILL)
        asking.wait(PATIENCE_S)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_without_a_parent_that_answers_the_process_runs_by_itself_and_only_once(
    is_stopped: bool, tmp_path: Path
) -> None:
    with a_parent(tmp_path) as parent:
        os.kill(parent.pid, signal.SIGSTOP if is_stopped else signal.SIGKILL)
        with start(tmp_path) as asking:
            assert told_by(asking)["pid"] == asking.pid
            assert asking.wait(PATIENCE_S) == 3
        if is_stopped:
            os.kill(parent.pid, signal.SIGCONT)
            with start(tmp_path) as another:
                assert told_by(another)["parent"] == parent.pid
            wait_until(lambda: psutil.Process(parent.pid).children() == [], PATIENCE_S)
        assert len((tmp_path / "ran").read_text().split()) == 1 + is_stopped


def test_a_parent_is_for_its_user_alone_and_ends_with_its_input_but_not_its_children(tmp_path: Path) -> None:
    with a_parent(tmp_path) as parent, start(tmp_path, "--stays") as asking:
        assert stat.S_IMODE((tmp_path / "raylet.key").stat().st_mode) == 0o600
        pid = told_by(asking)["pid"]
        assert parent.stdin is not None
        parent.stdin.close()
        assert parent.wait(PATIENCE_S) == 0
        assert psutil.pid_exists(pid)
        os.kill(pid, signal.SIGKILL)


def test_nothing_is_told_to_somebody_else_s_socket(
    parent: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = parent
    script = folder / "tells.py"
    script.touch()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(OSError, match="somebody else's"):
        client._ask("key", [str(script), f"--raylet-name={folder / 'raylet'}"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with ray_for_driver():
        yield


class Worker:
    def facts(self) -> dict[str, Any]:
        import torch

        drawn: list[str] = []
        thread = Thread(target=lambda: drawn.append(ray.ObjectID.from_random().hex()))
        thread.start()
        thread.join(PATIENCE_S)
        process = psutil.Process()
        return {"pid": process.pid, "parent": process.ppid(), "nice": process.nice(),
                "threads": torch.get_num_threads(), "drawn": drawn}  # fmt: skip


def facts_of(executable: str | None) -> dict[str, Any]:
    environment = {"py_executable": executable} if executable else {}
    worker = ray.remote(num_cpus=1, runtime_env=environment)(Worker).remote()
    found: dict[str, Any] = ray.get(worker.facts.remote(), timeout=PATIENCE_S)
    ray.kill(worker)
    return found


def test_ray_s_own_workers_are_forked_and_are_as_others_until_their_parent_is_gone(cluster: None) -> None:
    parents, kind = ForkserverPool(), kind_for(CLAIM, CPUS, {}, "ddp")
    assert kind is not None
    assert parents.executable(kind) is None
    nodes = [ray.get_runtime_context().get_node_id()]
    parents.keep(kind, "2", nodes)
    executable = await_executable(parents, kind)
    first, second, usual = facts_of(executable), facts_of(executable), facts_of(None)
    assert first["parent"] == second["parent"] != usual["parent"]
    assert first["pid"] != second["pid"]
    assert first["drawn"] != second["drawn"], "Ray would take one for the other"
    assert first["nice"] == usual["nice"]
    assert first["threads"] == 2
    os.kill(first["parent"], signal.SIGKILL)
    assert facts_of(executable)["parent"] == usual["parent"]
    parents.keep(kind, "2", nodes)
    third = facts_of(await_executable(parents, kind))
    assert third["parent"] not in (first["parent"], usual["parent"])
    parents.clear()
    assert parents.executable(kind) is None
    wait_until(lambda: not psutil.pid_exists(third["parent"]), PATIENCE_S)


# It costs time alone if that fails: the run starts without a parent.
@pytest.mark.soak
def test_what_another_kind_of_worker_needs_is_loaded_anew(cluster: None) -> None:
    parents, kind = ForkserverPool(), kind_for(CLAIM, CPUS, {}, "ddp")
    other = kind_for(CLAIM, CPUS, {"OTHER": "1"}, "ddp")
    assert kind is not None and other is not None
    parents.keep(kind, "", [])
    before = await_executable(parents, kind)
    assert parents.executable(other) is None
    parents.keep(other, "", [])
    assert await_executable(parents, other) != before
    parents.clear()


def await_executable(parents: ForkserverPool, kind: LoadedFor) -> str:
    found: list[str | None] = []

    def is_there() -> bool:
        found[:] = [parents.executable(kind)]
        return found != [None]

    wait_until(is_there, PATIENCE_S)
    (executable,) = found
    assert executable is not None
    parents.proven()
    return executable


# It costs time alone if that fails: the run starts without a parent.
@pytest.mark.soak
def test_what_brought_no_workers_is_not_used_the_next_time(cluster: None) -> None:
    parents, kind = ForkserverPool(), kind_for(CLAIM, CPUS, {}, "ddp")
    assert kind is not None
    parents.keep(kind, "", [])
    executable = await_executable(parents, kind)
    assert parents.executable(kind) == executable
    assert parents.executable(kind) is None
    assert parents.executable(kind) == executable
    parents.clear()


def test_a_parent_that_ends_by_itself_is_nobody_s_parent(cluster: None, tmp_path: Path) -> None:
    fails = "import sys\nif 'jobs.launch.forkserver.server' in sys.orig_argv: sys.exit(1)\n"
    (tmp_path / "sitecustomize.py").write_text(fails)
    environment = {"env_vars": {"PYTHONPATH": str(tmp_path)}}
    guard = ray.remote(num_cpus=0, runtime_env=environment)(ForkserverActor).remote("key", (), {})
    with pytest.raises(RuntimeError, match=r"jobs\.launch\.forkserver\.server .*key: 1"):
        ray.get(guard.executable.remote(), timeout=PATIENCE_S)
    ray.kill(guard)


@pytest.mark.parametrize(
    ("vendor", "simulated", "accelerator"),
    [("cpu", False, "cpu"), ("nvidia", False, "cuda"), ("amd", False, "cuda"), ("amd", True, "cpu")],
)
def test_deepspeed_is_told_which_kind_of_device_the_workers_have(
    vendor: Vendor, simulated: bool, accelerator: str, cluster: None
) -> None:
    group = WorkerGroup(name="g", vendor=vendor, nodes=(), simulated=simulated)
    kind = kind_for(CLAIM, group, {"OTHER": "1"}, "zero1")
    assert kind is not None
    assert kind.variables("2") == {"DS_ACCELERATOR": accelerator, "OMP_NUM_THREADS": "2", "OTHER": "1"}
    chosen = kind_for(CLAIM, group, {"DS_ACCELERATOR": "other"}, "zero1")
    assert chosen is not None
    assert chosen.variables("") == {"DS_ACCELERATOR": "other"}


@pytest.mark.parametrize("accelerator", [pytest.param("cpu", marks=pytest.mark.soak), "cuda"])
def test_nothing_that_is_loaded_asks_for_devices(accelerator: str) -> None:
    """On a machine that has some, asking how many there are would take them away from all that is forked."""
    found = told_after_loading(get_args(Strategy), DS_ACCELERATOR=accelerator)
    assert found == {"asked": [], "touched": None, "is_cut_off": False}


def test_what_asks_for_devices_as_it_loads_is_seen() -> None:
    """Without being told which kind there is, DeepSpeed has to ask."""
    assert "is_available" in told_after_loading(["zero1"])["asked"]


def told_after_loading(strategies: Sequence[Strategy], **environment: str) -> Any:
    """By a process of its own."""
    inherited = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    done = subprocess.run(
        [sys.executable, "-c", ASKS, *strategies],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=inherited | environment,
        timeout=PATIENCE_S,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("spoils", "said"),
    [
        ("cuda.is_initialized = lambda: True", "has touched a device: it has initialised torch.cuda"),
        ("cuda._is_in_bad_fork = lambda: True", "has asked for devices, so no child could use one"),
        # Nor one whose children can't tell.
        ("del cuda._is_in_bad_fork", "has asked for devices, so no child could use one"),
    ],
)
def test_a_process_that_has_touched_a_device_is_nobody_s_parent(
    spoils: str, said: str, tmp_path: Path
) -> None:
    """As torch tells of itself, which can't touch a device here."""
    (tmp_path / "sitecustomize.py").write_text(SPOILT.format(spoils=spoils))
    command = [sys.executable, "-m", "jobs.launch.forkserver.server", str(tmp_path / "socket")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 1
    assert said in done.stderr
    assert not (tmp_path / "socket").exists()


@pytest.mark.parametrize(("settings", "is_forked"), [({"env_vars": {}}, True), ({"pip": ["x"]}, False)])
def test_nothing_is_forked_where_ray_starts_workers_in_another_way(
    settings: dict[str, Any], is_forked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = SimpleNamespace(runtime_env=settings)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    assert (kind_for(CLAIM, CPUS, {}, "ddp") is not None) == is_forked


def test_what_we_tune_reaches_ray_train() -> None:
    settings = trainer.train_settings(60)
    assert settings.items() >= timeouts.IN_TRAIN.items()
    assert set(timeouts.IN_TRAIN) == IN_TRAIN_NAMES


def test_what_starts_nothing_is_given_up_and_the_run_starts_as_always(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "_CONTROLLER_TIMEOUT_S", 3.0)
    done = tmp_path / "done"
    with variables(trainer.train_settings(60)):
        training = trainer.Trainer(
            done.touch,
            executable="sleep 600 #",
            scaling_config=ScalingConfig(num_workers=1),
            run_config=RunConfig(name="r", storage_path=str(tmp_path)),
        )
        training.fit()
    assert done.exists()


def test_a_node_without_room_gets_no_parent_unless_its_own_workers_take_it(cluster: None) -> None:
    (group,) = live_inventory().groups
    (node,) = group.nodes
    assert nodes_beside(CLAIM, group, ["elsewhere"]) == ("elsewhere", node.node_id)
    taken = ray.remote(num_cpus=node.num_cpus)(Worker).remote()
    assert ray.get(taken.facts.remote(), timeout=PATIENCE_S)
    assert nodes_beside(CLAIM, group, ["elsewhere"]) == ("elsewhere",)
    assert nodes_beside(CLAIM, group, [node.node_id]) == (node.node_id,)
    ray.kill(taken)


def test_only_the_socket_of_an_earlier_parent_is_removed(tmp_path: Path) -> None:
    theirs, folder, link, ours = (tmp_path / name for name in ("file", "folder", "link", "socket"))
    theirs.write_text("theirs")
    folder.mkdir()
    link.symlink_to(ours)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(ours))
        for path in (theirs, folder, link, tmp_path / "nothing"):
            remove_socket(path)
        assert {path.name for path in tmp_path.iterdir()} == {"file", "folder", "link", "socket"}
        remove_socket(ours)
    assert not ours.exists()
