"""Tells which files are packed as what, and which are left out. Pure."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from jobs.commandline.text_table import TextColumn, as_text
from jobs.packing.formats.naming import ending
from jobs.packing.pieces import InputSource, Split, StoredObject


def counts_of_files(
    sources: Sequence[InputSource], ignored: Sequence[Path | StoredObject]
) -> dict[str, object]:
    return {"num_files": dict(Counter(source.kind for source in sources)), "num_ignored_files": len(ignored)}


def told_of_files(
    sources: Sequence[InputSource], ignored: Sequence[Path | StoredObject], splits: Sequence[Split] = ()
) -> str:
    """A table with a line for each ending of file names, and for each split that is left out."""
    taken = Counter((ending(source.path), source.kind) for source in sources)
    sizes: Counter[str] = Counter()
    for source in sources:
        sizes[ending(source.path)] += sum(source.sizes)
    rows = [
        [_ending(suffix), str(kind), f"{count:,}", f"{sizes[suffix]:,}"]
        for (suffix, kind), count in sorted(taken.items())
    ]
    left = Counter(ending(path) for path in ignored)
    rows += [[_ending(suffix), "left out (--as)", f"{left[suffix]:,}", ""] for suffix in sorted(left)]
    others = Counter({name: count for split in splits for name, count in split.others.items()})
    rows += [[f"split {name}", "left out (--split)", f"{others[name]:,}", ""] for name in sorted(others)]
    files, kinds, counts, num_bytes = zip(*rows, strict=True) if rows else ((), (), (), ())
    columns = [
        TextColumn(title="files", texts=files),
        TextColumn(title="taken as", texts=kinds),
        TextColumn(title="number", texts=counts, is_number=True),
        TextColumn(title="bytes", texts=num_bytes, is_number=True),
    ]
    return as_text(columns)


def _ending(suffix: str) -> str:
    return suffix or "no ending"
