"""A real Slurm on this machine: its controller, a daemon for each node, and its own munge. Needs root.

All nodes are this machine under other names. Everything lies in one folder and ends with the ``with`` block.
"""

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from checkpointing.generations.repository import Repository
from checkpointing.stores.local import LocalStore
from tests.hosts import ROOT, wait_until

_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "scontrol", "srun", "munged")
_DEADLINE_S = 60.0
# Above what a busy machine needs to start Ray twice over.
START_S = 400.0
_CONF = """
ClusterName=longhaul
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
# So that folders of its jobs are theirs, whatever other Slurm there is on this machine.
FirstJobId={first_job}
SlurmdUser=root
AuthType=auth/munge
# A job that was queued again waits for so long; 120 s by default.
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdTimeout=10
# 30 s by default: too little for a save where a machine is as busy as one that runs tests.
KillWait=120
MpiDefault=none
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
# Of a job that is not queued again. A controller that is too busy to answer says nothing of it.
_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE")
_NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=4000"


def why_no_slurm() -> str | None:
    """Why there can be no Slurm on this machine; None where there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a Slurm of the test's own needs Linux and root"
    if missing := [name for name in _PROGRAMS if shutil.which(name, path=_path()) is None]:
        return f"Slurm is not installed: there is no {', '.join(missing)}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Who submits; ``home`` is theirs."""

    uid: int
    gid: int
    home: Path


