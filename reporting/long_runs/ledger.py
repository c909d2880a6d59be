"""The ledger says where a long run's wall time went: nothing is missing, and nothing counts twice. Pure.

All time lies on one line. An attempt covers the time from its lease until its last record; between two
attempts lies a gap. If an attempt outlived its successor's lease, the successor's record counts. The line
follows the driver's clock; times by the workers' clocks are moved to it first, see ``clock_alignment``.
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
    "detect": "an attempt had died or hung, until somebody noticed or the next one began",
    "wait": "an attempt had failed, and its driver paused before the next one",
    "idle": "nothing ran, or nothing is known",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSpan:
    """How a span of time was spent. ``seconds`` per phase add up to the span's length."""

    start_s: float
    end_s: float
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStory:
    """A story is what is known of one attempt. None means that the value is not known.

    ``steps_s`` is the time of all its finished steps. Of that, ``redone_s`` went into superseded steps and
    ``stalled_s`` into stalls. ``last_step_s`` is when the last of these steps ended.

    The driver knew of its failure at ``noticed_s``, the workers at ``failed_s``. ``has_ended``: rank 0
    recorded the end. ``has_failed``: it ended with an error, or without any record of its end.
    ``is_retried``: its driver started the next attempt.

    The driver heard of a newest step at ``heard_s``, by its own clock; that step ended at ``told_s`` by the
    worker's. ``kept_share`` is the share of the work between the last stored record and ``heard_s`` that was
    not done again. ``driver_shift_s`` and ``worker_shift_s`` are the seconds by which the driver's and the
    workers' times were moved.
    """

    term: int
    leased_s: float
    spans: tuple[PhaseSpan, ...] = ()
    redone_s: float = 0.0
    stalled_s: float = 0.0
    noticed_s: float | None = None
    failed_s: float | None = None
    has_ended: bool = False
    has_failed: bool = False
    is_retried: bool = False
    steps_s: float | None = None
    last_step_s: float | None = None
    heard_s: float | None = None
    told_s: float | None = None
    kept_share: float = 0.0
    driver_shift_s: float = 0.0
    worker_shift_s: float = 0.0

    @property
    def known_s(self) -> float | None:
        """Returns when anybody could react to its failure: when the driver noticed, else when the workers
        did.
        """
        return self.failed_s if self.noticed_s is None else self.noticed_s

    @property
    def last_heard_s(self) -> float:
        return max((span.end_s for span in self.spans), default=self.leased_s)


@dataclass(slots=True, kw_only=True)
class Ledger:
    """The result. ``phases`` add up to ``wall_sec``; ``trace`` is goodput so far, at seconds since the run's
    start.

    ``by_term`` has the same time by attempt; ``after`` has the time between an attempt and the next one's
    lease.
    """

    wall_sec: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    trace: list[tuple[float, float]] = field(default_factory=list)
    by_term: dict[int, dict[str, float]] = field(default_factory=dict)
    after: dict[int, dict[str, float]] = field(default_factory=dict)

    @property
    def goodput(self) -> float | None:
        return self.phases.get("productive", 0.0) / self.wall_sec if self.wall_sec > 0 else None


def ledger(stories: Sequence[AttemptStory]) -> Ledger:
    """Computes the ledger of one run's attempts, given in any order but all on one clock."""
    ordered = sorted(stories, key=lambda story: story.term)
    return _Line(ordered[0].leased_s).walk(ordered) if ordered else Ledger()


def coarser(spans: Sequence[PhaseSpan]) -> list[PhaseSpan]:
    """Joins neighbouring spans in pairs, so that half as many cover the same time. A hole between two becomes
    idle time.
    """
    return [_joined(spans[first : first + 2]) for first in range(0, len(spans), 2)]


def _joined(pair: Sequence[PhaseSpan]) -> PhaseSpan:
    start_s, end_s = pair[0].start_s, max(span.end_s for span in pair)
    seconds: dict[str, float] = defaultdict(float)
    for span in pair:
        for phase, spent in span.seconds.items():
            seconds[phase] += spent
    hole = end_s - start_s - sum(seconds.values())
    return PhaseSpan(
        start_s=start_s, end_s=end_s, seconds={**seconds, "idle": seconds["idle"] + max(0.0, hole)}
    )


