"""A private Ray takes nobody in and leaves nothing, however its driver ends. Drivers are real processes."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from cluster.local_ray.timeouts import ON_ONE_MACHINE
from cluster.signals import STOP_SIGNALS

START_TIMEOUT_S = 120
GONE_AFTER_KILL_S = 15
PROJECT = Path(__file__).resolve().parents[3]

# Its worker is stopped, so that it can't end itself, and has a child in a session of its own.
DRIVER = """
import os, signal, subprocess, sys, time
import ray
from cluster.local_ray.private_ray import private_ray

@ray.remote(num_cpus=0)
class Worker:
    def settle(self):
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        return os.getpid()

with private_ray(num_cpus=int(sys.argv[1])):
    worker = Worker.remote()
    os.kill(ray.get(worker.settle.remote()), signal.SIGSTOP)
    print("cpus", int(ray.cluster_resources()["CPU"]), "nodes", len(ray.nodes()), flush=True)
    if sys.argv[2] == "raise":
        raise LookupError("on purpose")
    if sys.argv[2] == "wait":
        time.sleep(1000)
"""

# Hears SIGTERM as soon as Ray's core is there, and again when it has started, and takes its time.
LISTENER = """
import os, signal, time
from ray._private import worker
from cluster.local_ray.private_ray import private_ray

heard, connect = [], worker.connect
signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))

def connect_and_be_terminated(*args, **options):
    connect(*args, **options)
    os.kill(os.getpid(), signal.SIGTERM)