class Slurm:
    """``within`` stands before each of its commands, and so before what its jobs run."""

    def __init__(self, folder: Path, nodes: Sequence[str], within: Sequence[str]) -> None:
        self.folder = folder
        self.nodes = nodes
        self._within = within
        self.conf = folder / "slurm.conf"

    def start(self) -> None:
        self._write_files()
        place = [f"--{name}={self.folder}/{file}" for name, file in _MUNGE_FILES.items()]
        self._run("munged", "--force", *place)
        self._run("slurmctld", "-f", str(self.conf))
        for node in self.nodes:
            self._run("slurmd", "-N", node, "-f", str(self.conf))
        wait_until(lambda: self._num_idle() == len(self.nodes), _DEADLINE_S, "Slurm's nodes")

    def submit(self, spec: Path, store: Path, *flags: str, user: User | None = None) -> "SlurmJob":
        """``longhaul slurm --submit``, as a user types it."""
        place = store.parent / f"job-{store.name}"
        command = [
            sys.executable,
            "-m",
            "jobs.cli",
            "slurm",
            str(spec),
            "--store",
            str(store),
            "--to",
            str(place),
        ]
        said = self._run(*command, "--vendor", "cpu", "--submit", "--json", *flags, user=user)
        told = json.loads(said)
        return SlurmJob(self, told["job_id"], Path(told["log"]), store)

    def run(self, *command: str, user: User | None = None) -> str:
        return self._run(*command, user=user)

    def facts(self, job: str) -> dict[str, str]:
        """What Slurm says of a job; nothing if it does not answer."""
        with suppress(RuntimeError):
            return dict(re.findall(r"(\S+?)=(\S*)", self._run("scontrol", "--oneliner", "show", "job", job)))
        return {}

    def power_off(self, node: str) -> None:
        """Its daemon and all that runs on it are gone at once: nobody there tells that anything ended."""
        works = [one for one, variables in self._ours() if variables.get("SLURMD_NODENAME") == node]
        tell = [psutil.Process(pid) for pid in self._daemon(node)]
        tell += [child for daemon in tell for child in daemon.children(recursive=True)]
        # What starts a step and tells of its end, which the daemon is no parent of.
        tell += [
            parent for one in works if (parent := _parent(one)) and parent.name().startswith("slurmstepd")
        ]
        for process in (*tell, *works):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def power_on(self, node: str) -> None:
        self._run("slurmd", "-N", node, "-f", str(self.conf))

    def end(self) -> None:
        for node in self.nodes:
            self.power_off(node)
        for name in ("slurmctld.pid", "munged.pid"):
            for pid in _pid_in(self.folder / name):
                with suppress(psutil.NoSuchProcess):
                    process = psutil.Process(pid)
                    process.kill()
                    process.wait(_DEADLINE_S)
        self._kill(lambda variables: variables.get("SLURM_CONF") == str(self.conf))

    def processes(self, job: str) -> list[psutil.Process]:
        """Of Slurm's jobs here, those that belong to this one."""
        return [one for one, variables in self._ours() if variables.get("SLURM_JOB_ID") == job]

    def _write_files(self) -> None:
        ports = _free_ports(1 + len(self.nodes))
        host = socket.gethostname().partition(".")[0]
        nodes = [
            _NODE.format(name=name, host=host, port=port)
            for name, port in zip(self.nodes, ports[1:], strict=True)
        ]
        text = _CONF.format(
            host=host,
            folder=self.folder,
            ports=ports,
            first_job=1 + secrets.randbelow(10**7),
            nodes="\n".join(nodes),
        )
        self.conf.write_text(text, encoding="utf-8")
        for name in ("state", *(f"spool-{node}" for node in self.nodes)):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))

    def _num_idle(self) -> int:
        with suppress(RuntimeError):
            return len(self._run("sinfo", "--noheader", "--Node", "--states=idle", "-o", "%N").split())
        return 0

    def _daemon(self, node: str) -> list[int]:
        return _pid_in(self.folder / f"slurmd-{node}.pid")

    def _ours(self) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                variables = process.environ()
                if variables.get("SLURM_CONF") == str(self.conf) and process.pid != os.getpid():
                    yield process, variables

    def _kill(self, is_meant: Callable[[dict[str, str]], bool]) -> None:
        for process, variables in self._ours():
            if is_meant(variables):
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def _run(self, *command: str, user: User | None = None) -> str:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SLURM_"))}
        done = subprocess.run(
            [*self._within, *(_as(user) if user else ()), *command],
            env={
                **kept,
                "PATH": _path(),
                "PYTHONPATH": str(ROOT),
                "SLURM_CONF": str(self.conf),
                # Every node takes the machine's whole memory for its own.
                "RAY_memory_monitor_refresh_ms": "0",
                "OMP_NUM_THREADS": "1",
                **({"HOME": str(user.home)} if user else {}),
            },
            cwd=user.home if user else self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout


_MUNGE_FILES = {
    "key-file": "munge.key",
    "socket": "munge.sock",
    "pid-file": "munged.pid",
    "log-file": "munged.log",
    "seed-file": "munge.seed",
}


class SlurmJob:
    """A submitted job of the run ``r``, whose store is a folder."""

    def __init__(self, slurm: Slurm, number: str, log: Path, store: Path) -> None:
        self._slurm = slurm
        self.number = number
        self._log = log
        self.store = store

    def state(self) -> str:
        return self._slurm.facts(self.number).get("JobState", "unknown")

    def num_restarts(self) -> int:
        return int(self._slurm.facts(self.number).get("Restarts", "0"))

    def newest_step(self) -> int:
        view = Repository(LocalStore(self.store), "r").refresh()
        return max((generation.step for generation in view.generations), default=0)

    def wait_for_step(self, step: int) -> None:
        """A durable one."""
        self.wait_until(lambda: self.newest_step() >= step, f"step {step}")

    def meets_its_wall_time(self) -> int:
        """Slurm itself asks it to stop, within half a minute, and ends it a minute later. Returns the step at
        which it was queued again.
        """
        before, hours, minutes, _ = self.num_restarts(), *self._slurm.facts(self.number)["RunTime"].split(":")
        self._slurm.run(
            "scontrol", "update", f"JobId={self.number}", f"TimeLimit={int(hours) * 60 + int(minutes) + 2}"
        )
        self.wait_until(lambda: self.num_restarts() > before, "its next start")
        # Its next start has all the time that was asked for.
        self._slurm.run("scontrol", "update", f"JobId={self.number}", "TimeLimit=60")
        return self.newest_step()

    def end(self) -> str:
        """The state in which it ends."""
        wait_until(
            lambda: self.state() in _ENDED,
            START_S,
            "its end",
        )
        return self.state()

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        def is_there() -> bool:
            assert self.state() not in _ENDED, self.says()
            return is_so()

        try:
            wait_until(is_there, START_S, what, every_s=0.3)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {self.says()}") from None

    def says(self) -> str:
        text = self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""
        return f"{self.state()}: {text[-4000:]}"


@contextmanager
def slurm_with(*nodes: str, within: Sequence[str] = ()) -> Iterator[Slurm]:
    # Users who submit must reach it, which they can't below pytest's own folder.
    with tempfile.TemporaryDirectory(prefix="lh-slurm-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        slurm = Slurm(Path(folder), nodes, within)
        try:
            try:
                slurm.start()
            except (RuntimeError, TimeoutError) as error:
                pytest.skip(f"Slurm does not start on this machine: {error}")
            yield slurm
        finally:
            slurm.end()


def _as(user: User) -> Sequence[str]:
    return ("setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups")


def _parent(process: psutil.Process) -> psutil.Process | None:
    with suppress(psutil.NoSuchProcess):
        return process.parent()
    return None


def _path() -> str:
    return f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin"


def _free_ports(number: int) -> list[int]:
    listeners = [socket.socket() for _ in range(number)]
    for listener in listeners:
        listener.bind(("127.0.0.1", 0))
    ports = [int(listener.getsockname()[1]) for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def _pid_in(path: Path) -> list[int]:
    with suppress(OSError, ValueError):
        pid = int(path.read_text(encoding="utf-8"))
        return [pid] if psutil.pid_exists(pid) else []
    return []
