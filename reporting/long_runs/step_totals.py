"""This module reads a run's step parts into totals by attempt and downsampled losses. Parts are read once, a
handful at a time.

Rank 0's row describes a step for all ranks; for steps that only other ranks managed to record, one of theirs
does. Then the loss is not known, since theirs is of one rank.
"""

import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from itertools import groupby
from math import isfinite
from statistics import fmean, median

from checkpointing.stores.contract import Store
from reporting.long_runs.downsampling import Downsampled
from reporting.long_runs.reading import RunParts, read_parts
from reporting.long_runs.stretches import Done
from reporting.long_runs.timeline import TimelineEntry
from reporting.recording.parts import PartName, Rows
from reporting.results.skipped import Skipped

_MOST_POINTS = 2_000
# A step that takes this many times the attempt's median has stalled; the time beyond that is lost.
_STALLED = 10.0
# Stalls are looked for among this many longest steps of an attempt.
_MOST_LONGEST = 1_000
# A source's loss is the mean of its newest steps, so many of them.
_NEWEST_STEPS = 100
_MOST_SOURCES = 1_000


@dataclass(slots=True, kw_only=True)
class StepTotals:
    """Totals over an attempt's steps. ``longest`` is a heap of step times, the shortest first.

    ``num_timed`` counted steps are in rank 0's record; only these steps' times enter the ledger. By rank 0's
    clock the newest step ended at ``ended_s``, and the newest step that the driver heard of ended at
    ``heard_step_ended_s``.
    """

    newest: int = 0
    ended_s: float | None = None
    heard_step_ended_s: float | None = None
    num_counted: int = 0
    num_superseded: int = 0
    num_timed: int = 0
    counted_s: float = 0.0
    superseded_s: float = 0.0
    data_wait_s: float = 0.0
    longest: list[float] = field(default_factory=list)
    sampled: Downsampled[float] = field(default_factory=lambda: Downsampled(_MOST_POINTS))

    @property
    def steps_s(self) -> float | None:
        return self.counted_s + self.superseded_s if self.num_timed or self.superseded_s else None

    @property
    def stalled_s(self) -> float:
        points = self.sampled.points()
        most = _STALLED * median(points) if points else 0.0
        return sum(step_s - most for step_s in self.longest if step_s > most)

    def add_time(self, step_s: float, data_wait_s: float) -> None:
        """Adds the times of a step that counts."""
        self.num_timed += 1
        self.counted_s += step_s
        self.data_wait_s += data_wait_s
        self.sampled.add(step_s)
        keep = heappush if len(self.longest) < _MOST_LONGEST else heappushpop
        keep(self.longest, step_s)


@dataclass(slots=True, kw_only=True)
class RunSteps:
    by_term: dict[int, StepTotals] = field(default_factory=lambda: defaultdict(StepTotals))
    losses: Downsampled[tuple[int, float | None]] = field(default_factory=lambda: Downsampled(_MOST_POINTS))
    val_losses: Downsampled[tuple[int, float]] = field(default_factory=lambda: Downsampled(_MOST_POINTS))

    by_source: dict[str, deque[float]] = field(default_factory=dict)

    @property
    def source_losses(self) -> dict[str, float]:
        """Each source's mean loss over the newest steps that have samples of it."""
        return {name: fmean(losses) for name, losses in sorted(self.by_source.items())}

    def add(
        self,
        totals: StepTotals,
        rows: Rows,
        counted_until: int | None,
        *,
        is_timed: bool,
        heard_step: int | None = None,
    ) -> None:
        """Adds those of ``rows`` whose steps are not in the attempt's ``totals`` yet."""
        names = ("step", "ended_s", "step_s", "data_wait_s", "loss", "val_loss", "source_losses")
        columns = [rows.column(name).to_pylist() for name in names]
        for step, ended_s, step_s, data_wait_s, loss, val_loss, by_source in zip(*columns, strict=True):
            if step <= totals.newest:
                continue
            totals.newest = step
            counts = counted_until is None or step <= counted_until
            if is_timed:
                totals.ended_s = ended_s
                if step == heard_step:
                    totals.heard_step_ended_s = ended_s
            if not counts:
                totals.num_superseded += 1
                totals.superseded_s += step_s if is_timed else 0.0
                continue
            totals.num_counted += 1
            if is_timed:
                totals.add_time(step_s, data_wait_s)
            self.losses.add((step, loss if is_timed else None))
            if val_loss is not None:
                self.val_losses.add((step, val_loss))
            for name, of_source in _losses_in(by_source):
                if name in self.by_source or len(self.by_source) < _MOST_SOURCES:
                    self.by_source.setdefault(name, deque(maxlen=_NEWEST_STEPS)).append(of_source)


def _losses_in(text: str | None) -> list[tuple[str, float]]:
    """The losses by source that a row tells; none if it is nothing that a training writes."""
    try:
        told = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return []
    pairs = told.items() if isinstance(told, dict) else ()
    return [(name, loss) for name, loss in pairs if isinstance(loss, float) and isfinite(loss)]


def read_steps(
    store: Store, parts: RunParts, heard: Mapping[int, TimelineEntry], skipped: list[Skipped]
) -> RunSteps:
    """``heard`` has, by term, the driver's record of a failure, with the newest step that it heard of."""
    steps = RunSteps()
    for term, of_term in groupby(parts.of("steps"), key=lambda name: name.term):
        names = list(of_term)
        totals, counted_until = steps.by_term[term], parts.counted_until.get(term, 0)
        heard_step = heard[term].step if term in heard else None
        for _, rows in read_parts(store, [name for name in names if name.rank == 0], skipped):
            steps.add(totals, rows, counted_until, is_timed=True, heard_step=heard_step)
        for _, rows in read_parts(store, _last_of_others(names), skipped):
            steps.add(totals, rows, counted_until, is_timed=False)
    return steps


def _last_of_others(names: Sequence[PartName]) -> list[PartName]:
    """Returns the last part of each rank but 0: other ranks may have lived or flushed a little later than
    rank 0.
    """
    return list({name.rank: name for name in names if name.rank != 0}.values())


def done_by_term(parts: RunParts, steps: RunSteps) -> dict[int, Done]:
    """What each attempt did, with the time of its steps and of waiting for their samples."""
    return {
        term: Done(
            num_steps=totals.num_counted,
            num_tokens=totals.num_timed * parts.attempts[term].tokens_per_step,
            seconds=totals.counted_s + totals.data_wait_s,
        )
        for term, totals in steps.by_term.items()
        if term in parts.attempts
    }


def tokens_per_sec(parts: RunParts, steps: RunSteps) -> float | None:
    """Returns the tokens of counted steps over the time of these steps and of waiting for their samples.

    None if nobody said how many tokens a step has.
    """
    known = done_by_term(parts, steps).values()
    seconds, tokens = sum(one.seconds for one in known), sum(one.num_tokens for one in known)
    return tokens / seconds if seconds > 0 and tokens > 0 else None