class _Line:
    """Walks along the time line. ``_now`` only grows: a span counts only from ``_now`` on."""

    def __init__(self, begin_s: float) -> None:
        self._begin = begin_s
        self._now = begin_s
        self._productive = 0.0
        self._spent: dict[str, float] = {}
        self._trace: list[tuple[float, float]] = []

    def walk(self, stories: Sequence[AttemptStory]) -> Ledger:
        by_term: dict[int, dict[str, float]] = {}
        after: dict[int, dict[str, float]] = {}
        for story, heir in zip(stories, [*stories[1:], None], strict=True):
            self._spent = by_term[story.term] = defaultdict(float)
            self._attempt(story, heir.leased_s if heir else None)
            if heir:
                self._spent = after[story.term] = defaultdict(float)
                self._gap(story, heir.leased_s)
        spent = [*by_term.values(), *after.values()]
        sums = {name: sum(one.get(name, 0.0) for one in spent) for name in PHASES}
        return Ledger(
            wall_sec=self._now - self._begin,
            phases={name: seconds for name, seconds in sums.items() if seconds > 0},
            trace=self._trace,
            by_term=by_term,
            after=after,
        )

    def _attempt(self, story: AttemptStory, until_s: float | None) -> None:
        before = self._productive
        for number, span in enumerate(sorted(story.spans, key=lambda span: span.start_s)):
            self._pass("idle" if number else "schedule", span.start_s, until_s)
            self._spend(span, until_s)
            self._productive = before + self._spent["productive"]
            self._note()
        self._move(story)
        self._productive = before + self._spent["productive"]
        self._note()

    def _gap(self, story: AttemptStory, until_s: float) -> None:
        if story.known_s is not None:
            if story.heard_s is not None:
                self._unrecorded(story, min(story.heard_s, story.known_s), until_s)
            # An attempt whose workers never ran had no placement yet, so there was no failure to detect.
            has_run = bool(story.spans) or story.heard_s is not None
            self._pass("detect" if has_run else "schedule", story.known_s, until_s)
        self._pass(_meanwhile(story), until_s, until_s)

    def _unrecorded(self, story: AttemptStory, heard_s: float, until_s: float) -> None:
        """Accounts for training after the last stored record, up to the last step the driver heard of."""
        self._pass("productive", self._now + story.kept_share * (heard_s - self._now), until_s)
        self._productive += self._spent["productive"]
        self._pass("recompute", heard_s, until_s)

    def _pass(self, phase: str, end_s: float, until_s: float | None) -> None:
        end_s = end_s if until_s is None else min(end_s, until_s)
        if end_s > self._now:
            self._spent[phase] += end_s - self._now
            self._now = end_s

    def _spend(self, span: PhaseSpan, until_s: float | None) -> None:
        start_s = max(span.start_s, self._now)
        end_s = span.end_s if until_s is None else min(span.end_s, until_s)
        total = sum(span.seconds.values())
        if end_s <= start_s or total <= 0:
            return
        for phase, seconds in span.seconds.items():
            self._spent[phase] += seconds * (end_s - start_s) / total
        self._now = end_s

    def _move(self, story: AttemptStory) -> None:
        """Moves time from productive to the phases that it really belongs to, at most what the attempt has of
        it.
        """
        left = self._spent["productive"]
        for phase, seconds in (
            ("detect", _unfinished_s(story, left)),
            ("recompute", story.redone_s),
            ("stall", story.stalled_s),
        ):
            moved = min(max(seconds, 0.0), left)
            left -= moved
            self._spent["productive"] -= moved
            self._spent[phase] += moved

    def _note(self) -> None:
        if self._now > self._begin:
            at_s = self._now - self._begin
            self._trace.append((at_s, self._productive / at_s))


def _meanwhile(story: AttemptStory) -> str:
    """Returns the phase of the time after an attempt, once its end was known."""
    if story.is_retried:
        return "wait"
    return "idle" if story.has_ended or story.known_s is not None else "detect"


def _unfinished_s(story: AttemptStory, productive_s: float) -> float:
    """Returns the time spent in the unfinished step in which the attempt failed. It counts as detection: a
    rank was hanging, or waited for a peer that was gone.
    """
    if not story.has_failed or story.steps_s is None or story.last_step_s is None:
        return 0.0
    return min(productive_s - story.steps_s, story.last_heard_s - story.last_step_s)
