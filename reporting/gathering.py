"""All results of a store as rows: what our sweeps measured, and what was imported.

A file that can't be read is named and skipped, never the reason that there is no report. A store that can't
be read is one: ``StoreError``, as half a table would be a wrong one.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from checkpointing.store import Missing, Store, is_name
from reporting.findings import Skipped
from reporting.records import RecordError, read_record
from reporting.rows import Row, row_of

_NUM_READERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """In the order of the files' names, so that the same store gives the same table."""

    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...]


def gather(store: Store, *, sweeps: Sequence[str] = ()) -> Gathered:
    """Everything, or these sweeps' results alone. Earlier attempts at a run are not read."""
    folders = [f"sweeps/{sweep}" for sweep in sweeps if is_name(sweep)] if sweeps else ["sweeps"]
    rows, skipped = _read_all(
        store, (name for folder in folders for name in store.list(folder) if _is_result(name)), _read_result
    )
    return Gathered(rows=rows, skipped=skipped)


def _is_result(name: str) -> bool:
    return name.endswith("/result.json")


def _read_result(data: bytes, name: str) -> tuple[Row, ...]:
    return (row_of(read_record(data), name),)


def _read_all(
    store: Store, names: Iterable[str], read: Callable[[bytes, str], tuple[Row, ...]]
) -> tuple[tuple[Row, ...], tuple[Skipped, ...]]:
    rows: list[Row] = []
    skipped: list[Skipped] = []
    with ThreadPoolExecutor(max_workers=_NUM_READERS) as pool:
        for found in pool.map(partial(_read, store, read), sorted(names)):
            match found:
                case Skipped():
                    skipped.append(found)
                case _:
                    rows.extend(found)
    return tuple(rows), tuple(skipped)


def _read(
    store: Store, read: Callable[[bytes, str], tuple[Row, ...]], name: str
) -> tuple[Row, ...] | Skipped:
    try:
        return read(store.get(name), name)
    except RecordError as error:
        return Skipped(name=name, reason=str(error))
    except Missing:
        return Skipped(name=name, reason="deleted while the report was made")
