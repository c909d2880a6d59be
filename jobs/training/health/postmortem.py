"""Finds out on a worker's node why it ended or where it hangs. Pure: any process on the node can do it."""

import faulthandler
import os
import re
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp

LOG_TAIL_LINES = 20

# A row has room for twenty short lines, and one line can hold a long list of extension modules.
_LINE_CHARACTERS = 160
# Only the end of a log is read: a worker may have logged for hours.
_READ_BYTES = 2**16
# Ray's own handler writes this line for every signal that a process can catch.
_SIGNAL = re.compile(r"\*\*\* (SIG[A-Z]+) received")
# A worker answers this signal by writing its threads' stacks; nothing else in a worker uses the signal.
STACKS_SIGNAL = signal.SIGUSR1
_STACKS_TIMEOUT_S, _STACKS_INTERVAL_S = 3.0, 0.05
_TRAINING_LOOP = "jobs/training/loop/attempt.py"
_VMSTAT = Path("/proc/vmstat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Postmortem:
    """What is known about a worker that ended.

    ``signal`` is the signal that ended the process, if its log says so; SIGKILL leaves no trace there.
    ``oom_kills`` is how many processes the node's kernel has killed for lack of memory since it started.
    """

    log_tail: tuple[str, ...]
    signal: str | None
    oom_kills: int


def examine(logs: tuple[str, ...]) -> Postmortem:
    """Examines an ended worker. Must be called on the worker's node, with the worker's log files."""
    lines = _last_lines(logs)
    signals = [found[1] for line in lines if (found := _SIGNAL.search(line))]
    return Postmortem(log_tail=_short(lines), signal=signals[0] if signals else None, oom_kills=oom_kills())


def dump_stacks_on_request(folder: Path) -> str:
    """Makes this process write its stacks to a file each time ``stacks`` asks; returns the file.

    It answers whatever Python is doing. The file is new and private to this user: Ray lets everybody write to
    its folder of logs, so another user could have put a link there under a name that can be guessed.
    """
    descriptor, file = mkstemp(".txt", f"longhaul-stacks-{os.getpid()}-", folder)
    faulthandler.register(STACKS_SIGNAL, file=descriptor, all_threads=True)
    return file


def stacks(pid: int, file: str) -> tuple[str, ...]:
    """The stack of each thread of the process, if it still answers. Must be called on the process's node.

    Threads that run the training loop come first. At most 20 lines. A process that does not hold ``file``
    open is another one, which has got the number of a worker that ended: the signal would end it.
    """
    if _is_stopped(pid):
        return ("is stopped, as by SIGSTOP, and can't tell where",)
    if not _holds_open(pid, file):
        return ()
    begin = _size(file)
    try:
        os.kill(pid, STACKS_SIGNAL)
    except OSError:
        return ()
    text = _text_after(file, begin)
    threads = [thread.splitlines() for thread in text.split("\n\n") if thread.strip()]
    threads.sort(key=lambda lines: not any(_TRAINING_LOOP in line for line in lines))
    return tuple(line.strip()[:_LINE_CHARACTERS] for lines in threads for line in lines)[:LOG_TAIL_LINES]


def _holds_open(pid: int, file: str) -> bool:
    try:
        wanted, descriptors = Path(file).stat(), [*Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
    for descriptor in descriptors:
        with suppress(OSError):
            found = descriptor.stat()
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return True
    return False


def _is_stopped(pid: int) -> bool:
    try:
        state = (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()[0]
        )
    except OSError:
        return False
    return state in "Tt"


def _text_after(file: str, begin: int) -> str:
    """The text written to ``file`` after byte ``begin``, once no more comes, or after 3 s at the latest."""
    deadline = time.monotonic() + _STACKS_TIMEOUT_S
    size = begin
    while time.monotonic() < deadline:
        time.sleep(_STACKS_INTERVAL_S)
        before, size = size, _size(file)
        if size == before > begin:
            break
    return _end_of(Path(file), at_most=size - begin) if size > begin else ""


def _size(file: str) -> int:
    try:
        return Path(file).stat().st_size
    except OSError:
        return 0


def log_tail(logs: tuple[str, ...]) -> tuple[str, ...]:
    """The last 20 lines of all files together, in the order of the files."""
    return _short(_last_lines(logs))


def _short(lines: list[str]) -> tuple[str, ...]:
    return tuple(line[:_LINE_CHARACTERS] for line in lines[-LOG_TAIL_LINES:])


def _last_lines(logs: tuple[str, ...]) -> list[str]:
    # Lines that begin with a colon are marks of tasks, which Ray writes for its own log monitor.
    return [line for log in logs for line in _end_of(Path(log)).splitlines() if not line.startswith(":")]


def _end_of(log: Path, at_most: int = _READ_BYTES) -> str:
    try:
        with open(log, "rb", opener=_no_link) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - min(at_most, _READ_BYTES)))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def _no_link(path: str, flags: int) -> int:
    """Opens a file but no link: others can write to the folder, and what is read is kept with the run."""
    return os.open(path, flags | os.O_NOFOLLOW)


def oom_kills() -> int:
    """How many processes the kernel has killed for lack of memory; 0 if the kernel doesn't say."""
    try:
        counters = dict(line.split() for line in _VMSTAT.read_text(encoding="utf-8").splitlines())
    except OSError:
        return 0
    return int(counters.get("oom_kill", 0))
