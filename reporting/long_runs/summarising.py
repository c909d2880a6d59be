"""This module reads the parts of long runs and makes a report's summary of each, and one table of all steps.

Steps that a later attempt replaced are ``superseded``, see ``superseded.counted_until``. Parts are read once,
a handful at a time.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path

from checkpointing.stores.contract import Store
from reporting.long_runs.clock_alignment import aligned
from reporting.long_runs.downsampling import Downsampled
from reporting.long_runs.ledger import AttemptTiming, Ledger, PhaseSpan, coarser, ledger
from reporting.long_runs.reading import RunParts, all_runs, one_run, read_data, read_parts
from reporting.long_runs.recoveries import Recovery, recovery
from reporting.long_runs.step_totals import RunSteps, done_by_term, read_steps, tokens_per_sec
from reporting.long_runs.stretches import stretches
from reporting.long_runs.summary import LongRun
from reporting.long_runs.superseded import unrecorded
from reporting.long_runs.timeline import (
    ENDINGS,
    TimelineEntry,
    described,
    endings_by_term,
    timeline,
    timeline_entry,
)
from reporting.recording.attempts import DRIVER, RecordedAttempt
from reporting.recording.parts import StepsFile, rows_in
from reporting.results.skipped import Skipped

_MOST_POINTS = 2_000
_MOST_SPANS = 4_000


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
            for name, rows in read_parts(store, parts.of("steps"), skipped):
                file.add(rows, parts.counted_until.get(name.term, 0))
    return file.num_rows, tuple(skipped)


def _long_run(store: Store, parts: RunParts, skipped: list[Skipped]) -> LongRun | None:
    newest = parts.newest_attempt()
    if newest is None:
        # None of its parts can be read: this adds each of them to ``skipped``.
        for _ in read_parts(store, parts.names, skipped):
            pass
        return None
    recorded = _recorded_entries(store, parts, skipped)
    # A driver's failure has the newest step that the driver heard of, and when.
    heard = {entry.term: entry for entry in recorded if entry.kind == "failure" and entry.rank == DRIVER}
    steps = read_steps(store, parts, heard, skipped)
    spans = _spans(store, parts, skipped)
    timings = aligned(
        [
            _timing(attempt, parts, steps, spans[term], recorded, heard.get(term))
            for term, attempt in parts.attempts.items()
        ]
    )
    spent, entries = ledger(timings), timeline(recorded, timings)
    return LongRun(
        name=parts.run,
        group=newest.group,
        vendor=newest.vendor,
        model=newest.model,
        strategy=newest.strategy,
        world_size=newest.world_size,
        simulated=newest.simulated,
        attention_kernel=newest.attention_kernel,
        num_steps=sum(totals.num_counted for totals in steps.by_term.values()),
        num_superseded=sum(totals.num_superseded for totals in steps.by_term.values()),
        tokens_per_sec=tokens_per_sec(parts, steps),
        steps=tuple(step for step, _ in steps.losses.points()),
        losses=tuple(loss for _, loss in steps.losses.points()),
        val_steps=tuple(step for step, _ in steps.val_losses.points()),
        val_losses=tuple(loss for _, loss in steps.val_losses.points()),
        source_losses=steps.source_losses,
        wall_sec=spent.wall_sec,
        goodput=spent.goodput,
        phases=spent.phases,
        goodput_trace=Downsampled(_MOST_POINTS, spent.trace).points(),
        incidents=described(entries, timings[0].leased_s),
        recoveries=_recoveries(parts, steps, spent, entries, timings[0].leased_s),
        stretches=tuple(
            stretches(parts.attempts.values(), done_by_term(parts, steps), spent, begin_s=timings[0].leased_s)
        ),
        data=read_data(store, parts.run, skipped),
        **_traces(store, parts, timings, skipped),
    )


def _timing(
    attempt: RecordedAttempt,
    parts: RunParts,
    steps: RunSteps,
    spans: Sequence[PhaseSpan],
    recorded: Sequence[TimelineEntry],
    heard: TimelineEntry | None,
) -> AttemptTiming:
    entries = [entry for entry in recorded if entry.term == attempt.term]
    kinds = {entry.kind for entry in entries}
    failures = [entry for entry in entries if entry.kind in ("failure", "interruption")]
    totals = steps.by_term[attempt.term]
    num_kept, num_redone = _num_unrecorded(parts, steps, attempt, heard)
    has_successor = attempt.term < max(parts.attempts)
    return AttemptTiming(
        term=attempt.term,
        leased_s=attempt.leased_s,
        spans=tuple(spans),
        redone_s=totals.superseded_s,
        stalled_s=totals.stalled_s,
        noticed_s=min((entry.happened_s for entry in failures if entry.rank == DRIVER), default=None),
        failed_s=min((entry.happened_s for entry in failures if entry.rank != DRIVER), default=None),
        has_ended=any(entry.kind in ENDINGS and entry.rank == 0 for entry in entries),
        has_failed="failure" in kinds or (has_successor and not kinds.intersection(ENDINGS)),
        is_retried="restart" in kinds,
        steps_s=totals.steps_s,
        last_step_s=totals.ended_s,
        heard_s=heard.happened_s - heard.seconds if heard and heard.seconds is not None else None,
        heard_step_ended_s=totals.heard_step_ended_s,
        kept_share=num_kept / (num_kept + num_redone) if num_kept else 0.0,
    )


def _recoveries(
    parts: RunParts, steps: RunSteps, spent: Ledger, entries: Sequence[TimelineEntry], begin_s: float
) -> tuple[Recovery, ...]:
    # Each attempt with a successor has one: ``timeline`` adds a failure that nobody recorded.
    endings, found = endings_by_term(entries), []
    for attempt, successor in pairwise(parts.attempts.values()):
        ending = endings[attempt.term]
        # Steps that were done but never recorded may have been done again too.
        _, num_unrecorded = _num_unrecorded(parts, steps, attempt, ending)
        num_redone = steps.by_term[attempt.term].num_superseded + num_unrecorded
        found.append(recovery(attempt, successor, spent, ending, num_redone=num_redone, begin_s=begin_s))
    return tuple(found)


def _num_unrecorded(
    parts: RunParts, steps: RunSteps, attempt: RecordedAttempt, entry: TimelineEntry | None
) -> tuple[int, int]:
    """Returns what ``superseded.unrecorded`` does; ``entry`` has the newest step that anybody heard of."""
    newest, heard_step = steps.by_term[attempt.term].newest, entry.step if entry else None
    return unrecorded(attempt, newest, heard_step, parts.counted_until[attempt.term])


def _spans(store: Store, parts: RunParts, skipped: list[Skipped]) -> dict[int, list[PhaseSpan]]:
    found: dict[int, list[PhaseSpan]] = defaultdict(list)
    for name, part in read_parts(store, parts.of("phases"), skipped):
        spans = found[name.term]
        for (start_s, end_s), rows in groupby(
            rows_in(part), key=lambda row: (row["started_s"], row["ended_s"])
        ):
            seconds = {row["phase"]: row["seconds"] for row in rows}
            spans.append(PhaseSpan(start_s=start_s, end_s=end_s, seconds=seconds))
        if len(spans) > _MOST_SPANS:
            found[name.term] = coarser(spans)
    return found


def _recorded_entries(store: Store, parts: RunParts, skipped: list[Skipped]) -> list[TimelineEntry]:
    names = parts.of("incidents")
    return [timeline_entry(row) for _, part in read_parts(store, names, skipped) for row in rows_in(part)]


def _traces(
    store: Store, parts: RunParts, timings: Sequence[AttemptTiming], skipped: list[Skipped]
) -> dict[str, dict[str, tuple[tuple[float, float], ...]]]:
    fields = ("power_watts", "clock_mhz")
    traces: dict[str, dict[str, Downsampled[tuple[float, float]]]] = {name: {} for name in fields}
    begin_s, shifts = timings[0].leased_s, {timing.term: timing.worker_shift_s for timing in timings}
    for part_name, part in read_parts(store, parts.of("samples"), skipped):
        shift_s = shifts.get(part_name.term, 0.0)
        for row in rows_in(part):
            for name in fields:
                if row[name] is not None:
                    trace = traces[name].setdefault(row["device"], Downsampled(_MOST_POINTS))
                    trace.add((row["taken_s"] + shift_s - begin_s, row[name]))
    return {
        name: {device: trace.points() for device, trace in sorted(by_device.items())}
        for name, by_device in traces.items()
    }
