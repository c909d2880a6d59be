"""What can still be learnt of a worker on its node after its end. Pure: any process there can look."""

from dataclasses import dataclass
from pathlib import Path

LOG_TAIL_LINES = 20

# Twenty lines are far shorter; a worker that logged for hours must not be read whole.
_LOG_TAIL_BYTES = 2**16
_VMSTAT = Path("/proc/vmstat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """``oom_kills`` is how many processes the node's kernel has ended for want of memory since it started."""

    log_tail: tuple[str, ...]
    oom_kills: int


def examine(logs: tuple[str, ...]) -> Remains:
    """To be called on the worker's node, with the files that it wrote to."""
    return Remains(log_tail=log_tail(logs), oom_kills=oom_kills())


def log_tail(files: tuple[str, ...]) -> tuple[str, ...]:
    """The last lines of ``files``, the last file's the last; at most 20 in all."""
    lines = [line for file in files for line in _last_lines(Path(file))]
    return tuple(lines[-LOG_TAIL_LINES:])


def _last_lines(file: Path) -> list[str]:
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - _LOG_TAIL_BYTES))
            text = stream.read().decode(errors="replace")
    except OSError:
        return []
    # Ray marks the borders of tasks in these files for its own log monitor.
    return [line for line in text.splitlines() if not line.startswith(":")][-LOG_TAIL_LINES:]


def oom_kills() -> int:
    """0 where the kernel doesn't tell."""
    try:
        counters = dict(line.split() for line in _VMSTAT.read_text().splitlines())
    except OSError:
        return 0
    return int(counters.get("oom_kill", 0))
