"""This module decides which of the steps that a run's attempts did count in its final history. Pure."""

from collections.abc import Mapping

from reporting.recording.attempts import RecordedAttempt


def counted_until(attempts: Mapping[int, RecordedAttempt]) -> dict[int, int | None]:
    """Returns, by term, the last step of an attempt that counts. None means all of its steps, 0 means none.

    The newest attempt counts. So does the attempt whose checkpoint it resumed, up to that checkpoint's step,
    and so on backwards. Steps of all other attempts are superseded, whatever their numbers.
    """
    until: dict[int, int | None] = dict.fromkeys(attempts, 0)
    known = {term: attempt for term, attempt in attempts.items() if attempt.start_step is not None}
    term, limit = max(known, default=None), None
    while term is not None:
        until[term] = limit
        attempt = known[term]
        limit = attempt.start_step
        term = _newest_up_to(attempt.parent_term, term, known)
    return until


def unrecorded(of: RecordedAttempt, newest: int, heard: int | None, until: int | None) -> tuple[int, int]:
    """Returns how many steps after ``newest``, the last recorded one, count, and how many were done again.

    ``heard`` is the newest step that anybody heard of; ``until`` is a value of ``counted_until``. If the step
    at which the attempt began is unknown, both counts are 0.
    """
    if of.start_step is None or heard is None:
        return 0, 0
    first = max(newest, of.start_step)
    num_kept = max(0, (heard if until is None else min(heard, until)) - first)
    return num_kept, max(0, heard - first) - num_kept


def _newest_up_to(parent: int | None, below: int, known: Mapping[int, RecordedAttempt]) -> int | None:
    """Returns the parent itself, or the newest readable attempt before it if the parent can't be read."""
    if parent is None:
        return None
    return max((term for term in known if term <= parent and term < below), default=None)
