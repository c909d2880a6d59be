"""The timeline has what happened to a long run, as one line each. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from reporting.long_runs.downsampling import Downsampled
from reporting.long_runs.ledger import AttemptTiming
from reporting.recording.attempts import DRIVER, Incident

ENDINGS = ("end", "stop", "failure", "interruption")
_MOST_OF_A_KIND = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry(Incident):
    """A row of the table of incidents, see ``columns``."""

    term: int
    rank: int
    happened_s: float

    def __str__(self) -> str:
        parts = [f"attempt {self.term}"]
        parts += [f"step {self.step}"] if self.step is not None else []
        parts += [f"to the {self.place}"] if self.place else []
        parts += [f"{self.seconds:.2f} s"] if self.seconds is not None else []
        parts += [self.text] if self.text else []
        return ", ".join(parts)


def timeline_entry(row: Mapping[str, Any]) -> TimelineEntry:
    return TimelineEntry(**{field.name: row[field.name] for field in fields(TimelineEntry)})


def timeline(recorded: Sequence[TimelineEntry], timings: Sequence[AttemptTiming]) -> list[TimelineEntry]:
    """Returns everything that happened, in the order of time, on the ledger's time line, without duplicates.

    If several processes recorded the same failure, the driver's record is kept, since the driver has heard
    all ranks; otherwise the first record is. A failure that nobody recorded is added.
    """
    by_term = {timing.term: timing for timing in timings}
    known = [_moved(entry, by_term) for entry in recorded]
    entries = sorted([*known, *_unrecorded_failures(recorded, timings)], key=lambda entry: entry.happened_s)
    failures: dict[int, TimelineEntry] = {}
    for entry in sorted(entries, key=lambda entry: entry.rank != DRIVER):
        if entry.kind == "failure":
            failures.setdefault(entry.term, entry)
    return [entry for entry in entries if entry.kind != "failure" or entry is failures[entry.term]]


def described(entries: Sequence[TimelineEntry], begin_s: float) -> tuple[tuple[float, str, str], ...]:
    """Returns (seconds since ``begin_s``, kind, text) of each. Very frequent kinds are downsampled."""
    kinds: dict[str, Downsampled[TimelineEntry]] = {}
    for entry in entries:
        kinds.setdefault(entry.kind, Downsampled(_MOST_OF_A_KIND)).add(entry)
    kept = [entry for kind in kinds.values() for entry in kind.points()]
    return tuple(sorted((entry.happened_s - begin_s, entry.kind, str(entry)) for entry in kept))


def endings_by_term(entries: Sequence[TimelineEntry]) -> dict[int, TimelineEntry]:
    """Returns the incident that ended each attempt. An attempt that has not ended is left out."""
    return {entry.term: entry for entry in entries if entry.kind in ENDINGS}


def _moved(entry: TimelineEntry, by_term: Mapping[int, AttemptTiming]) -> TimelineEntry:
    timing = by_term.get(entry.term)
    if timing is None:
        return entry
    shift_s = timing.driver_shift_s if entry.rank == DRIVER else timing.worker_shift_s
    return replace(entry, happened_s=entry.happened_s + shift_s)


def _unrecorded_failures(
    recorded: Sequence[TimelineEntry], timings: Sequence[AttemptTiming]
) -> list[TimelineEntry]:
    """Returns a failure for each attempt that ended without a record of it, as a killed one does. That a
    later attempt exists shows that it ended.
    """
    ended = endings_by_term(recorded)
    newest = max(timing.term for timing in timings)
    text = "it ended without a word; last heard of here"
    return [
        TimelineEntry(term=timing.term, rank=0, kind="failure", happened_s=timing.last_recorded_s, text=text)
        for timing in timings
        if timing.term < newest and timing.term not in ended
    ]
