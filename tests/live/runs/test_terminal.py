"""A terminal that closes, and SIGTERM, end a command and its private Ray. The terminal is a real one."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from cluster.local_ray.reaper import MARK
from tests.hosts import wait_until
from tests.live.command_line import DEADLINE_S, ROOT, rows, sweep_command, write_spec
from tests.live.runs.test_stopping import RUN, command_of, is_training, view_of

pytestmark = pytest.mark.soak

SWEEP = """
name: quick
models: [llama-tiny]
axes: {strategy: [ddp], world_size: [1], seq_len: [32], micro_batch: [1]}
measure: {steps: 200, warmup: 1}
repeats: 5
limits: {schedule_timeout_s: 60, cell_timeout_s: 120}
"""
# Makes its standard input the terminal of its session, then becomes the command.
IN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A command in a terminal of its own. What it starts has its ``TMPDIR``, which nobody else has."""

    process: "subprocess.Popen[bytes]"
    folder: Path
    close: Callable[[], None]

    def processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._environment(process)]

    def rays(self) -> set[str]:
        """The folders of its private Rays."""
        marks = (self._environment(process).get(MARK) for process in self.processes())
        return {mark for mark in marks if mark}

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def _environment(self, process: psutil.Process) -> dict[str, str]:
        with suppress(psutil.Error):
            found = process.environ()
            return found if found.get("TMPDIR") == str(self.folder) else {}
        return {}


@contextmanager
def shown(command: list[str], folder: Path) -> Iterator[Shown]:
    folder.mkdir()
    ours, its = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", IN_TERMINAL, *command],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        | {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1"},
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    )
    os.close(its)
    is_closed = threading.Event()
    reader = threading.Thread(target=_read_all, args=(ours, is_closed))
    reader.start()

    def close() -> None:
        is_closed.set()
        reader.join()
        os.close(ours)

    found = Shown(process=process, folder=folder, close=close)
    try:
        yield found
    finally:
        for one in found.processes():
            with suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait(DEADLINE_S)
        if not is_closed.is_set():
            close()


def _read_all(terminal: int, is_closed: threading.Event) -> None:
    """Takes what is said, as a terminal does: the command would wait otherwise."""
    os.set_blocking(terminal, False)
    while not is_closed.wait(0.05):
        with suppress(OSError):
            os.read(terminal, 2**16)


ENDS = pytest.mark.parametrize("end", [Shown.terminate, lambda one: one.close()], ids=["SIGTERM", "closed"])


@ENDS
def test_a_training_saves_and_leaves_no_process_and_no_folder_of_its_ray(
    end: Callable[[Shown], None], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with shown(command_of(write_spec(tmp_path, RUN), store), tmp_path / "its") as found:
        wait_until(is_training(store), DEADLINE_S)
        rays = found.rays()
        end(found)
        code = found.process.wait(DEADLINE_S)
        left = [" ".join(one.cmdline())[:120] for one in found.processes()]

    assert (code, left) == (0, [])
    assert rays and not any(Path(ray).exists() for ray in rays)
    view = view_of(store, "r")
    assert view.stopped_step == view.generations[-1].step > 0


@ENDS
def test_a_sweep_keeps_its_rows_and_leaves_no_process_and_no_folder_of_its_ray(
    end: Callable[[Shown], None], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with shown(sweep_command(write_spec(tmp_path, SWEEP), store), tmp_path / "its") as found:
        wait_until(lambda: bool(rows(store)), DEADLINE_S)
        rays = found.rays()
        end(found)
        code = found.process.wait(DEADLINE_S)
        left = [" ".join(one.cmdline())[:120] for one in found.processes()]

    assert (code, left) == (130, [])
    assert rays and not any(Path(ray).exists() for ray in rays)
    assert all(row["status"] == "ok" for row in rows(store))
