"""Which of the steps that a run's attempts did are part of what the run has become. Pure."""

from collections.abc import Mapping

from reporting.recording.attempts import RecordedAttempt


def counted_until(attempts: Mapping[int, RecordedAttempt]) -> dict[int, int | None]:
    """By term, up to which step an attempt's steps count; None: all of them, 0: none.

    The newest attempt counts, then the one whose checkpoint it went on from, as far as that, and so on. What
    is not on this way back was superseded, whatever its steps are called.
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
    """Of the steps after ``newest``, the last one recorded: how many count, and how many were done again.

    ``heard`` is the newest step that anybody was told of, ``until`` is as ``counted_until`` has it. Where it
    is not known at which step an attempt began, nobody knows what it did: none and none.
    """
    if of.start_step is None or heard is None:
        return 0, 0
    first = max(newest, of.start_step)
    num_kept = max(0, (heard if until is None else min(heard, until)) - first)
    return num_kept, max(0, heard - first) - num_kept


def _newest_up_to(parent: int | None, below: int, known: Mapping[int, RecordedAttempt]) -> int | None:
    """The parent itself; of one that left nothing that can be read, the one before it."""
    if parent is None:
        return None
    return max((term for term in known if term <= parent and term < below), default=None)
