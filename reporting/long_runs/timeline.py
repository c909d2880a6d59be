"""The timeline has what happened to a long run, as one line each. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from reporting.long_runs.downsampling import Thinned
from reporting.long_runs.ledger import AttemptStory
from reporting.recording.attempts import DRIVER

LAST_WORDS = ("end", "stop", "failure", "interruption")
_MOST_OF_A_KIND = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
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
        words = [f"attempt {self.term}"]
        words += [f"step {self.step}"] if self.step is not None else []
        words += [f"to the {self.place}"] if self.place else []
        words += [f"{self.seconds:.2f} s"] if self.seconds is not None else []
        words += [self.text] if self.text else []
        return ", ".join(words)


def happening(row: Mapping[str, Any]) -> Happening:
    return Happening(**{field.name: row[field.name] for field in fields(Happening)})


def in_time(happenings: Sequence[Happening], stories: Sequence[AttemptStory]) -> list[Happening]:
    """Returns everything that happened, in the order of time, on the ledger's time line, without duplicates.

    If several processes recorded the same failure, the driver's record is kept, since the driver has heard
    all ranks; otherwise the first record is. A failure that nobody recorded is added.
    """
    found: list[Happening] = []
    failed: set[int] = set()
    by_term = {story.term: story for story in stories}
    known = [_moved(one, by_term) for one in happenings]
    everything = sorted([*known, *_silent(happenings, stories)], key=lambda one: one.happened_s)
    by_driver = {one.term for one in everything if one.kind == "failure" and one.rank == DRIVER}
    for one in everything:
        if one.kind == "failure":
            if one.term in failed or (one.term in by_driver and one.rank != DRIVER):
                continue
            failed.add(one.term)
        found.append(one)
    return found


def told(found: Sequence[Happening], begin_s: float) -> tuple[tuple[float, str, str], ...]:
    """Returns (seconds since ``begin_s``, kind, text) of each. Very frequent kinds are downsampled."""
    kinds: dict[str, Thinned[Happening]] = {}
    for one in found:
        kinds.setdefault(one.kind, Thinned(_MOST_OF_A_KIND)).add(one)
    kept = [one for kind in kinds.values() for one in kind.points()]
    return tuple(sorted((one.happened_s - begin_s, one.kind, str(one)) for one in kept))


def last_words(found: Sequence[Happening]) -> dict[int, Happening]:
    """Returns the incident that ended each attempt. An attempt that has not ended is left out."""
    return {one.term: one for one in found if one.kind in LAST_WORDS}


def _moved(one: Happening, by_term: Mapping[int, AttemptStory]) -> Happening:
    story = by_term.get(one.term)
    if story is None:
        return one
    shift_s = story.driver_shift_s if one.rank == DRIVER else story.worker_shift_s
    return replace(one, happened_s=one.happened_s + shift_s)


def _silent(happenings: Sequence[Happening], stories: Sequence[AttemptStory]) -> list[Happening]:
    """Returns a failure for each attempt that ended without a record of it, as a killed one does. That a
    later attempt exists shows that it ended.
    """
    spoke = {one.term for one in happenings if one.kind in LAST_WORDS}
    newest = max((story.term for story in stories), default=0)
    silent = [story for story in stories if story.term < newest and story.term not in spoke]
    text = "it ended without a word; last heard of here"
    return [
        Happening(term=story.term, rank=0, kind="failure", happened_s=story.last_heard_s, text=text)
        for story in silent
    ]
