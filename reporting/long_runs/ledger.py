"""The ledger says where a long run's wall time went: nothing is missing, and nothing counts twice. Pure.

All time lies on one line. An attempt covers the time from its lease until its last record; between two
attempts lies a gap. If an attempt outlived its successor's lease, the successor's record counts. The line
follows the driver's clock; times by the workers' clocks are moved to it first, see ``clock_alignment``.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

PHASES: Mapping[str, str] = {
    "productive": "steps that are part of what the run has become",
    "recompute": "steps that a later attempt did once more",
    "stall": "steps far beyond the usual, and waiting for others",
    "data wait": "waiting for samples",
    "eval": "measuring the loss on held-out samples",
    "check": "computing a micro-batch again, to compare what ranks compute",
    "save": "the training stood still for a checkpoint",
    "last save": "at an attempt's end, until its last checkpoint was in the store",
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
class AttemptTiming:
    """The times that are known of one attempt. None means that the value is not known.

    ``steps_s`` is the time of all its finished steps. Of that, ``redone_s`` went into superseded steps and
    ``stalled_s`` into stalls. ``last_step_s`` is when the last of these steps ended.

    The driver knew of its failure at ``noticed_s``, the workers at ``failed_s``. ``has_ended``: rank 0
    recorded the end. ``has_failed``: it ended with an error, or without any record of its end.
    ``is_retried``: its driver started the next attempt.

    The driver heard of a newest step at ``heard_s``, by its own clock; by the worker's clock that step ended
    at ``heard_step_ended_s``. ``kept_share`` is the share of the work between the last stored record and
    ``heard_s`` that was not done again. The driver's times were moved by ``driver_shift_s``, the workers' by
    ``worker_shift_s``.
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
    heard_step_ended_s: float | None = None
    kept_share: float = 0.0
    driver_shift_s: float = 0.0
    worker_shift_s: float = 0.0

    @property
    def failure_known_s(self) -> float | None:
        """Returns when anybody could react to its failure: when the driver noticed, else when the workers
        did.
        """
        return self.failed_s if self.noticed_s is None else self.noticed_s

    @property
    def last_recorded_s(self) -> float:
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


def ledger(timings: Sequence[AttemptTiming]) -> Ledger:
    """Computes the ledger of one run's attempts, given in any order but all on one clock."""
    ordered = sorted(timings, key=lambda timing: timing.term)
    return _TimeLine(ordered[0].leased_s).ledger(ordered) if ordered else Ledger()


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


class _TimeLine:
    """Accounts for all time from the run's beginning to its end. ``_now_s`` only grows: a span counts only
    from ``_now_s`` on, and only until the next attempt's lease, ``_until_s``.
    """

    def __init__(self, begin_s: float) -> None:
        self._begin_s = begin_s
        self._now_s = begin_s
        self._until_s = inf
        self._productive_s = 0.0
        self._spent: dict[str, float] = {}
        self._trace: list[tuple[float, float]] = []

    def ledger(self, timings: Sequence[AttemptTiming]) -> Ledger:
        by_term: dict[int, dict[str, float]] = {}
        after: dict[int, dict[str, float]] = {}
        for timing, successor in zip(timings, [*timings[1:], None], strict=True):
            self._until_s = successor.leased_s if successor else inf
            self._spent = by_term[timing.term] = defaultdict(float)
            self._spend_attempt(timing)
            if successor:
                self._spent = after[timing.term] = defaultdict(float)
                self._spend_gap(timing)
        spent = [*by_term.values(), *after.values()]
        sums = {name: sum(part.get(name, 0.0) for part in spent) for name in PHASES}
        return Ledger(
            wall_sec=self._now_s - self._begin_s,
            phases={name: seconds for name, seconds in sums.items() if seconds > 0},
            trace=self._trace,
            by_term=by_term,
            after=after,
        )

    def _spend_attempt(self, timing: AttemptTiming) -> None:
        for number, span in enumerate(sorted(timing.spans, key=lambda span: span.start_s)):
            self._spend_until("idle" if number else "schedule", span.start_s)
            self._spend_span(span)
            self._extend_trace()
        self._reassign(timing)
        self._extend_trace()
        self._productive_s += self._spent["productive"]

    def _spend_gap(self, timing: AttemptTiming) -> None:
        if timing.failure_known_s is not None:
            if timing.heard_s is not None:
                self._spend_unrecorded(min(timing.heard_s, timing.failure_known_s), timing.kept_share)
            # An attempt whose workers never ran had no placement yet, so there was no failure to detect.
            has_run = bool(timing.spans) or timing.heard_s is not None
            self._spend_until("detect" if has_run else "schedule", timing.failure_known_s)
        self._spend_until(_phase_after(timing), self._until_s)

    def _spend_unrecorded(self, heard_s: float, kept_share: float) -> None:
        """Accounts for training after the last stored record, up to the last step the driver heard of."""
        self._spend_until("productive", self._now_s + kept_share * (heard_s - self._now_s))
        self._productive_s += self._spent["productive"]
        self._spend_until("recompute", heard_s)

    def _spend_until(self, phase: str, end_s: float) -> None:
        end_s = min(end_s, self._until_s)
        if end_s > self._now_s:
            self._spent[phase] += end_s - self._now_s
            self._now_s = end_s

    def _spend_span(self, span: PhaseSpan) -> None:
        start_s, end_s = max(span.start_s, self._now_s), min(span.end_s, self._until_s)
        total = sum(span.seconds.values())
        if end_s <= start_s or total <= 0:
            return
        for phase, seconds in span.seconds.items():
            self._spent[phase] += seconds * (end_s - start_s) / total
        self._now_s = end_s

    def _reassign(self, timing: AttemptTiming) -> None:
        """Moves time from productive to the phases that it really belongs to, at most what the attempt has of
        it.
        """
        left = self._spent["productive"]
        for phase, seconds in (
            ("detect", _unfinished_s(timing, left)),
            ("recompute", timing.redone_s),
            ("stall", timing.stalled_s),
        ):
            moved = min(max(seconds, 0.0), left)
            left -= moved
            self._spent["productive"] -= moved
            self._spent[phase] += moved

    def _extend_trace(self) -> None:
        if self._now_s > self._begin_s:
            at_s = self._now_s - self._begin_s
            self._trace.append((at_s, (self._productive_s + self._spent["productive"]) / at_s))


def _phase_after(timing: AttemptTiming) -> str:
    """Returns the phase of the time after an attempt, once its end was known."""
    if timing.is_retried:
        return "wait"
    return "idle" if timing.has_ended or timing.failure_known_s is not None else "detect"


def _unfinished_s(timing: AttemptTiming, productive_s: float) -> float:
    """Returns the time spent in the unfinished step in which the attempt failed. It counts as detection: a
    rank was hanging, or waited for a peer that was gone.
    """
    if not timing.has_failed or timing.steps_s is None or timing.last_step_s is None:
        return 0.0
    return min(productive_s - timing.steps_s, timing.last_recorded_s - timing.last_step_s)
