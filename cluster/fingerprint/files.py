"""Reads the small files in which a kernel tells its settings. What can't be read is empty. Needs no torch."""

from pathlib import Path

# The list of all that a process has mapped is the longest.
_MOST_BYTES = 2**24
# The kernel refuses to answer a larger question about a setting.
_PIECE_BYTES = 2**16


def text_of(path: Path) -> str:
    """The file's beginning without surrounding blanks; empty if there is no such file or it can't be read."""
    data = b""
    try:
        with path.open("rb", buffering=0) as file:
            while len(data) < _MOST_BYTES and (piece := file.read(_PIECE_BYTES)):
                data += piece
    except OSError:
        return ""
    return data.decode(errors="replace").strip()


def chosen(text: str) -> str:
    """The word in brackets, where a file lists all that could be chosen: ``always [madvise] never``."""
    before, _, rest = text.partition("[")
    return rest.partition("]")[0] if rest else before


def entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
