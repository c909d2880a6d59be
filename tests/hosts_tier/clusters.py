"""Ray over hosts of this machine as our own files start it, and trainings on it as a user starts them.

The head has no devices; each worker has one CPU, and comes back by the script that real nodes run.
"""

import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from checkpointing.generations.repository import Repository
from checkpointing.log.history import LogView
from checkpointing.stores.local import LocalStore
from checkpointing.stores.opening import open_store
from cluster.local_ray.timeouts import ACROSS_HOSTS
from tests.hosts import Host, Lan, wait_until
from tests.live.servers import S3_KEYS

LONGHAUL = [sys.executable, "-m", "jobs.cli"]
PORT = 6379
_DASHBOARD_PORT = 8265
GROUP = "hosts"
TRAINING = "RayTrainWorker"
_START_DEADLINE_S = 300.0
_ANSWER_DEADLINE_S = 120.0
_SMALL = ("--object-store-memory=80000000", "--disable-usage-stats")
_OBJECTS_PORT = 9000
_OBJECTS = f"""
from tests.hosts_tier.expiring import expiring
from tests.live.moto_in_turn import DomainDispatcherApplication, create_backend_app, in_turn, run_simple
moto = DomainDispatcherApplication(create_backend_app)
run_simple("0.0.0.0", {_OBJECTS_PORT}, expiring(in_turn(moto)), threaded=True)
"""
# As the head's unit has it: whenever Ray ends, what is left on the host goes, and it is started again.
_AS_A_UNIT = ("bash", "-c", 'while :; do "$@"; kill -KILL -1; sleep 1; done', "unit")
# Every node takes the machine's whole memory for its own, and would kill workers for what others use.
_ONE_MACHINE = {"RAY_memory_monitor_refresh_ms": "0"}


@dataclass(kw_only=True)
class Cluster:
    """``settings`` are those of the head's processes; ``keys``, to a store, are on all nodes.

    Without its dashboard, which is ten processes, the head takes no jobs.
    """

    lan: Lan
    settings: Mapping[str, str] = field(default_factory=lambda: ACROSS_HOSTS)
    keys: Mapping[str, str] = field(default_factory=dict)
    has_dashboard: bool = True
    workers: list[Host] = field(default_factory=list)
    head: Host = field(init=False)

    def start(self, num_workers: int) -> None:
        self.head = self.lan.host("head")
        self.start_head()
        # Five at once need more than the half minute that Ray gives each, and try again together without end.
        at_once = os.cpu_count() or 1
        for first in range(0, num_workers, at_once):
            numbers = range(first, min(first + at_once, num_workers))
            for host in [self._begin(f"worker-{number}") for number in numbers]:
                wait_until_started(host)

    def start_head(self) -> None:
        """As at boot. In order when it returns."""
        before = times_started(self.head)
        flags = ["--head", f"--port={PORT}", "--num-cpus=0", "--dashboard-host=0.0.0.0", "--block"]
        flags += [f"--include-dashboard={str(self.has_dashboard).lower()}"]
        place = f"--node-ip-address={self.head.address}"
        environment = {**self.settings, **_ONE_MACHINE, **self.keys}
        command = [*_AS_A_UNIT, "ray", "start", *flags, place, *_SMALL]
        self.head.start(command, log="ray.log", **environment)
        wait_until_started(self.head, before + 1)

    @property
    def address(self) -> str:
        return f"{self.head.address}:{PORT}"

    @property
    def job_server(self) -> str:
        return f"http://{self.head.address}:{_DASHBOARD_PORT}"

    @property
    def driver_environment(self) -> dict[str, str]:
        return {"RAY_ADDRESS": self.address, **self.keys}

    def add(self, name: str) -> Host:
        """In the cluster when it returns."""
        host = self._begin(name)
        wait_until_started(host)
        return host

    def _begin(self, name: str) -> Host:
        host = self.lan.host(name)
        host.start(
            ["cluster/start_worker.sh", f"--node-ip-address={host.address}", "--num-cpus=1", *_SMALL],
            log="ray.log",
            LONGHAUL_HEAD=self.address,
            LONGHAUL_VENDOR="cpu",
            LONGHAUL_GROUP=GROUP,
            LONGHAUL_TEMP="/tmp/ray/closed",
            **_ONE_MACHINE,
            **self.keys,
        )
        self.workers.append(host)
        return host

    def training_workers(self) -> list[tuple[Host, psutil.Process]]:
        return [(host, process) for host in self.workers for process in host.processes(TRAINING)]


