"""What can still be learnt of a worker on its node after its end. Pure: any process there can look."""

import faulthandler
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp

LOG_TAIL_LINES = 20

# A row has room for twenty short lines, and one line can hold a whole stack of extension modules.
_LINE_CHARACTERS = 160
# A worker that logged for hours must not be read whole.
_READ_BYTES = 2**16
# Ray's own handler writes this for every signal that a process can still tell of.
_SIGNAL = re.compile(r"\*\*\* (SIG[A-Z]+) received")
# A worker answers it by writing where its threads are; nothing else in it listens to this one.
STACKS_SIGNAL = signal.SIGUSR1
_STACKS_TIMEOUT_S, _STACKS_INTERVAL_S = 3.0, 0.05
_TRAINING = "jobs/training/loop/attempt.py"
_VMSTAT = Path("/proc/vmstat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Postmortem:
    """``signal`` is the one that ended the process, if its log tells; SIGKILL leaves no word.

    ``oom_kills`` is how many processes the node's kernel has ended for want of memory since it started.
    """

    log_tail: tuple[str, ...]
    signal: str | None
    oom_kills: int


def examine(logs: tuple[str, ...]) -> Postmortem:
    """To be called on the worker's node, with the files that it wrote to."""
    lines = _last_lines(logs)
    signals = [found[1] for line in lines if (found := _SIGNAL.search(line))]
    return Postmortem(log_tail=_short(lines), signal=signals[0] if signals else None, oom_kills=oom_kills())


def answer_with_stacks(folder: Path) -> str:
    """The file to which this process will write where it is, as ``stacks`` asks, whatever Python is doing.

    It is new and for this user alone. Ray lets everybody write to its folder of logs: another user could have
    put a link there under a name that can be guessed.
    """
    descriptor, file = mkstemp(".txt", f"longhaul-stacks-{os.getpid()}-", folder)
    faulthandler.register(STACKS_SIGNAL, file=descriptor, all_threads=True)
    return file


def stacks(pid: int, file: str) -> tuple[str, ...]:
    """Where each thread of the process is, as far as it still answers: to be called on its node.

    The training comes first, told by the files that it goes through; at most 20 lines.
    """
    if _is_stopped(pid):
        return ("is stopped, as by SIGSTOP, and can't tell where",)
    begin = _size(file)
    try:
        os.kill(pid, STACKS_SIGNAL)
    except OSError:
        return ()
    text = _once_written(file, begin)
    threads = [thread.splitlines() for thread in text.split("\n\n") if thread.strip()]
    threads.sort(key=lambda lines: not any(_TRAINING in line for line in lines))
    return tuple(line.strip()[:_LINE_CHARACTERS] for lines in threads for line in lines)[:LOG_TAIL_LINES]


def _is_stopped(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state in "Tt"


def _once_written(file: str, begin: int) -> str:
    """What stands behind ``begin`` once no more comes, or after so many seconds."""
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
    """At most 20 lines: the end of the last file, and of those before it what there is room for."""
    return _short(_last_lines(logs))


def _short(lines: list[str]) -> tuple[str, ...]:
    return tuple(line[:_LINE_CHARACTERS] for line in lines[-LOG_TAIL_LINES:])


def _last_lines(logs: tuple[str, ...]) -> list[str]:
    # Ray marks the borders of tasks in these files, by lines that begin so, for its own log monitor.
    return [line for log in logs for line in _end_of(Path(log)).splitlines() if not line.startswith(":")]


def _end_of(log: Path, at_most: int = _READ_BYTES) -> str:
    try:
        with open(log, "rb", opener=_no_link) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - min(at_most, _READ_BYTES)))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def _no_link(path: str, flags: int) -> int:
    """What is read here is kept with the run, and others can write to the folder too."""
    return os.open(path, flags | os.O_NOFOLLOW)


def oom_kills() -> int:
    """0 where the kernel doesn't tell."""
    try:
        counters = dict(line.split() for line in _VMSTAT.read_text().splitlines())
    except OSError:
        return 0
    return int(counters.get("oom_kill", 0))
