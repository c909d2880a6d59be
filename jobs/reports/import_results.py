"""``longhaul import`` reads older results and stores them beside Longhaul's own."""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Store, StoreError
from checkpointing.stores.opening import open_store
from cluster.yaml_file import read_named
from jobs.commandline.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE, complain, run_command
from jobs.commandline.output import one_line, printable
from jobs.commandline.store_location import store_base
from jobs.commandline.store_waits import waits_told
from reporting.analysis.formatting import counted
from reporting.importers.contents import listed
from reporting.importers.mapping import MappingError, NameMapping, read_mapping, shipped
from reporting.importers.reading import Import, read_all
from reporting.results.imported import FOLDER, file_of, read_imported, readable
from reporting.results.records import RecordError
from reporting.results.rows import Row

_MOST_LINES = 200
_MOST_BYTES = 256 << 20  # of an import in the store
_MOST_MAPPING_BYTES = 4 << 20


def import_results(args: argparse.Namespace) -> int:
    """Imports the paths in ``args``. A run already in the store is left out, so repeating changes nothing."""
    with waits_told("import"):
        return run_command(
            "import", lambda: _import(args), {StoreError: EXIT_USAGE, MappingError: EXIT_USAGE}
        )


def _import(args: argparse.Namespace) -> int:
    mapping = _mapping(args.mapping)
    store = open_store(args.store, base=store_base())
    name = readable(_name(args.paths[0].resolve()))
    try:
        known = _known_runs(store)
        found = read_all(args.paths, mapping, name=name, group=args.group, vendor=args.vendor, known=known)
        new = [row for row in found.rows if row.run_id not in known]
        stored = _store(store, new, name) if new else None
    except StoreError as error:
        return complain("import", error, EXIT_FAILED)
    for problem in found.unread:
        complain("import", one_line(f"{problem.label}: {problem.reason}"), EXIT_FAILED)
    if args.json:
        print(json.dumps(_summary(found, new, stored), indent=1))
    else:
        print(printable("\n".join(map(one_line, _lines(found, new, stored, store.url)))))
    return EXIT_FAILED if found.unread else EXIT_OK


def _name(path: Path) -> str:
    return path.name if path.is_dir() else path.stem


def _mapping(path: Path | None) -> NameMapping:
    if path is None:
        return shipped()
    try:
        data = read_named(path, _MOST_MAPPING_BYTES)
    except OSError as error:
        raise MappingError(f"{path}: {error.strerror}; expected a mapping file, TOML or JSON") from None
    if len(data) > _MOST_MAPPING_BYTES:
        raise MappingError(f"{path}: has more than the {_MOST_MAPPING_BYTES:,} bytes that are read")
    return shipped().extended(read_mapping(data, path.name))


def _known_runs(store: Store) -> dict[str, Row]:
    """All runs imported before, by id. The report names unreadable imports; here they count as empty."""
    known: dict[str, Row] = {}
    for name in sorted(store.list(FOLDER)):
        try:
            data = get_bounded(store, name, most_bytes=_MOST_BYTES)
            known |= {row.run_id: row for row in read_imported(data, name) if row.run_id}
        except (RecordError, TooLarge):
            continue
    return known


def _store(store: Store, rows: Sequence[Row], name: str) -> str:
    place, data = file_of(rows, name)
    # The name is a digest of the content, so any other content under the name is damaged and may be replaced.
    store.put(place, data)
    return place


def _summary(found: Import, new: Sequence[Row], stored: str | None) -> dict[str, Any]:
    return {
        "stored": stored,
        "num_runs": len(found.rows),
        "num_new": len(new),
        "read": [asdict(read) for read in found.read],
        "unread": [asdict(problem) for problem in found.unread],
        "warnings": [{"text": text, "num_runs": num_runs} for text, num_runs in _warnings(new)],
    }


def _lines(found: Import, new: Sequence[Row], stored: str | None, url: str) -> Iterator[str]:
    sources = [*_of_sources(found)]
    yield from sources[:_MOST_LINES]
    if len(sources) > _MOST_LINES:
        yield f"... and {len(sources) - _MOST_LINES:,} more lines; --json has all"
    for text, num_runs in _warnings(new):
        yield f"warning: {text} ({counted(num_runs, 'run')})"
    num_known = len(found.rows) - len(new)
    if stored:
        already = f"; {counted(num_known, 'run')} there already" if num_known else ""
        yield f"{counted(len(new), 'run')} imported into {url}: {stored}{already}"
    elif num_known:
        yield f"nothing new: {counted(num_known, 'run')} already in {url}, nothing was changed"
    else:
        yield f"nothing was imported into {url}"


def _of_sources(found: Import) -> Iterator[str]:
    for read in found.read:
        repeated = f", {read.num_repeated} of them read before" if read.num_repeated else ""
        yield f"{read.label}: {counted(read.num_runs, 'run')}{repeated}"
        if read.not_mapped:
            yield f"  not mapped: {listed(read.not_mapped, most=20)}"
        for note in read.notes:
            yield f"  {note}"


def _warnings(rows: Sequence[Row]) -> list[tuple[str, int]]:
    return sorted(Counter(text for row in rows for text in row.warnings).items())
