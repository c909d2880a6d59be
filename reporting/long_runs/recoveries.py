"""Recoveries say what each restart of a long run cost, from one attempt's end to the next one's training.
Pure.

The seconds come from the ledger. So the time of all restarts and the time between them add up to the run's
wall time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reporting.long_runs.ledger import AttemptStory, Ledger
from reporting.long_runs.timeline import TimelineEntry

# In the order of time. A pause before a run was started again by hand is not a phase: nobody was waiting.
PHASES = ("detect", "wait", "schedule", "start", "restore", "recompute")
_OF_THE_NEXT = ("schedule", "start", "restore")
_OF_THE_LAST = ("detect", "recompute")
_AFTER_IT = ("detect", "wait", "schedule", "recompute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Attempt ``term`` ended ``at_s`` seconds after the run's first start; the next attempt went on from
    ``step``.

    ``phases`` are seconds; ``recompute`` is the time of the ``num_redone`` steps that had to be repeated.
    ``device_s`` is the cost in device seconds, over all devices that the attempt had or waited for. ``cause``
    is the kind of the incident that ended the attempt.
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
    """An attempt that was followed by another one. ``step`` is where the next one began, or None if it did
    not get that far.
    """

    story: AttemptStory
    world_size: int
    num_redone: int
    next_term: int
    next_world_size: int
    step: int | None


def recoveries(
    restarts: Sequence[Restart], books: Ledger, endings: Mapping[int, TimelineEntry], begin_s: float
) -> tuple[Recovery, ...]:
    """One recovery per restart, in order. ``endings`` has the last incident of each attempt that has one."""
    return tuple(_recovery(one, books, endings.get(one.story.term), begin_s) for one in restarts)


def _recovery(one: Restart, books: Ledger, ending: TimelineEntry | None, begin_s: float) -> Recovery:
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
    at_s = ending.happened_s if ending else one.story.last_heard_s
    return Recovery(
        term=one.story.term,
        at_s=at_s - begin_s,
        cause=ending.kind if ending else "failure",
        text=ending.text if ending else None,
        step=one.step,
        num_redone=one.num_redone,
        phases={name: spent for name, spent in seconds.items() if spent > 0},
        device_s=sum(devices.values()),
    )
