"""The timeline has what happened to a long run, as one line each. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from reporting.long_runs.downsampling import Downsampled
from reporting.long_runs.ledger import AttemptStory
from reporting.recording.attempts import DRIVER

ENDINGS = ("end", "stop", "failure", "interruption")
_MOST_OF_A_KIND = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry:
    """A row of the table of incidents, see ``columns``."""

    term: int
    rank: int
    kind: str
    happened_s: float
    step: int | None = None
    seconds: float | None = None
    blocked_s: float | None = None
    num_bytes: int | None = None
    place: str | None = None
    generation: str | None = None
    text: str | None = None

    def __str__(self) -> str:
        endings = [f"attempt {self.term}"]
        endings += [f"step {self.step}"] if self.step is not None else []
        endings += [f"to the {self.place}"] if self.place else []
        endings += [f"{self.seconds:.2f} s"] if self.seconds is not None else []
        endings += [self.text] if self.text else []
        return ", ".join(endings)


def timeline_entry(row: Mapping[str, Any]) -> TimelineEntry:
    return TimelineEntry(**{field.name: row[field.name] for field in fields(TimelineEntry)})


def in_time(entries: Sequence[TimelineEntry], stories: Sequence[AttemptStory]) -> list[TimelineEntry]:
    """Returns everything that happened, in the order of time, on the ledger's time line, without duplicates.

    If several processes recorded the same failure, the driver's record is kept, since the driver has heard
    all ranks; otherwise the first record is. A failure that nobody recorded is added.
    """
    found: list[TimelineEntry] = []
    failed: set[int] = set()
    by_term = {story.term: story for story in stories}
    known = [_moved(one, by_term) for one in entries]
    everything = sorted([*known, *_silent(entries, stories)], key=lambda one: one.happened_s)
    by_driver = {one.term for one in everything if one.kind == "failure" and one.rank == DRIVER}
    for one in everything:
        if one.kind == "failure":
            if one.term in failed or (one.term in by_driver and one.rank != DRIVER):
                continue
            failed.add(one.term)
        found.append(one)
    return found


def told(found: Sequence[TimelineEntry], begin_s: float) -> tuple[tuple[float, str, str], ...]:
    """Returns (seconds since ``begin_s``, kind, text) of each. Very frequent kinds are downsampled."""
    kinds: dict[str, Downsampled[TimelineEntry]] = {}
    for one in found:
        kinds.setdefault(one.kind, Downsampled(_MOST_OF_A_KIND)).add(one)
    kept = [one for kind in kinds.values() for one in kind.points()]
    return tuple(sorted((one.happened_s - begin_s, one.kind, str(one)) for one in kept))


def endings_by_term(found: Sequence[TimelineEntry]) -> dict[int, TimelineEntry]:
    """Returns the incident that ended each attempt. An attempt that has not ended is left out."""
    return {one.term: one for one in found if one.kind in ENDINGS}


def _moved(one: TimelineEntry, by_term: Mapping[int, AttemptStory]) -> TimelineEntry:
    story = by_term.get(one.term)
    if story is None:
        return one
    shift_s = story.driver_shift_s if one.rank == DRIVER else story.worker_shift_s
    return replace(one, happened_s=one.happened_s + shift_s)


def _silent(entries: Sequence[TimelineEntry], stories: Sequence[AttemptStory]) -> list[TimelineEntry]:
    """Returns a failure for each attempt that ended without a record of it, as a killed one does. That a
    later attempt exists shows that it ended.
    """
    spoke = {one.term for one in entries if one.kind in ENDINGS}
    newest = max((story.term for story in stories), default=0)
    silent = [story for story in stories if story.term < newest and story.term not in spoke]
    text = "it ended without a word; last heard of here"
    return [
        TimelineEntry(term=story.term, rank=0, kind="failure", happened_s=story.last_heard_s, text=text)
        for story in silent
    ]
