"""Gathering reads all results of a store as rows: those of our sweeps, with measured device rates, and
imports.

A file that can't be read is named and skipped; the report is made without it. A store that can't be read
raises ``StoreError``, because half a table would be wrong.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from time import perf_counter

from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Missing, Store, is_name
from reporting.results.device_rates import read_machines, with_measured_peaks
from reporting.results.imported import FOLDER, read_imported
from reporting.results.records import RecordError
from reporting.results.result_rows import row_of
from reporting.results.rows import Row
from reporting.results.skipped import Skipped
from reporting.results.unfinished import Unfinished, unfinished

_NUM_READERS = 16
_BATCH = 64
# Of a result. A run of a million steps on 10,000 ranks has half of it.
MOST_RESULT_BYTES = 48 << 20
_MOST_IMPORT_BYTES = 256 << 20
# What has more waits for its turn, so that a batch of planted results fills no memory.
_MOST_IN_BATCH_BYTES = 256 << 10
# Seconds per file. Only a local disk answers faster than this.
_FAST_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Rows are in the order of their files' names, so that the same store gives the same table."""

    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...]
    unfinished: tuple[Unfinished, ...] = ()

    @property
    def unread_results(self) -> tuple[Skipped, ...]:
        """Those of ``skipped`` that may have been results: not devices' rates, not a sweep's description."""
        return tuple(
            file
            for file in self.skipped
            if file.name.endswith("/result.json") or file.name.startswith(f"{FOLDER}/")
        )


def gather(store: Store, *, sweeps: Sequence[str] = ()) -> Gathered:
    """Reads all results, or only those of ``sweeps``. Earlier attempts at a run are not read."""
    folders = [f"sweeps/{sweep}" for sweep in sweeps if is_name(sweep)] if sweeps else ["sweeps"]
    results = (name for folder in folders for name in store.list(folder) if name.endswith("/result.json"))
    rows, skipped = _read_all(
        store, results, lambda data, name: (row_of(data, name),), most_bytes=MOST_RESULT_BYTES
    )
    if not sweeps:
        imported, unread = _read_all(store, store.list(FOLDER), read_imported, most_bytes=_MOST_IMPORT_BYTES)
        rows, skipped = rows + imported, skipped + unread
    machines, unread_machines = read_machines(store)
    lacking, undescribed = unfinished(store, rows, skipped)
    return Gathered(
        rows=with_measured_peaks(rows, machines),
        skipped=skipped + unread_machines + undescribed,
        unfinished=lacking,
    )


def _read_all(
    store: Store,
    names: Iterable[str],
    read: Callable[[bytes, str], tuple[Row, ...]],
    *,
    most_bytes: int,
) -> tuple[tuple[Row, ...], tuple[Skipped, ...]]:
    rows: list[Row] = []
    skipped: list[Skipped] = []
    for name, data in _contents(store, sorted(names)):
        try:
            rows.extend(read(_read(store, name, most_bytes) if data is None else data, name))
        except RecordError as error:
            skipped.append(Skipped(name=name, reason=str(error)))
    return tuple(rows), tuple(skipped)


def _contents(store: Store, names: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
    """Yields each file's name, in order, and its bytes; None if it is large, or can't be read.

    For a remote store, threads read a batch of files while nothing is parsed: parsing at the same time slows
    down both. For a store that answers as fast as a local disk, threads cost more than they save, so its
    files are read one by one.
    """
    started = perf_counter()
    first = _get(store, names[:_BATCH])
    is_fast = perf_counter() - started < _FAST_S * len(first)
    yield from first
    if is_fast:
        for batch in _split(names[_BATCH:], _BATCH):
            yield from _get(store, batch)
        return
    with ThreadPoolExecutor(max_workers=_NUM_READERS) as pool:
        for turn in _split(names[_BATCH:], _NUM_READERS * _BATCH):
            yield from chain(*list(pool.map(partial(_get, store), _split(turn, _BATCH))))


def _get(store: Store, names: Sequence[str]) -> list[tuple[str, bytes | None]]:
    return [(name, _read_small(store, name)) for name in names]


def _read_small(store: Store, name: str) -> bytes | None:
    with suppress(RecordError):
        return _read(store, name, _MOST_IN_BATCH_BYTES)
    return None


def _read(store: Store, name: str, most_bytes: int) -> bytes:
    try:
        return get_bounded(store, name, most_bytes=most_bytes)
    except TooLarge as error:
        raise RecordError(str(error)) from None
    except Missing:
        raise RecordError("it was listed, and then it was not there") from None


def _split(names: Sequence[str], count: int) -> Iterator[Sequence[str]]:
    yield from (names[start : start + count] for start in range(0, len(names), count))
