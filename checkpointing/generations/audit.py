"""Finds what is wrong with a run's log and generations. Only ``repair_hint`` writes; all else only reads."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeVar

from checkpointing.errors import Corrupt, Unfit
from checkpointing.format.loading import verify
from checkpointing.format.manifest import FilePart
from checkpointing.generations.repository import Repository
from checkpointing.log.codec import LogRecord
from checkpointing.log.history import Commit, Generation, LogView, Verified, after
from checkpointing.log.log import Hint, Log, leave_hint, numbers_in, read_hint
from checkpointing.log.trust import log_folder
from checkpointing.stores.contract import Missing, Store

_NUM_THREADS = 8
# Each record repeats the whole view, so a long log is read in batches to bound memory, and large records one
# after the other.
_BATCH = 64
# So many records of saves may be newer than the hint: those of one, and of two before it that failed.
_MOST_LATE = 4

Found = TypeVar("Found", bound=LogRecord | None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """One finding of an audit. ``is_wrong`` is False for a finding that is harmless but should be known."""

    place: str
    says: str
    is_wrong: bool = True
    is_mendable: bool = False


def audit_log(store: Store, run: str) -> list[AuditFinding]:
    """Checks that every record is whole and follows from the record before it, and that none is missing."""
    numbers = _numbers(store, run)
    return [
        *_gaps(numbers),
        *_records_that_do_not_fit(store, run, numbers),
        *_wrong_hint(store, run, numbers),
    ]


def repair_hint(store: Store, run: str) -> None:
    """Rewrites the hint to name the newest existing record. Terms that the old hint named are not given
    again.
    """
    told, log = read_hint(store, run), Log(store, run)
    term = max(log.read().term, told.term)
    if log.number:
        leave_hint(store, run, Hint(number=log.number, term=term))


def audit_generations(repository: Repository) -> list[AuditFinding]:
    """Checks that each kept generation has its manifest, and files of the right sizes; no file's bytes are
    read.

    Call it after ``refresh``. A generation that the run gives up meanwhile is no finding.
    """
    found = []
    for generation in repository.view.generations:
        problem = _shape_problem(repository, generation)
        if problem and repository.refresh().generation(generation.name):
            is_wrong = generation.quarantined is None
            found.append(AuditFinding(place=generation.name, says=problem, is_wrong=is_wrong))
    return [*found, *_unnamed(repository)]


def read_back(repository: Repository, generation: Generation) -> int:
    """Reads all bytes of ``generation`` and returns its number of files. Raises ``Corrupt`` if any are not
    as saved.
    """
    parts = repository.manifest(generation, with_shards=False).parts
    for part in parts:
        try:
            verify(part, repository.place(generation.name))
        except Missing as error:
            raise Corrupt(f"{part.file} is gone") from error
    return len(parts)


def _numbers(store: Store, run: str) -> list[int]:
    return sorted(numbers_in(store.list(log_folder(run))))


def _gaps(numbers: Sequence[int]) -> Iterator[AuditFinding]:
    for before, behind in pairwise([0, *numbers]):
        if behind == before + 2:
            yield AuditFinding(place=f"record {before + 1}", says="is gone")
        elif behind > before + 2:
            yield AuditFinding(place=f"records {before + 1} to {behind - 1}", says="are gone")


def _records_that_do_not_fit(store: Store, run: str, numbers: Sequence[int]) -> Iterator[AuditFinding]:
    before: LogRecord | None = None
    for found in _records(store, run, numbers):
        if isinstance(found, AuditFinding):
            yield found
            continue
        place = f"record {found.number}"
        if before and found.view.term < before.view.term:
            says = f"is of term {found.view.term}, the one before it of term {before.view.term}"
            yield AuditFinding(place=place, says=says)
        elif not _follows(before, found):
            yield AuditFinding(place=place, says="does not follow from the record before it")
        before = found


def _records(store: Store, run: str, numbers: Sequence[int]) -> Iterator[LogRecord | AuditFinding]:
    log = Log(store, run)
    with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="audit") as pool:
        for start in range(0, len(numbers), _BATCH):
            batch = numbers[start : start + _BATCH]
            for number, found in zip(batch, pool.map(partial(_record, log.small_record), batch), strict=True):
                yield found or _record(log.record, number)


def _record(read: Callable[[int], Found], number: int) -> Found | AuditFinding:
    try:
        return read(number)
    except Corrupt as error:
        return AuditFinding(place=f"record {number}", says=f"can't be believed: {error}")


def _follows(before: LogRecord | None, found: LogRecord) -> bool:
    """Says whether ``found`` follows from ``before``. A record after a gap or damage cannot be judged and
    passes.
    """
    if before and before.number == found.number - 1:
        return found.view == after(before.view, found.entry)
    return found.number > 1 or found.view == after(LogView(), found.entry)


def _wrong_hint(store: Store, run: str, numbers: Sequence[int]) -> Iterator[AuditFinding]:
    newest = numbers[-1] if numbers else 0
    hint = read_hint(store, run).number
    if hint != newest and not _is_of_a_running_run(Log(store, run), hint, newest):
        what = "newer records are gone" if hint > newest else "the log is searched anew"
        says = f"names record {hint or 'none'}, the newest is {newest or 'none'}: {what}"
        yield AuditFinding(place="hint", says=says, is_mendable=True)


def _is_of_a_running_run(log: Log, hint: int, newest: int) -> bool:
    """A running run may have appended records since the list was read. And a save leaves the hint once, after
    its last record.
    """
    if hint > newest:
        return isinstance(_record(log.record, hint), LogRecord)
    late = [_record(log.record, number) for number in range(max(hint, newest - _MOST_LATE) + 1, newest + 1)]
    are_of_saves = all(
        isinstance(one, LogRecord) and isinstance(one.entry, Commit | Verified) for one in late
    )
    return newest - hint <= _MOST_LATE and are_of_saves


def _shape_problem(repository: Repository, generation: Generation) -> str | None:
    try:
        parts = repository.manifest(generation, with_shards=False).parts
    except (Corrupt, Unfit) as error:
        return str(error)
    folder = repository.place(generation.name).folder
    with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="audit") as pool:
        problems = pool.map(partial(_size_problem, repository.store, folder), parts)
        return next(filter(None, problems), None)


def _size_problem(store: Store, folder: str, part: FilePart) -> str | None:
    try:
        num_bytes = store.size(f"{folder}/{part.file}")
    except Missing:
        return f"{part.file} is gone"
    if num_bytes == part.num_bytes:
        return None
    return (
        f"{part.file} is {'shorter' if num_bytes < part.num_bytes else 'longer'} than {part.num_bytes} bytes"
    )


def _unnamed(repository: Repository) -> Iterator[AuditFinding]:
    view = repository.view
    unkept = [name for name in repository.stored_generations() if not view.generation(name)]
    if unkept and not view.generations and (view.term == 0 or view.num_lost):
        yield AuditFinding(place="log", says=f"names none of {_named(unkept)}, of which there are objects")
        return
    over = set(repository.garbage())
    if over:
        says = (
            f"{_named(sorted(over))}: left by attempts that are over; gc shows and removes what is not whole"
        )
        yield AuditFinding(place="objects", says=says, is_wrong=False)
    if others := [name for name in unkept if name not in over]:
        says = f"{_named(others)}: not in the log; saves that go on, or of another hand"
        yield AuditFinding(place="objects", says=says, is_wrong=False)


def _named(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} generations such as {names[-1]}"