def times_started(host: Host) -> int:
    return len(re.findall("Ray runtime started", host.says("ray.log")))


def wait_until_started(host: Host, times: int = 1) -> None:
    try:
        wait_until(lambda: times_started(host) >= times, _START_DEADLINE_S, f"{host.name}: its Ray's start")
    except TimeoutError as error:
        raise TimeoutError(f"{error}: {host.says('ray.log')[-2000:]}") from None


class Training:
    """``longhaul train`` on the head, or on ``place``, with its store in a folder that all hosts see."""

    def __init__(
        self, cluster: Cluster, spec: Path, store: Path | str, *flags: str, place: Host | None = None
    ) -> None:
        self.spec = spec
        self.store = store
        self._cluster = cluster
        self._place = place or cluster.head
        command = [*LONGHAUL, "train", str(spec), "--store", str(store), *flags]
        self.process = self._place.start(command, log="train.log", **cluster.driver_environment)

    def attempt(self) -> int:
        """Its number; 0 before the first."""
        return self._view().term

    def newest_step(self) -> int:
        """Of the generations that the store has."""
        return max((generation.step for generation in self._view().generations), default=0)

    def wait_for_step(self, step: int, deadline_s: float) -> None:
        self.wait_until(lambda: self.newest_step() >= step, deadline_s, f"step {step}")

    def wait_until(self, is_so: Callable[[], bool], deadline_s: float, what: str) -> None:
        """While the training goes on; the error says what it said."""

        def is_there() -> bool:
            assert self.process.poll() is None, f"it ended before {what}: {self.says()}"
            return is_so()

        try:
            wait_until(is_there, deadline_s, what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {self.says()}") from None

    def ask_to_stop(self) -> None:
        """As a supervisor does, who needs no store for it."""
        for process in self._place.processes("jobs.cli train"):
            process.send_signal(signal.SIGTERM)

    def stop(self, deadline_s: float) -> None:
        """It saves and ends well."""
        stop = [*LONGHAUL, "stop", "r", "--store", str(self.store)]
        self._cluster.head.run(stop, deadline_s=deadline_s, **self._cluster.keys)
        assert self.end(deadline_s) == 0, self.says()

    def end(self, deadline_s: float) -> int:
        """Its exit code."""
        wait_until(lambda: self.process.poll() is not None, deadline_s, "the training's end")
        assert self.process.returncode is not None
        return self.process.returncode

    def log(self) -> str:
        return self._place.says("train.log")

    def says(self) -> str:
        return self.log()[-3000:]

    def _view(self) -> LogView:
        return Repository(LocalStore(Path(self.store)), "r").refresh()


class DistantTraining(Training):
    """With its store in a bucket that only the hosts reach: all that is read is what its driver says."""

    def attempt(self) -> int:
        return max(self._told(r"attempt (\d+)"), default=1)

    def newest_step(self) -> int:
        # Of other ranks it says what failed.
        return max(self._told(r"save of step (\d+) to the store: [\d.,]+ MB of rank 0"), default=0)

    def steps_done(self) -> int:
        return max(self._told(r"r: step (\d+)/"), default=0)

    def failed_saves(self) -> list[int]:
        """Their steps."""
        return self._told(r"save of step (\d+) to the store failed")

    def copy_to(self, folder: Path) -> None:
        """All that is in the store."""
        copy = "import sys; from tests.hosts_tier.clusters import copied; copied(*sys.argv[1:])"
        command = [sys.executable, "-c", copy, str(self.store), str(folder)]
        self._cluster.head.run(command, deadline_s=_START_DEADLINE_S, **self._cluster.keys)

    def _told(self, words: str) -> list[int]:
        return [int(number) for number in re.findall(words, self.log())]


def copied(url: str, folder: str) -> None:
    store, copy = open_store(url), LocalStore(Path(folder))
    for name in store.list("runs"):
        copy.put(name, store.get(name))


def start_objects(lan: Lan) -> tuple[Host, dict[str, str]]:
    """A host with object storage in its memory, and the keys to it; there is a bucket. They expire as the
    file ``expiry`` in the host's folder says, see ``expiring``.
    """
    host = lan.host("objects")
    host.start([sys.executable, "-c", _OBJECTS], log="objects.log", TEST_EXPIRY=str(host.folder / "expiry"))
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
