"""Several hosts on one machine, as namespaces that a switch joins: power goes, links fail. Needs root.

Each host has its own address, process tree, ``/tmp/ray``, ``/dev/shm`` and home; the rest of the file system
is the machine's, so that a folder may be a store that all of them see. The switch is a namespace as well:
nothing of it is in the machine's own network. All of it ends with the ``with`` block, and also when the
process that holds it is killed, because each first process ends when its standard input does.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
_TOOLS = ("ip", "tc", "unshare", "nsenter", "mount")
_NETWORK = "10.77.0"
_SHARED_MEMORY = "512m"
_DEADLINE_S = 60.0
_OWN = ("--net", "--mount", "--uts", "--ipc", "--pid")
_RAYS = Path("/tmp/ray")
# The same for all: nobody else is on their network.
_TOKEN = "5eed" * 16

# Plugged in from outside before the first line reaches it.
_HOST = """
set -e
read -r _
hostname {name}
mount --bind {folder}/hosts /etc/hosts
mount --bind {folder}/resolv.conf /etc/resolv.conf
mount --bind {folder}/ray /tmp/ray
mount -t tmpfs -o size={shared_memory} tmpfs /dev/shm
ip link set lo up
ip addr add {address}/24 dev eth0
ip link set eth0 up
touch {folder}/up
while read -r _; do :; done
"""
_SWITCH = """
set -e
ip link add lan type bridge
ip link set lan up
touch {folder}/up
while read -r _; do :; done
"""


def why_not() -> str | None:
    """Why this machine can't have hosts in it; None where it can."""
    if sys.platform != "linux":
        return "hosts are made of Linux' namespaces"
    if os.geteuid() != 0:
        return "making hosts needs root"
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"making hosts needs {', '.join(missing)}"
    trial = ["unshare", *_OWN, "--fork", "--mount-proc", "ip", "link", "add", "lan", "type", "bridge"]
    done = subprocess.run(trial, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    return None if done.returncode == 0 else f"namespaces are refused: {done.stderr.strip()}"


@contextmanager
def hosts_on(folder: Path) -> Iterator["Lan"]:
    """A switch without hosts; each is plugged in with ``Lan.host``. ``folder`` takes their files."""
    # It stays: hosts of another test may have mounted theirs over it.
    _RAYS.mkdir(exist_ok=True)
    lan = Lan(folder)
    try:
        lan.boot()
        yield lan
    finally:
        lan.end()


class Lan:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._switch = _Namespaces(folder / "switch", "--net")
        self._hosts: list[Host] = []

    def boot(self) -> None:
        self._switch.start(_SWITCH)
        self._switch.wait_until_up()

    def host(self, name: str) -> "Host":
        """Up and connected when it returns. A name is used once."""
        address = f"{_NETWORK}.{10 + len(self._hosts)}"
        host = Host(name, address, self._folder / name, self._switch)
        self._hosts.append(host)
        host.boot()
        return host

    def end(self) -> None:
        for host in self._hosts:
            host.power_off()
        self._switch.end()


class Host:
    """Its processes may be watched and killed from outside like any other's of this machine."""

    def __init__(self, name: str, address: str, folder: Path, switch: "_Namespaces") -> None:
        self.name = name
        self.address = address
        self.folder = folder
        self._switch = switch
        self._own = _Namespaces(folder, *_OWN, "--mount-proc")
        self._started: list[subprocess.Popen[bytes]] = []
        self.is_silent = False

    def boot(self) -> None:
        for below in ("ray", "home"):
            (self.folder / below).mkdir(parents=True, exist_ok=True)
        # gloo looks its own name up.
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{self.address} {self.name}\n")
        # Whoever asks for a name, as Ray does for a cloud's, is told at once that nobody knows it.
        (self.folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        self._own.start(_HOST, name=self.name, address=self.address, shared_memory=_SHARED_MEMORY)
        # As a real one it keeps its card: the others know it by that.
        card = f"02:00:00:00:00:{int(self.address.rpartition('.')[2]):02x}"
        ends = ("type", "veth", "peer", "name", "eth0", "address", card, "netns", str(self._own.init))
        self._switch.run("ip", "link", "add", "name", self.name, *ends)
        self._switch.run("ip", "link", "set", "dev", self.name, "master", "lan", "up")
        self._own.go()
        self._own.wait_until_up()
        self.is_silent = False

    def start(self, command: Sequence[str], *, log: str, **environment: str) -> "subprocess.Popen[bytes]":
        """A process of this host. What it says is added to ``folder/log``."""
        with (self.folder / log).open("ab") as output:
            process = subprocess.Popen(
                self._own.inside(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment() | environment,
                cwd=ROOT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def run(self, command: Sequence[str], *, deadline_s: float, **environment: str) -> str:
        """What it said on standard output; raises with what it said on the other if it fails."""
        done = subprocess.run(
            self._own.inside(command),
            capture_output=True,
            text=True,
            timeout=deadline_s,
            check=False,
            env=self._environment() | environment,
            cwd=ROOT,
        )
        if done.returncode != 0:
            raise RuntimeError(
                f"{self.name}: {shlex.join(command)} ended with {done.returncode}: {done.stderr}"
            )
        return done.stdout

    def says(self, log: str) -> str:
        path = self.folder / log
        return path.read_text(errors="replace") if path.exists() else ""

    def processes(self, *words: str) -> list[psutil.Process]:
        """Those with any of these in their command lines, but for the first; none of a host that is off."""
        if not self._own.is_up():
            return []
        init, tree = self._own.init, _process_tree(self._own.init)
        others = (process for process in psutil.process_iter() if process.pid != init)
        members = (process for process in others if _process_tree(process.pid) == tree)
        return [process for process in members if any(one in _command_line(process) for one in words)]

    def cut(self) -> None:
        """Nothing goes in or out, and nobody is told."""
        self._switch.run("ip", "link", "set", "dev", self.name, "down")
        self.is_silent = True

    def let_in(self, rate: str) -> None:
        """So much may come in per second, in words of ``tc``; what waits for long is dropped. What goes out
        is left alone.
        """
        limit = ("tbf", "rate", rate, "burst", "16kb", "latency", "500ms")
        self._switch.run("tc", "qdisc", "replace", "dev", self.name, "root", *limit)

    def send_slowly(self, rate: str, *others: "Host") -> None:
        """So much may go from here to the other hosts per second, in words of ``tc``; all else is left alone,
        as is what comes from there.
        """
        # What no filter leads to a class is not held back.
        self._own.run("tc", "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb")
        limit = ("htb", "rate", rate, "burst", "16kb")
        self._own.run("tc", "class", "add", "dev", "eth0", "parent", "1:", "classid", "1:1", *limit)
        for other in others:
            goes_there = ("u32", "match", "ip", "dst", other.address, "flowid", "1:1")
            self._own.run("tc", "filter", "add", "dev", "eth0", "parent", "1:", "protocol", "ip", *goes_there)

    def send_freely(self) -> None:
        """After ``send_slowly``."""
        self._own.run("tc", "qdisc", "del", "dev", "eth0", "root")

    def deafen(self) -> None:
        """Nothing comes in, while what it sends arrives. Only what is smaller than any packet of TCP passes,
        so that it still finds its neighbours' cards.
        """
        limit = ("tbf", "rate", "1kbit", "burst", "64b", "limit", "64b")
        self._switch.run("tc", "qdisc", "replace", "dev", self.name, "root", *limit)

    def let_all_in(self) -> None:
        with suppress(RuntimeError):
            self._switch.run("tc", "qdisc", "del", "dev", self.name, "root")

    def part_from(self, other: "Host") -> None:
        """Nothing goes from here to the other host any more; all else does."""
        self._own.run("ip", "route", "add", "blackhole", other.address)

    def rejoin(self, other: "Host") -> None:
        """After ``part_from``."""
        self._own.run("ip", "route", "del", "blackhole", other.address)

    def heal(self) -> None:
        self._switch.run("ip", "link", "set", "dev", self.name, "up")
        self.is_silent = False

    def power_off(self) -> None:
        """All of its processes are gone at once."""
        for process in self._started:
            # What brought it in stands still with it, and would never notice its end.
            process.send_signal(signal.SIGCONT)
        self._own.end()
        for process in self._started:
            process.wait(_DEADLINE_S)

    def power_on(self) -> None:
        """After ``power_off``: the same address and home, nothing in ``/tmp/ray``, and nothing runs."""
        shutil.rmtree(self.folder / "ray")
        # The kernel takes away what was plugged in when it gets round to it.
        with suppress(RuntimeError):
            self._switch.run("ip", "link", "delete", "dev", self.name)
        self.boot()

    def _environment(self) -> dict[str, str]:
        """Nothing of a user's cluster or token: with one, a process would ask it of all others."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        return {
            **kept,
            "HOME": str(self.folder / "home"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": _TOKEN,
        }


class _Namespaces:
    """Those of one first process, which all others in them end with."""

    def __init__(self, folder: Path, *kinds: str) -> None:
        self._folder = folder
        self._kinds = kinds
        self._unshare: subprocess.Popen[bytes] | None = None

    def start(self, script: str, **words: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "up").unlink(missing_ok=True)
        text = script.format(folder=shlex.quote(str(self._folder)), **words)
        with (self._folder / "console").open("wb") as console:
            self._unshare = subprocess.Popen(
                ["unshare", *self._kinds, "--fork", "--kill-child=KILL", "bash", "-c", text],
                stdin=subprocess.PIPE,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until(self.is_up, _DEADLINE_S, f"{self._folder.name}: its first process")

    def go(self) -> None:
        assert self._unshare is not None and self._unshare.stdin is not None
        self._unshare.stdin.write(b"\n")
        self._unshare.stdin.flush()

    def wait_until_up(self) -> None:
        up = self._folder / "up"
        wait_until(lambda: up.exists() or not self.is_up(), _DEADLINE_S, f"{self._folder.name}: its start")
        if not up.exists():
            raise RuntimeError(f"{self._folder.name}: {(self._folder / 'console').read_text().strip()}")

    def is_up(self) -> bool:
        return self._first_process() is not None

    @property
    def init(self) -> int:
        init = self._first_process()
        if init is None:
            raise RuntimeError(f"{self._folder.name} is off")
        return init

    def inside(self, command: Sequence[str]) -> list[str]:
        kinds = (kind for kind in self._kinds if kind in _OWN)
        return ["nsenter", f"--target={self.init}", *kinds, f"--wd={ROOT}", "--", *command]

    def run(self, *command: str) -> None:
        done = subprocess.run(
            self.inside(command), capture_output=True, text=True, timeout=_DEADLINE_S, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{shlex.join(command)}: {done.stderr.strip()}")

    def end(self) -> None:
        """The kernel kills all others of a process tree with its first."""
        if self._unshare is None:
            return
        if (init := self._first_process()) is not None:
            with suppress(ProcessLookupError):
                os.kill(init, signal.SIGKILL)
        assert self._unshare.stdin is not None
        self._unshare.stdin.close()
        self._unshare.wait(_DEADLINE_S)

    def _first_process(self) -> int | None:
        if self._unshare is None or self._unshare.poll() is not None:
            return None
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children")
        with suppress(OSError):
            return next((int(word) for word in children.read_text().split()), None)
        return None


def wait_until(
    is_so: Callable[[], bool], deadline_s: float, what: str = "it", *, every_s: float = 0.05
) -> float:
    """How long it took; ``TimeoutError`` where it took longer than the deadline."""
    began = time.monotonic()
    while not is_so():
        if time.monotonic() - began > deadline_s:
            raise TimeoutError(f"{what} did not happen within {deadline_s:.0f} s")
        time.sleep(every_s)
    return time.monotonic() - began


def _process_tree(pid: int) -> str | None:
    with suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    return None


def _command_line(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""
