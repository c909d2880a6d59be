"""What a file's name says is in it. Pure."""

from pathlib import PurePath

from jobs.packing.pieces import InputFile, SourceKind

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


def is_unpacked(path: InputFile | PurePath) -> bool:
    """Whether the file is compressed in a way that is taken."""
    return _divided(_name(path))[1] in UNPACKED


def ending(path: InputFile | PurePath) -> str:
    """The ending of a file's name, such as ``.jsonl.gz``, in small letters."""
    inner, outer = inner_suffix(path), _divided(_name(path))[1]
    return inner + outer if outer in UNPACKED else inner


def inner_suffix(path: InputFile | PurePath) -> str:
    """The ending that tells what is in the file: of ``a.jsonl.gz`` it is ``.jsonl``."""
    stem, suffix = _divided(_name(path))
    return _divided(stem)[1] if suffix in UNPACKED else suffix


def is_refused_wrapping(path: InputFile | PurePath) -> bool:
    """Whether the file is compressed in a way that is not taken."""
    inner = inner_suffix(path)
    return inner in COMPRESSED or (is_unpacked(path) and KINDS.get(inner) in WITHOUT_WRAPPING)


def _name(path: InputFile | PurePath) -> str:
    return str(path).rpartition("/")[2].lower()


def _divided(name: str) -> tuple[str, str]:
    """As ``PurePath`` divides a name, which takes ten times as long: that counts for many small files."""
    at = name.rfind(".")
    return (name[:at], name[at:]) if 0 < at < len(name) - 1 else (name, "")