worker.connect = connect_and_be_terminated
with private_ray(num_cpus=1):
    time.sleep(5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
print(heard)
"""

# Hears SIGTERM when Ray's core has ended, and its processes have not.
LATE_LISTENER = """
import os, signal
import ray
from cluster.local_ray.private_ray import private_ray

heard = []
signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
with private_ray(num_cpus=1):
    node = ray._private.worker._global_node
    kill = node.kill_all_processes

    def be_terminated_and_kill(**options):
        os.kill(os.getpid(), signal.SIGTERM)
        kill(**options)

    node.kill_all_processes = be_terminated_and_kill
print(heard)
"""


class Driver:
    """A driver whose processes and files can be told by a temporary directory that only they were given."""

    def __init__(self, num_cpus: int, then: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lht-", dir="/tmp"))
        self._process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(num_cpus), then],
            # A stranger's address must not be joined, and the project is only on the driver's own path.
            env=os.environ
            | {"TMPDIR": str(self.folder), "PYTHONPATH": str(PROJECT), "RAY_ADDRESS": "127.0.0.1:1"},
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_until_up(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def signal_all_like_a_terminal(self, number: int) -> None:
        os.killpg(self._process.pid, number)

    def wait(self) -> tuple[int, str]:
        _, errors = self._process.communicate(timeout=START_TIMEOUT_S)
        return self._process.returncode, errors

    def left_processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def left_files(self) -> list[str]:
        return [entry.name for entry in self.folder.iterdir()]

    def remove(self) -> None:
        for process in self.left_processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(START_TIMEOUT_S)
        shutil.rmtree(self.folder)

    def scripts(self) -> set[str]:
        """The first one in the command line of each of its processes, or the name that Ray has given it."""
        lines = [process.cmdline() for process in self.left_processes()]
        return {
            next((Path(word).name for word in line if word.endswith(".py")), line[0])
            for line in lines
            if line
        }

    def variables_of(self, name: str) -> dict[str, str]:
        """Of its only process of that name."""
        (found,) = (process for process in self.left_processes() if _name_of(process) == name)
        return found.environ()

    def is_deaf(self, name: str) -> bool:
        """Whether its only process of that name hears neither SIGTERM nor SIGHUP."""
        (found,) = (process for process in self.left_processes() if _name_of(process) == name)
        (line,) = re.findall(
            r"^SigBlk:\s*(\w+)$", Path(f"/proc/{found.pid}/status").read_text(), re.MULTILINE
        )
        return all(int(line, 16) >> (number - 1) & 1 for number in STOP_SIGNALS)

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("TMPDIR") == str(self.folder)
        except psutil.Error:
            return False


@pytest.fixture
def start() -> Iterator[Callable[..., Driver]]:
    drivers: list[Driver] = []

    def start(num_cpus: int = 1, then: str = "end") -> Driver:
        drivers.append(Driver(num_cpus, then))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.remove()


def assert_nothing_is_left(driver: Driver) -> None:
    assert [" ".join(process.cmdline())[:120] for process in driver.left_processes()] == []
    assert driver.left_files() == []


@pytest.mark.soak
def test_nothing_is_left_after_an_exception(start: Callable[..., Driver]) -> None:
    driver = start(then="raise")
    code, errors = driver.wait()
    assert code == 1
    assert errors.strip().splitlines()[-1] == "LookupError: on purpose"
    assert_nothing_is_left(driver)


def test_nothing_is_left_after_ctrl_c(start: Callable[..., Driver]) -> None:
    driver = start(then="wait")
    driver.wait_until_up()
    driver.signal_all_like_a_terminal(signal.SIGINT)
    code, errors = driver.wait()
    assert code == -signal.SIGINT
    assert errors.strip().splitlines()[-1] == "KeyboardInterrupt"
    assert_nothing_is_left(driver)


def test_its_head_is_tuned_and_without_helpers_and_nothing_is_left_after_sigterm(
    start: Callable[..., Driver],
) -> None:
    driver = start(then="wait")
    driver.wait_until_up()
    scripts = driver.scripts()
    assert "agent_stand_in.py" in scripts
    helpers = {"agent.py", "dashboard.py", "log_monitor.py", "monitor.py", "ray::DashboardAgent"}
    assert scripts & helpers == set()
    assert driver.variables_of("gcs_server").items() >= ON_ONE_MACHINE.items()
    assert driver.is_deaf("gcs_server") and driver.is_deaf("raylet")
    driver.signal(signal.SIGTERM)
    assert driver.wait()[0] == 128 + signal.SIGTERM
    assert_nothing_is_left(driver)


def test_nothing_is_left_15_s_after_kill_9(start: Callable[..., Driver]) -> None:
    driver = start(then="wait")
    driver.wait_until_up()
    driver.signal(signal.SIGKILL)
    deadline = time.monotonic() + GONE_AFTER_KILL_S
    while (driver.left_processes() or driver.left_files()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert_nothing_is_left(driver)


def test_two_at_once_are_each_alone_and_leave_nothing(start: Callable[..., Driver]) -> None:
    one, two = start(num_cpus=1), start(num_cpus=3)
    assert one.wait_until_up() == "cpus 1 nodes 1"
    assert two.wait_until_up() == "cpus 3 nodes 1"
    for driver in (one, two):
        code, errors = driver.wait()
        # On a busy machine a node may take longer to start than Ray waits for one.
        assert code == 0
        assert [line for line in errors.splitlines() if not line.endswith("another try")] == []
        assert_nothing_is_left(driver)


def test_the_callers_variables_and_sigterm_handler_stay_in_force_also_while_ray_starts() -> None:
    import ray

    from cluster.local_ray.private_ray import private_ray

    heard, is_over = list[int](), threading.Event()
    before = signal.signal(signal.SIGTERM, lambda number, _frame: heard.append(number))
    variables = _rays_variables()
    thread = threading.Thread(target=_terminate_once_a_head_starts, args=(is_over,))
    thread.start()
    try:
        with private_ray(num_cpus=1):
            assert heard == [signal.SIGTERM]
            os.kill(os.getpid(), signal.SIGTERM)
            # The token is this Ray's own, and a caller that had imported Ray before is let in with it.
            assert ray.cluster_resources()["CPU"] == 1
    finally:
        is_over.set()
        # It would end all tests if it came later.
        thread.join()
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM] * 2
    assert _rays_variables() == variables


@pytest.mark.soak
def test_a_driver_that_hears_sigterm_ends_when_it_wants_to() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LISTENER],
        check=False,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
    )
    assert (done.returncode, done.stdout.strip()) == (0, str([15, 15])), done.stderr


def test_sigterm_while_ray_ends_is_left_to_the_driver() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE_LISTENER],
        check=False,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
    )
    assert (done.returncode, done.stdout.strip()) == (0, str([15])), done.stderr


def _terminate_once_a_head_starts(is_over: threading.Event) -> None:
    this = psutil.Process()
    while not is_over.wait(0.05):
        if any(_name_of(child) == "gcs_server" for child in this.children()):
            this.terminate()
            return


def _name_of(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def _rays_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if "RAY" in name or name == "PYTHONPATH"}
