"""This module reads the parts of long runs and makes a report's summary of each, and one table of all steps.

Steps that a later attempt replaced are ``superseded``, see ``superseded.counted_until``. Rank 0's row
describes a step for all ranks; for steps that only other ranks managed to record, one of theirs does. Parts
are read once, a handful at a time.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median

from checkpointing.stores.contract import Store
from reporting.long_runs.clock_alignment import aligned
from reporting.long_runs.downsampling import Downsampled
from reporting.long_runs.ledger import AttemptStory, Ledger, PhaseSpan, coarser, ledger
from reporting.long_runs.reading import RunParts, all_runs, one_run, read_parts
from reporting.long_runs.recoveries import Recovery, Restart, recoveries
from reporting.long_runs.summary import LongRun
from reporting.long_runs.superseded import unrecorded
from reporting.long_runs.timeline import (
    ENDINGS,
    TimelineEntry,
    endings_by_term,
    in_time,
    timeline_entry,
    told,
)
from reporting.recording.attempts import DRIVER, RecordedAttempt
from reporting.recording.parts import PartName, Rows, StepsFile, rows_in
from reporting.results.skipped import Skipped

_MOST_POINTS = 2_000
_MOST_SPANS = 4_000
# A step that takes this many times the attempt's median has stalled; the time beyond that is lost.
_STALLED = 10.0
# Stalls are looked for among this many longest steps of an attempt.
_MOST_LONGEST = 1_000


def long_runs(store: Store) -> tuple[tuple[LongRun, ...], tuple[Skipped, ...]]:
    """Returns all runs, ordered by name. Parts that could not be read are returned as skipped, and their run
    is summarised without them.
    """
    skipped: list[Skipped] = []
    runs = [_long_run(store, parts, skipped) for parts in all_runs(store)]
    return tuple(run for run in runs if run is not None), tuple(skipped)


def long_run(store: Store, run: str) -> LongRun | None:
    """Summarises one run, or returns None if nothing that can be read was recorded."""
    return _long_run(store, one_run(store, run), [])


def write_steps(store: Store, path: Path) -> tuple[int, tuple[Skipped, ...]]:
    """Writes all runs' steps to one Parquet file, and returns the number of rows. Only a few parts are in
    memory at a time.
    """
    skipped: list[Skipped] = []
    with StepsFile(path) as file:
        for parts in all_runs(store):
            for name, part in read_parts(store, parts.of("steps"), skipped):
                file.add(part.rows, parts.counted_until.get(name.term, 0))
    return file.num_rows, tuple(skipped)


def _long_run(store: Store, parts: RunParts, skipped: list[Skipped]) -> LongRun | None:
    attempt = parts.newest_attempt()
    if attempt is None:
        # None of its parts can be read: they are named as skipped.
        skipped += _unread(store, parts)
        return None
    entries = _timeline_entries(store, parts, skipped)
    steps = _read_steps(store, parts, _heard(entries), skipped)
    stories = aligned(_stories(store, parts, steps, entries, skipped))
    books, found = ledger(stories), in_time(entries, stories)
    begin_s = stories[0].leased_s
    return LongRun(
        name=parts.run,
        group=attempt.group,
        vendor=attempt.vendor,
        model=attempt.model,
        strategy=attempt.strategy,
        world_size=attempt.world_size,
        num_steps=sum(one.num_surviving for one in steps.by_term.values()),
        num_superseded=sum(one.num_superseded for one in steps.by_term.values()),
        tokens_per_sec=_tokens_per_sec(parts, steps),
        steps=tuple(step for step, _ in steps.losses.points()),
        losses=tuple(loss for _, loss in steps.losses.points()),
        val_steps=tuple(step for step, _ in steps.val_losses.points()),
        val_losses=tuple(loss for _, loss in steps.val_losses.points()),
        wall_sec=books.wall_sec,
        goodput=books.goodput,
        phases=books.phases,
        goodput_trace=_downsampled(books),
        incidents=told(found, begin_s),
        recoveries=_recoveries(parts, steps, stories, books, found),
        **_traces(store, parts, stories, skipped),
    )


@dataclass(slots=True, kw_only=True)
class _Steps:
    """Totals over an attempt's steps. ``longest`` is a heap of step times, the shortest first.

    ``num_timed`` surviving steps are in rank 0's record; only these steps' times enter the ledger. By rank
    0's clock the newest step ended at ``ended_s``, and the newest step that the driver heard of ended at
    ``told_s``.
    """

    newest: int = 0
    ended_s: float | None = None
    told_s: float | None = None
    num_surviving: int = 0
    num_superseded: int = 0
    num_timed: int = 0
    surviving_s: float = 0.0
    superseded_s: float = 0.0
    waited_s: float = 0.0
    longest: list[float] = field(default_factory=list)
    usual: Downsampled[float] = field(default_factory=lambda: Downsampled(_MOST_POINTS))

    def count(self, step: int, *, survived: bool) -> None:
        self.newest = max(self.newest, step)
        self.num_surviving += survived
        self.num_superseded += not survived

    def time(self, step_s: float, data_wait_s: float, *, survived: bool) -> None:
        if not survived:
            self.superseded_s += step_s
            return
        self.num_timed += 1
        self.surviving_s += step_s
        self.waited_s += data_wait_s
        self.usual.add(step_s)
        keep = heappush if len(self.longest) < _MOST_LONGEST else heappushpop
        keep(self.longest, step_s)

    def stalled_s(self) -> float:
        points = self.usual.points()
        most = _STALLED * median(points) if points else 0.0
        return sum(step_s - most for step_s in self.longest if step_s > most)


@dataclass(slots=True, kw_only=True)
class _AllSteps:
    by_term: dict[int, _Steps] = field(default_factory=lambda: defaultdict(_Steps))
    losses: Downsampled[tuple[int, float | None]] = field(default_factory=lambda: Downsampled(_MOST_POINTS))
    val_losses: Downsampled[tuple[int, float]] = field(default_factory=lambda: Downsampled(_MOST_POINTS))

    def add(
        self,
        own: _Steps,
        rows: Rows,
        counted_until: int | None,
        *,
        is_timed: bool,
        heard_step: int | None = None,
    ) -> None:
        """Adds those of ``rows`` whose steps the attempt, ``own``, does not have yet."""
        names = ("step", "ended_s", "step_s", "data_wait_s", "loss", "val_loss")
        columns = [rows.column(name).to_pylist() for name in names]
        for step, ended_s, step_s, data_wait_s, loss, val_loss in zip(*columns, strict=True):
            if step <= own.newest:
                continue
            survived = counted_until is None or step <= counted_until
            own.count(step, survived=survived)
            if is_timed:
                own.time(step_s, data_wait_s, survived=survived)
                own.ended_s = ended_s
                own.told_s = ended_s if step == heard_step else own.told_s
            if survived:
                self.losses.add((step, loss))
            if survived and val_loss is not None:
                self.val_losses.add((step, val_loss))


def _heard(entries: Sequence[TimelineEntry]) -> dict[int, TimelineEntry]:
    """Returns each attempt's failure as the driver recorded it: with the newest step that the driver heard
    of, and when.
    """
    return {one.term: one for one in entries if one.kind == "failure" and one.rank == DRIVER}


def _read_steps(
    store: Store, parts: RunParts, heard: Mapping[int, TimelineEntry], skipped: list[Skipped]
) -> _AllSteps:
    found = _AllSteps()
    for term, of_term in groupby(parts.of("steps"), key=lambda name: name.term):
        names = list(of_term)
        own, counted_until = found.by_term[term], parts.counted_until.get(term, 0)
        for _, part in read_parts(store, [name for name in names if name.rank == 0], skipped):
            heard_step = heard[term].step if term in heard else None
            found.add(own, part.rows, counted_until, is_timed=True, heard_step=heard_step)
        for _, part in read_parts(store, _last_of_others(names), skipped):
            found.add(own, part.rows, counted_until, is_timed=False)
    return found


def _last_of_others(names: Sequence[PartName]) -> list[PartName]:
    """Returns the last part of each rank but 0: other ranks may have lived or flushed a little later than
    rank 0.
    """
    return list({name.rank: name for name in names if name.rank != 0}.values())


def _tokens_per_sec(parts: RunParts, steps: _AllSteps) -> float | None:
    """Returns the tokens of surviving steps over the time of these steps and of waiting for their samples."""
    known = [(one, parts.attempts[term]) for term, one in steps.by_term.items() if term in parts.attempts]
    seconds = sum(one.surviving_s + one.waited_s for one, _ in known)
    tokens = sum(one.num_timed * attempt.tokens_per_step for one, attempt in known)
    return tokens / seconds if seconds > 0 else None


def _stories(
    store: Store,
    parts: RunParts,
    steps: _AllSteps,
    entries: Sequence[TimelineEntry],
    skipped: list[Skipped],
) -> list[AttemptStory]:
    spans, heard = _spans(store, parts, skipped), _heard(entries)
    newest = max(parts.attempts)
    return [
        _story(
            attempt,
            spans.get(term, ()),
            steps.by_term[term],
            [one for one in entries if one.term == term],
            heard.get(term),
            _kept_share(parts, steps, term, heard.get(term)),
            has_heir=term < newest,
        )
        for term, attempt in parts.attempts.items()
    ]


def _story(
    attempt: RecordedAttempt,
    spans: Sequence[PhaseSpan],
    steps: _Steps,
    endings: Sequence[TimelineEntry],
    heard: TimelineEntry | None,
    kept_share: float,
    *,
    has_heir: bool,
) -> AttemptStory:
    kinds = {one.kind for one in endings}
    failed = [one for one in endings if one.kind in ("failure", "interruption")]
    return AttemptStory(
        term=attempt.term,
        leased_s=attempt.leased_s,
        spans=tuple(spans),
        redone_s=steps.superseded_s,
        stalled_s=steps.stalled_s(),
        noticed_s=min((one.happened_s for one in failed if one.rank == DRIVER), default=None),
        failed_s=min((one.happened_s for one in failed if one.rank != DRIVER), default=None),
        has_ended=any(one.kind in ENDINGS and one.rank == 0 for one in endings),
        has_failed="failure" in kinds or (has_heir and not kinds.intersection(ENDINGS)),
        is_retried="restart" in kinds,
        steps_s=steps.surviving_s + steps.superseded_s if steps.num_timed or steps.superseded_s else None,
        last_step_s=steps.ended_s,
        heard_s=heard.happened_s - heard.seconds if heard and heard.seconds is not None else None,
        told_s=steps.told_s,
        kept_share=kept_share,
    )


def _recoveries(
    parts: RunParts,
    steps: _AllSteps,
    stories: Sequence[AttemptStory],
    books: Ledger,
    found: Sequence[TimelineEntry],
) -> tuple[Recovery, ...]:
    endings, restarts = endings_by_term(found), []
    for story, heir in pairwise(stories):
        attempt, following = (parts.attempts[one.term] for one in (story, heir))
        # Steps that were done but never recorded may have been done again too.
        _, num_unrecorded = _num_unrecorded(parts, steps, story.term, endings.get(story.term))
        restarts.append(
            Restart(
                story=story,
                world_size=attempt.world_size,
                num_redone=steps.by_term[story.term].num_superseded + num_unrecorded,
                next_term=heir.term,
                next_world_size=following.world_size,
                step=following.start_step,
            )
        )
    return recoveries(restarts, books, endings, stories[0].leased_s)


def _kept_share(parts: RunParts, steps: _AllSteps, term: int, heard: TimelineEntry | None) -> float:
    num_kept, num_redone = _num_unrecorded(parts, steps, term, heard)
    return num_kept / (num_kept + num_redone) if num_kept else 0.0


def _num_unrecorded(
    parts: RunParts, steps: _AllSteps, term: int, ending: TimelineEntry | None
) -> tuple[int, int]:
    """Returns what ``superseded.unrecorded`` does; ``ending`` has the newest step that anybody heard of."""
    attempt, newest = parts.attempts[term], steps.by_term[term].newest
    return unrecorded(attempt, newest, ending.step if ending else None, parts.counted_until.get(term, 0))


def _spans(store: Store, parts: RunParts, skipped: list[Skipped]) -> dict[int, list[PhaseSpan]]:
    found: dict[int, list[PhaseSpan]] = defaultdict(list)
    for name, part in read_parts(store, parts.of("phases"), skipped):
        spans = found[name.term]
        for (start_s, end_s), rows in groupby(
            rows_in(part.rows), key=lambda row: (row["started_s"], row["ended_s"])
        ):
            seconds = {row["phase"]: row["seconds"] for row in rows}
            spans.append(PhaseSpan(start_s=start_s, end_s=end_s, seconds=seconds))
        if len(spans) > _MOST_SPANS:
            found[name.term] = coarser(spans)
    return found


def _timeline_entries(store: Store, parts: RunParts, skipped: list[Skipped]) -> list[TimelineEntry]:
    names = parts.of("incidents")
    return [
        timeline_entry(row) for _, part in read_parts(store, names, skipped) for row in rows_in(part.rows)
    ]


def _downsampled(books: Ledger) -> tuple[tuple[float, float], ...]:
    trace: Downsampled[tuple[float, float]] = Downsampled(_MOST_POINTS)
    for point in books.trace:
        trace.add(point)
    return trace.points()


def _traces(
    store: Store, parts: RunParts, stories: Sequence[AttemptStory], skipped: list[Skipped]
) -> dict[str, dict[str, tuple[tuple[float, float], ...]]]:
    fields = ("power_watts", "clock_mhz")
    found: dict[str, dict[str, Downsampled[tuple[float, float]]]] = {name: {} for name in fields}
    begin_s, shifts = stories[0].leased_s, {story.term: story.worker_shift_s for story in stories}
    for part_name, part in read_parts(store, parts.of("samples"), skipped):
        shift_s = shifts.get(part_name.term, 0.0)
        for row in rows_in(part.rows):
            for name in fields:
                if row[name] is not None:
                    trace = found[name].setdefault(row["device"], Downsampled(_MOST_POINTS))
                    trace.add((row["taken_s"] + shift_s - begin_s, row[name]))
    return {
        name: {device: trace.points() for device, trace in sorted(of.items())} for name, of in found.items()
    }


def _unread(store: Store, parts: RunParts) -> list[Skipped]:
    skipped: list[Skipped] = []
    for _ in read_parts(store, parts.names, skipped):
        pass
    return skipped
