"""A run's driver as its keeper sees it: started, asked to stop, and how it ended.

One that is a process of this machine is here.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from jobs.commandline.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE
from jobs.training.task.stop_request import StopRequest

# What a driver says to its keeper alone: another one is at work on the run; it makes no sense to go on; the
# cluster does not have what the run needs.
EXIT_OCCUPIED, EXIT_GIVEN_UP, EXIT_NO_CLUSTER = 3, 4, 5
EXIT_CODES = (
    EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_OCCUPIED, EXIT_GIVEN_UP, EXIT_NO_CLUSTER,
)  # fmt: skip
_ROOT = Path(__file__).resolve().parents[2]
# A driver that is told to end at once ends its workers first.
_LAST_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverEnd:
    """How a driver ended: with its exit code, or None where something ended it. ``why`` is for people.

    ``is_stopped``: it was asked to, and there is no exit code to tell whether it had saved by then.
    """

    code: int | None
    why: str
    is_stopped: bool = False


class Away(Exception):
    """The cluster that is to run the driver does not answer."""


class DriverHandle(Protocol):
    def end(self) -> DriverEnd | None:
        """None while it is at work, or while nobody can tell."""

    def unseen_s(self) -> float:
        """For how long nobody could tell by now; 0 if it was seen the last time."""

    def stop(self, wish: StopRequest) -> None:
        """Asks it to save and end; does not wait."""

    def kill(self) -> None: ...


# Gets the arguments of ``longhaul train`` for the driver; may raise ``Away``.
StartDriver = Callable[[list[str]], DriverHandle]


class Child:
    """A driver as a process of this machine. Ctrl-C reaches it by its keeper alone."""

    def __init__(self, arguments: list[str]) -> None:
        command = [sys.executable, "-m", "jobs.cli", "train", *arguments]
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        environment = os.environ | {"PYTHONPATH": path}
        self._process = subprocess.Popen(command, env=environment, start_new_session=True)

    def end(self) -> DriverEnd | None:
        code = self._process.poll()
        if code is None:
            return None
        if code >= 0:
            return DriverEnd(code=code, why=f"the driver ended with exit code {code}")
        return DriverEnd(code=None, why=f"the driver was ended by {signal.Signals(-code).name}")

    def unseen_s(self) -> float:
        return 0.0

    def stop(self, wish: StopRequest) -> None:
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Its workers go with it: a driver that is ended by SIGINT ends them first."""
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
            with suppress(subprocess.TimeoutExpired):
                self._process.send_signal(number)
                self._process.wait(_LAST_PATIENCE_S / 3)
                return
