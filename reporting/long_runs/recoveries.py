"""What each restart of a long run cost, from the end of one attempt to the training of the next. Pure.

The seconds are the ledger's own, so that those of all restarts and of what went on between them add up to the
run's wall time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reporting.long_runs.ledger import AttemptStory, Ledger
from reporting.long_runs.timeline import Happening

# In their order. What lies before a run was begun again by hand is not among them: nobody was waiting.
PHASES = ("detect", "wait", "schedule", "start", "restore", "recompute")
_OF_THE_NEXT = ("schedule", "start", "restore")
_OF_THE_LAST = ("detect", "recompute")
_AFTER_IT = ("detect", "wait", "schedule", "recompute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """``term`` ended at ``at_s`` since the run's first start, and the next attempt went on from ``step``.

    ``phases`` are seconds, ``recompute`` those of steps that had to be done once more, ``num_redone`` of
    them. ``device_s`` is what that cost, all devices of the attempt counted that had them or waited for them.
    ``cause`` is the word that the attempt ended with.
    """

    term: int
    at_s: float
    cause: str
    text: str | None
    step: int | None
    num_redone: int
    phases: Mapping[str, float] = field(default_factory=dict)
    device_s: float = 0.0

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """An attempt that had another one after it; ``step`` is where that one began, if it came so far."""

    story: AttemptStory
    world_size: int
    num_redone: int
    next_term: int
    next_world_size: int
    step: int | None


def recoveries(
    restarts: Sequence[Restart], books: Ledger, words: Mapping[int, Happening], begin_s: float
) -> tuple[Recovery, ...]:
    """``words`` has the last word of each attempt that left one, or that was left of it."""
    return tuple(_recovery(one, books, words.get(one.story.term), begin_s) for one in restarts)


def _recovery(one: Restart, books: Ledger, word: Happening | None, begin_s: float) -> Recovery:
    own, after = books.by_term[one.story.term], books.after[one.story.term]
    following = books.by_term[one.next_term]
    devices = dict.fromkeys(PHASES, 0.0)
    seconds = dict.fromkeys(PHASES, 0.0)
    for names, spent, world_size in (
        (_OF_THE_LAST, own, one.world_size),
        (_AFTER_IT, after, one.world_size),
        (_OF_THE_NEXT, following, one.next_world_size),
    ):
        for name in names:
            seconds[name] += spent.get(name, 0.0)
            devices[name] += spent.get(name, 0.0) * world_size
    at_s = word.happened_s if word else one.story.last_heard_s
    return Recovery(
        term=one.story.term,
        at_s=at_s - begin_s,
        cause=word.kind if word else "failure",
        text=word.text if word else None,
        step=one.step,
        num_redone=one.num_redone,
        phases={name: spent for name, spent in seconds.items() if spent > 0},
        device_s=sum(devices.values()),
    )
