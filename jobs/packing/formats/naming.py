"""What a file's name says is in it. Pure."""

from pathlib import PurePath

from jobs.packing.pieces import SourceKind

KINDS: dict[str, SourceKind] = {
    ".txt": "text",
    ".text": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}
UNPACKED = (".gz", ".zst")
COMPRESSED = (*UNPACKED, ".bz2", ".xz", ".lz4", ".zip", ".7z", ".tar", ".tgz")
# They have compression of their own, and are read from several places at once.
WITHOUT_WRAPPING: tuple[SourceKind, ...] = ("parquet", "arrow")


def is_unpacked(path: str | PurePath) -> bool:
    """Whether the file is compressed in a way that is taken."""
    return PurePath(path).suffix.lower() in UNPACKED


def ending(path: str | PurePath) -> str:
    """The ending of a file's name, such as ``.jsonl.gz``, in small letters."""
    suffixes = PurePath(PurePath(path).name.lower()).suffixes
    return "".join(suffixes[-2:] if suffixes and suffixes[-1] in UNPACKED else suffixes[-1:])


def inner_suffix(path: str | PurePath) -> str:
    """The ending that tells what is in the file: of ``a.jsonl.gz`` it is ``.jsonl``."""
    lower = PurePath(PurePath(path).name.lower())
    return PurePath(lower.stem).suffix if lower.suffix in UNPACKED else lower.suffix


def is_refused_wrapping(path: str | PurePath) -> bool:
    """Whether the file is compressed in a way that is not taken."""
    inner = inner_suffix(path)
    return inner in COMPRESSED or (is_unpacked(path) and KINDS.get(inner) in WITHOUT_WRAPPING)
