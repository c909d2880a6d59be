"""Says which micro-batch earlier runs have found for a cell that asks for the largest that fits. Pure.

The first run that finds it answers for all later ones, also after a restart: repeats of one cell measure the
same thing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from jobs.training.task.search.largest_batch import BatchSearch
from reporting.results.records import BatchSearchRecord, RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """``micro_batch`` is None if nothing fits. ``record`` is the search of the run ``found_by``."""

    micro_batch: int | None
    found_by: str
    record: BatchSearchRecord


def answer_to(question: str, records: Iterable[RunRecord]) -> Answer | None:
    """The first answer in ``records``, by the time at which it was there; what fits counts before nothing."""
    answers = [(found.status != "ok", found.finished_at, found) for found in records if _answers(found)]
    same = [key for key in answers if key[2].batch_search and key[2].batch_search.question == question]
    if not same:
        return None
    *_, record = min(same, key=lambda key: (*key[:2], key[2].run_id))
    assert record.batch_search is not None
    size = record.per_device_batch if record.status == "ok" else None
    return Answer(micro_batch=size, found_by=record.run_id, record=record.batch_search)


def resumed(search: BatchSearch, record: RunRecord | None) -> BatchSearch:
    """The search with what an earlier attempt had tried."""
    if not is_own_search(record):
        return search
    assert record is not None
    assert record.batch_search is not None
    return replace(search, fitted=record.batch_search.fitted, failed=record.batch_search.failed)


def is_own_search(record: RunRecord | None) -> bool:
    """Whether the run ran out of memory in a search of its own."""
    if record is None or record.status != "oom" or record.batch_search is None:
        return False
    return record.batch_search.found_by is None and record.batch_search.num_trials > 0


def _answers(record: RunRecord) -> bool:
    search = record.batch_search
    if search is None or search.found_by is not None:
        return False
    return record.status == "ok" or (record.status == "oom" and search.is_over)
