"""A run's driver as its supervisor sees it: started, asked to stop, and ended.

``Child`` is a driver that runs as a process of this machine.
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
from jobs.commandline.set_values import secrets_in_files
from jobs.training.task.stop_request import StopRequest

# Only a supervisor sees these codes. Another driver is at work on the run; the run was given up; the
# cluster lacks what the run needs.
EXIT_OCCUPIED, EXIT_GIVEN_UP, EXIT_NO_CLUSTER = 3, 4, 5
EXIT_CODES = (
    EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_OCCUPIED, EXIT_GIVEN_UP, EXIT_NO_CLUSTER,
)  # fmt: skip
_ROOT = Path(__file__).resolve().parents[2]
# A driver that is interrupted ends its workers first, which takes time.
_LAST_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverEnd:
    """How a driver ended: its exit ``code``, or None if something killed it. ``why`` is for people.

    ``is_stopped``: the driver was asked to stop, and no exit code tells whether the run was saved by then.
    """

    code: int | None
    why: str
    is_stopped: bool = False


class Away(Exception):
    """The cluster that is to run the driver does not answer."""


class DriverHandle(Protocol):
    def end(self) -> DriverEnd | None:
        """How the driver ended; None while it runs, or while nobody can tell."""

    def unseen_s(self) -> float:
        """For how many seconds nobody has been able to tell; 0 if the last look succeeded."""

    def stop(self, stop_request: StopRequest) -> None:
        """Asks the driver to save and end; does not wait."""

    def kill(self) -> None: ...


# Takes the arguments of ``longhaul train`` for the driver; may raise ``Away``.
StartDriver = Callable[[list[str]], DriverHandle]


class Child:
    """A driver as a process of this machine. Ctrl-C reaches the driver only through its supervisor."""

    def __init__(self, arguments: list[str]) -> None:
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        environment = os.environ | {"PYTHONPATH": path}
        with secrets_in_files(arguments) as (words, files):
            command = [sys.executable, "-m", "jobs.cli", "train", *words]
            self._process = subprocess.Popen(command, env=environment, start_new_session=True, pass_fds=files)

    def end(self) -> DriverEnd | None:
        code = self._process.poll()
        if code is None:
            return None
        if code >= 0:
            return DriverEnd(code=code, why=f"the driver ended with exit code {code}")
        return DriverEnd(code=None, why=f"the driver was ended by {signal.Signals(-code).name}")

    def unseen_s(self) -> float:
        return 0.0

    def stop(self, stop_request: StopRequest) -> None:
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the driver by SIGINT, and by SIGKILL as the last resort. After SIGINT a driver ends its
        workers first.
        """
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
            with suppress(subprocess.TimeoutExpired):
                self._process.send_signal(number)
                self._process.wait(_LAST_PATIENCE_S / 3)
                return
