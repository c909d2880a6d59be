"""How much memory this process's cgroups leave it, as those of a container do: of version 1 and of 2."""

from collections.abc import Iterator
from pathlib import Path

# The limit, what is used of it, and which caches of files the kernel gives back first.
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def memory_left(root: Path = Path("/")) -> int | None:
    """Returns None where nothing limits it, or nothing says so."""
    found = (_left(folder, *names) for folder in _cgroups(root) for names in _FILES)
    return min((left for left in found if left is not None), default=None)


def _cgroups(root: Path) -> Iterator[Path]:
    """Yields this process's cgroups and those above: each may have a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        # In a container the path may be the host's, and what lies at the top is the container's.
        place = top / path.lstrip("/")
        yield from (place, *place.parents)


def _left(folder: Path, limit: str, used: str, cache: str) -> int | None:
    try:
        allowed = (folder / limit).read_text(encoding="utf-8").strip()
        if not allowed.isdigit():
            return None
        taken = int((folder / used).read_text(encoding="utf-8"))
        stat = dict(
            line.split() for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines()
        )
        return max(0, int(allowed) - taken + int(stat.get(cache, 0)))
    except (OSError, ValueError):
        return None
