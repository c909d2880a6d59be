"""Identifies the code that ran: a digest of its source, and the commit if known."""

import hashlib
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
_ROOMS = ("cluster", "checkpointing", "reporting", "jobs")


@cache
def source_digest() -> str:
    """The digest of all Python files of the four packages, which a tree without ``.git`` has, too."""
    digest = hashlib.sha256()
    for room in _ROOMS:
        for path in sorted((_ROOT / room).rglob("*.py")):
            digest.update(str(path.relative_to(_ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@cache
def commit() -> str | None:
    return commit_of(_ROOT)


def commit_of(root: Path) -> str | None:
    """The commit that HEAD names, read from ``.git`` without running git. None outside a checkout."""
    git = root / ".git"
    try:
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head
        branch = head.removeprefix("ref: ")
        if (git / branch).exists():
            return (git / branch).read_text(encoding="utf-8").strip()
        packed = (line.split() for line in (git / "packed-refs").read_text(encoding="utf-8").splitlines())
        return next((words[0] for words in packed if words[1:] == [branch]), None)
    except OSError:
        return None
