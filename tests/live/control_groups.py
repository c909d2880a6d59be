"""A control group for a command and all that it starts, whatever that calls itself. Needs root."""

import os
import signal
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.hosts import wait_until

_GROUPS = Path("/sys/fs/cgroup")
# Version 2 alone, version 2 beside version 1, and hierarchies of version 1 that limit nothing.
_HIERARCHIES = (_GROUPS, _GROUPS / "unified", _GROUPS / "systemd", _GROUPS / "pids")
_ENTERS = 'echo $$ > "$0" && exec "$@"'
_KILLED_AFTER_S = 30.0


def _hierarchy() -> Path | None:
    writable = (place for place in _HIERARCHIES if os.access(place / "cgroup.procs", os.W_OK))
    return next(writable, None) if os.geteuid() == 0 else None


def why_not() -> str | None:
    """Why there can be no control group; None where there can."""
    return None if _hierarchy() else "no control group can be made here"


class ControlGroup:
    def __init__(self, folder: Path) -> None:
        self._procs = folder / "cgroup.procs"

    def entered_by(self, command: Sequence[str]) -> list[str]:
        """``command``, which enters the group before it begins."""
        return ["sh", "-c", _ENTERS, str(self._procs), *command]

    def processes(self) -> list[psutil.Process]:
        found = []
        for pid in self._procs.read_text(encoding="ascii").split():
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(int(pid)))
        return found

    def names(self) -> list[str]:
        found = []
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                found.append(process.name())
        return found

    def send(self, number: signal.Signals) -> None:
        """Once to each process, those too that start meanwhile, as systemd does it."""
        told: set[psutil.Process] = set()
        while new := set(self.processes()) - told:
            told |= new
            for process in new:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)


@contextmanager
def control_group() -> Iterator[ControlGroup]:
    """What is left in it at the end is killed."""
    hierarchy = _hierarchy()
    assert hierarchy is not None, why_not()
    folder = hierarchy / f"longhaul-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    group = ControlGroup(folder)
    try:
        yield group
    finally:
        group.send(signal.SIGKILL)
        wait_until(lambda: not group.processes(), _KILLED_AFTER_S, "the end of all processes")
        folder.rmdir()
