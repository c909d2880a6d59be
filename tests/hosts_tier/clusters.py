"""Ray over hosts of this machine as our own files start it, and trainings on it as a user starts them.

The head has no devices; each worker has one CPU, and comes back by the script that real nodes run.
"""

import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from checkpointing.repository import Repository
from checkpointing.store import LocalStore
from cluster.tuning import ACROSS_HOSTS
from tests.hosts import Host, Lan, wait_until
from tests.live.servers import S3_KEYS

LONGHAUL = [sys.executable, "-m", "jobs.cli"]
PORT = 6379
GROUP = "hosts"
_START_DEADLINE_S = 300.0
_ANSWER_DEADLINE_S = 120.0
_SMALL = ("--object-store-memory=80000000", "--disable-usage-stats")
_OBJECTS_PORT = 9000
_OBJECTS = f"""
from tests.live.moto_in_turn import DomainDispatcherApplication, create_backend_app, in_turn, run_simple
moto = DomainDispatcherApplication(create_backend_app)
run_simple("0.0.0.0", {_OBJECTS_PORT}, in_turn(moto), threaded=True)
"""
# Every node takes the machine's whole memory for its own, and would kill workers for what others use.
_ONE_MACHINE = {"RAY_memory_monitor_refresh_ms": "0"}


@dataclass(kw_only=True)
class Cluster:
    """``settings`` are those of the head's processes; ``keys``, to a store, are on all nodes."""

    lan: Lan
    settings: Mapping[str, str] = field(default_factory=lambda: ACROSS_HOSTS)
    keys: Mapping[str, str] = field(default_factory=dict)
    workers: list[Host] = field(default_factory=list)
    head: Host = field(init=False)

    def start(self, num_workers: int) -> None:
        self.head = self.lan.host("head")
        flags = ["--head", f"--port={PORT}", "--num-cpus=0", "--dashboard-host=127.0.0.1", "--block"]
        place = f"--node-ip-address={self.head.address}"
        environment = {**self.settings, **_ONE_MACHINE, **self.keys}
        self.head.start(["ray", "start", *flags, place, *_SMALL], log="ray.log", **environment)
        wait_until_started(self.head)
        for number in range(num_workers):
            self.add(f"worker-{number}")

    @property
    def address(self) -> str:
        return f"{self.head.address}:{PORT}"

    @property
    def driver_environment(self) -> dict[str, str]:
        return {"RAY_ADDRESS": self.address, **self.keys}

    def add(self, name: str) -> Host:
        """In the cluster when it returns."""
        host = self.lan.host(name)
        host.start(
            ["cluster/start_worker.sh", f"--node-ip-address={host.address}", "--num-cpus=1", *_SMALL],
            log="ray.log",
            LONGHAUL_HEAD=self.address,
            LONGHAUL_VENDOR="cpu",
            LONGHAUL_GROUP=GROUP,
            **_ONE_MACHINE,
            **self.keys,
        )
        self.workers.append(host)
        wait_until_started(host)
        return host

    def training_workers(self) -> list[tuple[Host, psutil.Process]]:
        return [(host, process) for host in self.workers for process in host.processes("RayTrainWorker")]

    def idle_workers(self) -> list[Host]:
        busy = {host.name for host, _ in self.training_workers()}
        return [host for host in self.workers if host.name not in busy]


def times_started(host: Host) -> int:
    return len(re.findall("Ray runtime started", host.says("ray.log")))


def wait_until_started(host: Host, times: int = 1) -> None:
    try:
        wait_until(lambda: times_started(host) >= times, _START_DEADLINE_S, f"{host.name}: its Ray's start")
    except TimeoutError as error:
        raise TimeoutError(f"{error}: {host.says('ray.log')[-2000:]}") from None


class Training:
    """``longhaul train`` on the head, in a folder that all hosts see or in a bucket."""

    def __init__(self, cluster: Cluster, spec: Path, store: Path | str, *flags: str) -> None:
        self._cluster = cluster
        self._store = store
        command = [*LONGHAUL, "train", str(spec), "--store", str(store), *flags]
        self.process = cluster.head.start(command, log="train.log", **cluster.driver_environment)

    def newest_step(self) -> int:
        """Of the generations that the store has."""
        if isinstance(self._store, Path):
            found = Repository(LocalStore(self._store), "r").refresh().generations
            return max((generation.step for generation in found), default=0)
        try:
            status = self.status()
        except RuntimeError as error:
            if "there is no run" not in str(error):
                raise
            return 0
        return int(status["step"] - status["steps_at_risk"])

    def status(self) -> dict[str, Any]:
        command = [*LONGHAUL, "status", "r", "--store", str(self._store), "--json"]
        told = self._cluster.head.run(
            command, deadline_s=_ANSWER_DEADLINE_S, **self._cluster.driver_environment
        )
        found: dict[str, Any] = json.loads(told)
        return found

    def wait_for_step(self, step: int, deadline_s: float) -> None:
        def is_there() -> bool:
            assert self.process.poll() is None, f"it ended before step {step}: {self.says()}"
            return self.newest_step() >= step

        try:
            wait_until(is_there, deadline_s, f"step {step}")
        except TimeoutError as error:
            raise TimeoutError(f"{error}; newest is {self.newest_step()}: {self.says()}") from None

    def end(self, deadline_s: float) -> int:
        wait_until(lambda: self.process.poll() is not None, deadline_s, "the training's end")
        assert self.process.returncode is not None
        return self.process.returncode

    def says(self) -> str:
        return self._cluster.head.says("train.log")[-3000:]


def start_objects(lan: Lan) -> tuple[Host, dict[str, str]]:
    """A host with object storage in its memory, and the keys to it; there is a bucket."""
    host = lan.host("objects")
    host.start([sys.executable, "-c", _OBJECTS], log="objects.log")
    keys = {**S3_KEYS, "AWS_ENDPOINT_URL": f"http://{host.address}:{_OBJECTS_PORT}"}
    wait_until(lambda: _answers(host), _START_DEADLINE_S, "object storage")
    make = (
        f"from tests.live.servers import make_bucket; make_bucket({keys['AWS_ENDPOINT_URL']!r}, {S3_KEYS!r})"
    )
    host.run([sys.executable, "-c", make], deadline_s=_ANSWER_DEADLINE_S)
    return host, keys


def _answers(host: Host) -> bool:
    ask = f"import socket; socket.create_connection(({host.address!r}, {_OBJECTS_PORT}), timeout=1)"
    with suppress(RuntimeError):
        host.run([sys.executable, "-c", ask], deadline_s=_ANSWER_DEADLINE_S)
        return True
    return False
