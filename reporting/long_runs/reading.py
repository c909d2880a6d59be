"""This module reads a run's parts one after another, and finds which of its steps count.

Parts that can't be read are returned as skipped, with the reason. A store that can't be read raises
``StoreError``.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Missing, Store
from reporting.long_runs.superseded import counted_until
from reporting.recording.attempts import RecordedAttempt
from reporting.recording.parts import PartError, PartName, Rows, decode_part, part_attempt, parts_of
from reporting.recording.read_data import MOST_BYTES, ReadSource, decode, name_of
from reporting.results.skipped import Skipped

_NUM_READERS = 8
_MOST_BYTES = 256 << 20  # of a part


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """The parts of one run. ``attempts`` is by term, without attempts of which no part can be read.

    ``counted_until`` is what ``superseded.counted_until`` returns.
    """

    run: str
    names: tuple[PartName, ...]
    attempts: dict[int, RecordedAttempt]
    counted_until: dict[int, int | None]

    def of(self, table: str) -> list[PartName]:
        return [name for name in self.names if name.table == table]

    def newest_attempt(self) -> RecordedAttempt | None:
        return self.attempts[max(self.attempts)] if self.attempts else None


def all_runs(store: Store) -> Iterator[RunParts]:
    for run, names in groupby(parts_of(store), key=lambda name: name.run):
        yield _run_parts(store, run, tuple(names))


def one_run(store: Store, run: str) -> RunParts:
    return _run_parts(store, run, tuple(parts_of(store, run)))


def read_parts(
    store: Store, names: Sequence[PartName], skipped: list[Skipped]
) -> Iterator[tuple[PartName, Rows]]:
    """Yields the parts' rows in order, with at most a handful of parts in memory. Parts that can't be read
    are added to ``skipped``.
    """
    for name, found in _read_all(store, names):
        if isinstance(found, Skipped):
            skipped.append(found)
        else:
            yield name, found


def read_data(store: Store, run: str, skipped: list[Skipped]) -> tuple[ReadSource, ...]:
    """What was recorded of the run's data: nothing of synthetic samples, and by older versions. A record that
    can't be read is added to ``skipped``.
    """
    name = name_of(run)
    try:
        return decode(get_bounded(store, name, most_bytes=MOST_BYTES))
    except Missing:
        return ()
    except (TooLarge, ValueError) as error:
        skipped.append(Skipped(name=name, reason=str(error)))
        return ()


def _read_all(store: Store, names: Sequence[PartName]) -> Iterator[tuple[PartName, Rows | Skipped]]:
    with ThreadPoolExecutor(_NUM_READERS) as pool:
        for first in range(0, len(names), _NUM_READERS):
            batch = names[first : first + _NUM_READERS]
            yield from zip(batch, pool.map(partial(_read, store), batch), strict=True)


def _run_parts(store: Store, run: str, names: tuple[PartName, ...]) -> RunParts:
    by_term = groupby(sorted(names, key=lambda name: name.term), key=lambda name: name.term)
    found = {term: _attempt(store, list(of_term)) for term, of_term in by_term}
    attempts = {term: attempt for term, attempt in found.items() if attempt is not None}
    return RunParts(run=run, names=names, attempts=attempts, counted_until=counted_until(attempts))


def _attempt(store: Store, names: Sequence[PartName]) -> RecordedAttempt | None:
    """Reads the newest part first, because the oldest ones don't know yet at which step the attempt began."""
    newest: RecordedAttempt | None = None
    for name in sorted(names, key=lambda name: name.last, reverse=True):
        try:
            attempt = part_attempt(name, get_bounded(store, str(name), most_bytes=_MOST_BYTES))
        except (PartError, Missing, TooLarge):
            continue
        newest = newest or attempt
        if attempt.start_step is not None:
            return attempt
    return newest


def _read(store: Store, name: PartName) -> Rows | Skipped:
    try:
        return decode_part(name, get_bounded(store, str(name), most_bytes=_MOST_BYTES))
    except (PartError, TooLarge) as error:
        return Skipped(name=str(name), reason=str(error))
    except Missing:
        return Skipped(name=str(name), reason="deleted while the report was made")
