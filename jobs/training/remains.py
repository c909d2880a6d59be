"""What can still be learnt of a worker on its node after its end. Pure: any process there can look."""

import re
from dataclasses import dataclass
from pathlib import Path

LOG_TAIL_LINES = 20

# A row has room for twenty short lines, and one line can hold a whole stack of extension modules.
_LINE_CHARACTERS = 160
# A worker that logged for hours must not be read whole.
_READ_BYTES = 2**16
# Ray's own handler writes this for every signal that a process can still tell of.
_SIGNAL = re.compile(r"\*\*\* (SIG[A-Z]+) received")
_VMSTAT = Path("/proc/vmstat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """``signal`` is the one that ended the process, if its log tells; SIGKILL leaves no word.

    ``oom_kills`` is how many processes the node's kernel has ended for want of memory since it started.
    """

    log_tail: tuple[str, ...]
    signal: str | None
    oom_kills: int


def examine(logs: tuple[str, ...]) -> Remains:
    """To be called on the worker's node, with the files that it wrote to."""
    lines = _last_lines(logs)
    signals = [found[1] for line in lines if (found := _SIGNAL.search(line))]
    return Remains(log_tail=_short(lines), signal=signals[0] if signals else None, oom_kills=oom_kills())


def log_tail(logs: tuple[str, ...]) -> tuple[str, ...]:
    """At most 20 lines: the end of the last file, and of those before it what there is room for."""
    return _short(_last_lines(logs))


def _short(lines: list[str]) -> tuple[str, ...]:
    return tuple(line[:_LINE_CHARACTERS] for line in lines[-LOG_TAIL_LINES:])


def _last_lines(logs: tuple[str, ...]) -> list[str]:
    # Ray marks the borders of tasks in these files, by lines that begin so, for its own log monitor.
    return [line for log in logs for line in _end_of(Path(log)).splitlines() if not line.startswith(":")]


def _end_of(log: Path) -> str:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _READ_BYTES))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def oom_kills() -> int:
    """0 where the kernel doesn't tell."""
    try:
        counters = dict(line.split() for line in _VMSTAT.read_text().splitlines())
    except OSError:
        return 0
    return int(counters.get("oom_kill", 0))
