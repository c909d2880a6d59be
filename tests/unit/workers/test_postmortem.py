"""What is learnt of a worker on its node: where its threads are, asked of this very process."""

import faulthandler
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.training.health.postmortem import (
    LOG_TAIL_LINES,
    STACKS_SIGNAL,
    dump_stacks_on_request,
    log_tail,
    stacks,
)
from tests.unit.other_user import as_nobody, common_folder, needs_root


@contextmanager
def answering(file: Path) -> Iterator[None]:
    with file.open("w") as stream:
        faulthandler.register(STACKS_SIGNAL, file=stream, all_threads=True)
        try:
            yield
        finally:
            faulthandler.unregister(STACKS_SIGNAL)


@contextmanager
def in_training(depth: int = 0, file: str = "/somewhere/jobs/training/loop/attempt.py") -> Iterator[None]:
    """A thread whose frames are in a file of the training's name, or of another."""
    ready, done = threading.Event(), threading.Event()

    def wait() -> None:
        ready.set()
        done.wait(30)

    names = {"wait": wait}
    source = "def stuck(depth):\n    stuck(depth - 1) if depth else wait()\n"
    exec(compile(source, file, "exec"), names)
    thread = threading.Thread(target=names["stuck"], args=(depth,), daemon=True)
    thread.start()
    ready.wait(30)
    try:
        yield
    finally:
        done.set()
        thread.join(30)


def test_the_training_thread_is_told_first(tmp_path: Path) -> None:
    file = tmp_path / "stacks.txt"
    # Python tells the newest thread first.
    with answering(file), in_training(), in_training(file="/somewhere/jobs/launch/ray_train/heartbeat.py"):
        found = stacks(os.getpid(), str(file))
    assert found[0].endswith("(most recent call first):")
    first_thread = found[1 : next(place for place, line in enumerate(found[1:], 1) if "hread 0x" in line)]
    assert any("jobs/training/loop/attempt.py" in line for line in first_thread)
    assert any("test_postmortem.py" in line for line in found)


def test_of_a_deep_stack_the_newest_calls_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "stacks.txt"
    with answering(file), in_training(depth=60):
        found = stacks(os.getpid(), str(file))
    assert len(found) == LOG_TAIL_LINES
    assert "wait" in found[1]


def test_asked_twice_it_tells_of_now(tmp_path: Path) -> None:
    file = tmp_path / "stacks.txt"
    with answering(file):
        with in_training():
            stacks(os.getpid(), str(file))
        found = stacks(os.getpid(), str(file))
    assert found
    assert not any("jobs/training/loop/attempt.py" in line for line in found)


def test_a_process_that_is_gone_tells_of_none(tmp_path: Path) -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    assert stacks(pid, str(tmp_path / "stacks.txt")) == ()


def test_a_process_that_was_stopped_is_not_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "stacks.txt"
    file.touch()
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            assert stacks(process.pid, str(file)) == ("is stopped, as by SIGSTOP, and can't tell where",)
        finally:
            process.kill()


PLANTS = """
from pathlib import Path
folder, pid, victim = Path(sys.argv[1]), *sys.argv[2:]
become()
(folder / f"longhaul-stacks-{pid}.txt").symlink_to(victim)
(folder / "worker.out").symlink_to(victim)
"""


@needs_root
def test_a_link_that_another_user_planted_among_the_logs_is_neither_written_nor_read(tmp_path: Path) -> None:
    victim = tmp_path / "authorized_keys"
    victim.write_text("mine alone")
    with common_folder() as logs:
        as_nobody(PLANTS, logs, os.getpid(), victim)
        file = dump_stacks_on_request(logs)
        try:
            with in_training():
                assert any("jobs/training/loop/attempt.py" in line for line in stacks(os.getpid(), file))
        finally:
            faulthandler.unregister(STACKS_SIGNAL)
        assert Path(file).stat().st_mode & 0o777 == 0o600
        assert log_tail((str(logs / "worker.out"),)) == ()
    assert victim.read_text() == "mine alone"


def test_a_process_that_has_the_number_of_a_worker_that_ended_gets_no_signal(tmp_path: Path) -> None:
    """It would end that process, which knows nothing of the signal."""
    file = tmp_path / "longhaul-stacks.txt"
    file.touch()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert stacks(other.pid, str(file)) == ()
        told, _ = other.communicate(b"still here", timeout=60)
    assert (told, other.returncode) == (b"still here", 0)
