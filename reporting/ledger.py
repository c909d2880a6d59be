"""Where a long run's wall time went, part by part, so that nothing is missing and nothing counts twice. Pure.

Time is laid out on one line: an attempt from its lease until its last word, what lies between two attempts,
and where an attempt outlived its successor's lease, the successor's word counts.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PHASES: Mapping[str, str] = {
    "productive": "steps that are part of what the run has become",
    "recompute": "steps that a later attempt did once more",
    "stall": "steps far beyond the usual, and waiting for others",
    "data wait": "waiting for samples",
    "eval": "measuring the loss on held-out samples",
    "save": "the training stood still for a checkpoint",
    "restore": "from a checkpoint back into memory",
    "start": "processes, peers, the model, until the first step or the restore",
    "schedule": "from an attempt's lease until its workers ran",
    "detect": "an attempt had died without a word, until somebody noticed or the next one began",
    "idle": "nothing ran, or nothing is known",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What a stretch of time was spent on; ``seconds`` per phase add up to its length."""

    start_s: float
    end_s: float
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStory:
    """``redone_s`` of the spans' productive time went into superseded steps, ``stalled_s`` into stalls.

    ``noticed_s`` is when its failure was known to somebody; ``has_ended`` whether it said so itself.
    """

    term: int
    leased_s: float
    spans: tuple[Span, ...] = ()
    redone_s: float = 0.0
    stalled_s: float = 0.0
    noticed_s: float | None = None
    has_ended: bool = False


@dataclass(slots=True, kw_only=True)
class Ledger:
    """``phases`` add up to ``wall_sec``. ``trace`` is goodput so far, at seconds since the run's start."""

    wall_sec: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    trace: list[tuple[float, float]] = field(default_factory=list)

    @property
    def goodput(self) -> float | None:
        return self.phases.get("productive", 0.0) / self.wall_sec if self.wall_sec > 0 else None


def ledger(stories: Sequence[AttemptStory]) -> Ledger:
    """Of one run's attempts, in any order."""
    ordered = sorted(stories, key=lambda story: story.term)
    return _Line(ordered[0].leased_s).walk(ordered) if ordered else Ledger()


def coarser(spans: Sequence[Span]) -> list[Span]:
    """Half as many for the same time; a hole between two is idle."""
    return [_joined(spans[first : first + 2]) for first in range(0, len(spans), 2)]


def _joined(pair: Sequence[Span]) -> Span:
    start_s, end_s = pair[0].start_s, max(span.end_s for span in pair)
    seconds: dict[str, float] = defaultdict(float)
    for span in pair:
        for phase, spent in span.seconds.items():
            seconds[phase] += spent
    hole = end_s - start_s - sum(seconds.values())
    return Span(start_s=start_s, end_s=end_s, seconds={**seconds, "idle": seconds["idle"] + max(0.0, hole)})


class _Line:
    """``now`` only grows: everything is cut to what lies behind it."""

    def __init__(self, begin_s: float) -> None:
        self._begin = begin_s
        self._now = begin_s
        self._spent: dict[str, float] = defaultdict(float)
        self._trace: list[tuple[float, float]] = []

    def walk(self, stories: Sequence[AttemptStory]) -> Ledger:
        for story, heir in zip(stories, [*stories[1:], None], strict=True):
            self._attempt(story, heir.leased_s if heir else None)
            if heir:
                self._gap(story, heir.leased_s)
        phases = {name: self._spent[name] for name in PHASES if self._spent[name] > 0}
        return Ledger(wall_sec=self._now - self._begin, phases=phases, trace=self._trace)

    def _attempt(self, story: AttemptStory, until_s: float | None) -> None:
        before = self._spent["productive"]
        for number, span in enumerate(sorted(story.spans, key=lambda span: span.start_s)):
            self._pass("idle" if number else "schedule", span.start_s, until_s)
            self._spend(span, until_s)
            self._note()
        self._move(before, story)
        self._note()

    def _gap(self, story: AttemptStory, until_s: float) -> None:
        if story.noticed_s is not None:
            self._pass("detect", story.noticed_s, until_s)
        self._pass("idle" if story.has_ended or story.noticed_s is not None else "detect", until_s, until_s)

    def _pass(self, phase: str, end_s: float, until_s: float | None) -> None:
        end_s = end_s if until_s is None else min(end_s, until_s)
        if end_s > self._now:
            self._spent[phase] += end_s - self._now
            self._now = end_s

    def _spend(self, span: Span, until_s: float | None) -> None:
        start_s = max(span.start_s, self._now)
        end_s = span.end_s if until_s is None else min(span.end_s, until_s)
        total = sum(span.seconds.values())
        if end_s <= start_s or total <= 0:
            return
        for phase, seconds in span.seconds.items():
            self._spent[phase] += seconds * (end_s - start_s) / total
        self._now = end_s

    def _move(self, before: float, story: AttemptStory) -> None:
        """Out of productive, no more than the attempt has put in."""
        left = self._spent["productive"] - before
        for phase, seconds in (("recompute", story.redone_s), ("stall", story.stalled_s)):
            moved = min(max(seconds, 0.0), left)
            left -= moved
            self._spent["productive"] -= moved
            self._spent[phase] += moved

    def _note(self) -> None:
        if self._now > self._begin:
            at_s = self._now - self._begin
            self._trace.append((at_s, self._spent["productive"] / at_s))
