"""The forkserver of a sweep's cells, as its driver sees it: one that loads, hangs, dies, or falls silent."""

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.signals import STOP_SIGNALS
from jobs.execution.messages import Upcoming
from jobs.launch.forkserver import beside_driver
from jobs.launch.forkserver.beside_driver import DriverForkserver

ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
UPCOMING = Upcoming(environment=ENVIRONMENT, strategies=("ddp",))
# Runs in place of the real one, which loads for seconds.
INSTEAD = """
import sys
if "jobs.launch.forkserver.server" in sys.orig_argv:
    import json, os, socket, time
    {acts}
"""
HANGS = "time.sleep(600)"
DIES = "os._exit(1)"
ANSWERS = """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(json.loads(sys.stdin.readline())["socket"])
        listener.listen()
        for _ in range({times}):
            connection, _ = listener.accept()
            connection.recv(1)
            connection.send(b"h")
        time.sleep(600)
"""
TELLS_PATH = """
import sys
with open({told!r}, "w", encoding="utf-8") as file:
    print(*sys.path, sep="\\n", file=file)
"""
TELLS_WHAT_IT_BLOCKS = """
    import signal
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with open({told!r}, "w", encoding="utf-8") as file:
        print(*map(int, sorted(blocked)), file=file)
    time.sleep(600)
"""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., DriverForkserver]]:
    monkeypatch.setattr(beside_driver, "_ANSWER_S", 0.2)
    monkeypatch.syspath_prepend(str(tmp_path))
    started: list[DriverForkserver] = []

    def start(acts: str, clock: Callable[[], float] | None = None) -> DriverForkserver:
        (tmp_path / "sitecustomize.py").write_text(INSTEAD.format(acts=acts), encoding="utf-8")
        forkserver = DriverForkserver(UPCOMING, clock=clock or Clock())
        started.append(forkserver)
        forkserver.start()
        return forkserver

    yield start
    for forkserver in started:
        forkserver.end()


def await_loaded(forkserver: DriverForkserver) -> None:
    while forkserver.is_loading():
        pass


def test_workers_are_forked_once_it_has_loaded(
    start: Callable[..., DriverForkserver], tmp_path: Path
) -> None:
    forkserver = start(ANSWERS.format(times=1))
    assert not forkserver.is_loading(), "nobody waits before it is told where to listen"
    forkserver.listen_beside(str(tmp_path / "raylet"), {})
    assert forkserver.is_loading()
    await_loaded(forkserver)
    command = forkserver.executable()
    assert command is not None
    *_, key = shlex.split(command)
    assert Path(key).is_socket() and Path(key).parent == tmp_path
    forkserver.end()
    assert not Path(key).exists()


def test_it_finds_modules_where_its_workers_are_to_find_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours, told = tmp_path / "theirs", tmp_path / "ours", tmp_path / "told"
    theirs.mkdir()
    text = TELLS_PATH.format(told=str(told))
    (theirs / "sitecustomize.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(ours))
    upcoming = Upcoming(environment={"PYTHONPATH": str(theirs)}, strategies=("ddp",))
    with DriverForkserver(upcoming) as forkserver:
        forkserver.start()
        forkserver.listen_beside(str(tmp_path / "raylet"), {})
        while not (told.exists() and told.read_text(encoding="utf-8").endswith("\n")):
            assert forkserver.is_loading()
    found = told.read_text(encoding="utf-8").split("\n")
    assert found.index(str(theirs)) < found.index(str(ours))


def test_it_loads_nothing_from_the_folder_that_its_driver_was_started_in(
    start: Callable[..., DriverForkserver], tmp_path: Path
) -> None:
    """Such as /tmp, into which others may put files."""
    told = tmp_path / "told"
    forkserver = start(f"open({str(told)!r}, 'w').write(str(sys.flags.safe_path)); os._exit(1)")
    forkserver.listen_beside(str(tmp_path / "raylet"), {})
    await_loaded(forkserver)
    assert told.read_text(encoding="utf-8") == "True"


def test_a_stop_signal_to_all_processes_ends_neither_it_nor_what_is_forked_from_it(
    start: Callable[..., DriverForkserver], tmp_path: Path
) -> None:
    told = tmp_path / "told"
    forkserver = start(TELLS_WHAT_IT_BLOCKS.format(told=str(told)))
    forkserver.listen_beside(str(tmp_path / "raylet"), {})
    while not (told.exists() and told.read_text(encoding="utf-8").endswith("\n")):
        assert forkserver.is_loading()
    assert set(map(int, told.read_text(encoding="utf-8").split())) >= STOP_SIGNALS


def test_one_that_hangs_while_it_loads_costs_a_bounded_time_and_only_once(
    start: Callable[..., DriverForkserver], tmp_path: Path
) -> None:
    clock = Clock()
    forkserver = start(HANGS, clock)
    forkserver.listen_beside(str(tmp_path / "raylet"), {})
    clock.now = 89.9
    assert forkserver.is_loading()
    clock.now = 90.1
    for _session in range(3):
        assert not forkserver.is_loading()
        assert forkserver.executable() is None
        assert not forkserver.fits(ENVIRONMENT)


def test_one_that_dies_while_it_loads_is_waited_for_no_longer(
    start: Callable[..., DriverForkserver], tmp_path: Path
) -> None:
    forkserver = start(DIES)
    forkserver.listen_beside(str(tmp_path / "raylet"), {})
    await_loaded(forkserver)
    assert forkserver.executable() is None


def test_one_that_falls_silent_later_is_asked_once_and_never_again(
    start: Callable[..., DriverForkserver], tmp_path: Path
) -> None:
    forkserver = start(ANSWERS.format(times=1))
    forkserver.listen_beside(str(tmp_path / "raylet"), {})
    await_loaded(forkserver)
    assert forkserver.executable() is not None
    assert forkserver.executable() is None
    assert not forkserver.fits(ENVIRONMENT)


def test_workers_with_another_environment_are_not_forked_from_it(
    start: Callable[..., DriverForkserver],
) -> None:
    forkserver = start(HANGS)
    assert forkserver.fits(dict(ENVIRONMENT))
    assert not forkserver.fits({**ENVIRONMENT, "MALLOC_ARENA_MAX": "1"})
