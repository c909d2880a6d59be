"""These inspections ask whether time may be the reason for a difference: groups measured one after the other,
and speeds that drifted while they were measured. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import combinations
from math import log, sqrt
from statistics import fmean, median

from reporting.analysis.findings import CellSummary, Subject
from reporting.analysis.formatting import counted, duration
from reporting.analysis.inspections.seen import Seen, name_of, ok_rows
from reporting.results.formulas import Trend, trend_of
from reporting.results.rows import Row

# Fewer runs show no drift, fewer steps no trend.
_FEWEST_RUNS = 10
_FEWEST_STEPS = 20
_FEWEST_OF_CELL = 3
# A drift that noise of unordered runs shows in one of a thousand groups.
_SIGNIFICANT = 3.29
_LEAST_DRIFT = 0.01
# A run's trend is clear beyond both; noise shows one in about a hundred runs, so a cell needs several.
_LEAST_TREND, _TREND_ERRORS = 0.02, 3.0
_MOST_WITH_TREND = 1 / 3

_Span = tuple[float, float]


def one_after_the_other(cells: Sequence[CellSummary]) -> Iterator[Seen]:
    """Looks at the cells that two groups share: whether all runs of one side ended before those of the other
    began.
    """
    spans: dict[str, dict[Subject, _Span]] = {}
    for cell in cells:
        if span := _span(ok_rows(cell)):
            subjects = spans.setdefault(cell.group, {})
            known = subjects.get(cell.subject, span)
            subjects[cell.subject] = min(known[0], span[0]), max(known[1], span[1])
    for one, two in combinations(sorted(spans), 2):
        if shared := spans[one].keys() & spans[two].keys():
            yield _of_pair(one, two, [_gap(spans[one][each], spans[two][each]) for each in shared])


def _of_pair(one: str, two: str, gaps: Sequence[float]) -> Seen:
    apart = [gap for gap in gaps if gap > 0]
    subject = f"{one} and {two}"
    if not apart:
        return Seen(level="ok", subject=subject)
    cells = counted(len(gaps), "cell") if len(apart) == len(gaps) else f"{len(apart)} of {len(gaps)} cells"
    return Seen(
        level="warning",
        subject=subject,
        found=f"were measured one after the other in {cells}, up to {duration(max(apart))} apart",
        advice="What changed meanwhile counts as a difference between them: measure both at the same time, "
        "or again in the other order.",
        badness=len(apart) / len(gaps),
    )


def drift(cells: Sequence[CellSummary]) -> Iterator[Seen]:
    """Looks at each group's runs in the order of time: whether they got faster or slower, each beside the
    median of its own cell.
    """
    groups: dict[str, list[tuple[float, float]]] = {}
    for cell in cells:
        groups.setdefault(cell.group, []).extend(_beside_their_median(cell))
    for group, points in sorted(groups.items()):
        if len(points) >= _FEWEST_RUNS:
            yield _of_group(group, [value for _, value in sorted(points)])


def trends(cells: Sequence[CellSummary]) -> Iterator[Seen]:
    """Looks at the steps of each run: whether they got faster or slower within its window."""
    for cell in cells:
        found = [trend for row in ok_rows(cell) if (trend := _trend(row))]
        if not found:
            continue
        clear = [trend.change for trend in found if trend.exceeds(_LEAST_TREND, errors=_TREND_ERRORS)]
        if len(clear) <= len(found) * _MOST_WITH_TREND:
            yield Seen(level="ok", subject=name_of(cell))
            continue
        change = median(clear)
        yield Seen(
            level="warning",
            subject=name_of(cell),
            found=f"steps got {100 * abs(change):.1f} % {'slower' if change > 0 else 'faster'} within the "
            f"window of {len(clear)} of {counted(len(found), 'run')}",
            advice="A longer measure.warmup if they get faster; heat or other jobs if slower.",
            badness=abs(change),
        )


def _trend(row: Row) -> Trend | None:
    return trend_of(row.raw_step_times) if len(row.raw_step_times) >= _FEWEST_STEPS else None


def _of_group(group: str, values: Sequence[float]) -> Seen:
    third = len(values) // 3
    change = fmean(values[-third:]) - fmean(values[:third])
    is_drift = abs(_rank_correlation(values)) * sqrt(len(values) - 1) > _SIGNIFICANT
    if not is_drift or abs(change) < _LEAST_DRIFT:
        return Seen(level="ok", subject=group, value=100 * abs(change))
    return Seen(
        level="warning",
        subject=group,
        found=f"got {100 * abs(change):.1f} % {'faster' if change > 0 else 'slower'} from the first to the "
        f"last third of its {counted(len(values), 'run')}",
        advice="Its cells are comparable only if each has runs from all of that time: order: shuffled or "
        "interleaved does that. Look for heat, other jobs, or a warm-up that was too short.",
        badness=abs(change),
    )


def _beside_their_median(cell: CellSummary) -> Iterator[tuple[float, float]]:
    known = [
        (began, row.tokens_per_sec)
        for row in ok_rows(cell)
        if row.tokens_per_sec and row.tokens_per_sec > 0 and (began := _seconds(row.started_at)) is not None
    ]
    if len(known) >= _FEWEST_OF_CELL:
        middle = median(speed for _, speed in known)
        yield from ((began, log(speed / middle)) for began, speed in known)


def _rank_correlation(values: Sequence[float]) -> float:
    """Spearman's, of the values with their places. Ties have their mean rank."""
    ranks: Mapping[float, float] = _mean_ranks(values)
    middle = (len(values) - 1) / 2
    places = [place - middle for place in range(len(values))]
    others = [ranks[value] - middle for value in values]
    spread = sqrt(sum(place**2 for place in places) * sum(other**2 for other in others))
    return sum(place * other for place, other in zip(places, others, strict=True)) / spread if spread else 0.0


def _mean_ranks(values: Sequence[float]) -> dict[float, float]:
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values)):
        places.setdefault(value, []).append(place)
    return {value: fmean(found) for value, found in places.items()}


def _span(rows: Sequence[Row]) -> _Span | None:
    began = [seconds for row in rows if (seconds := _seconds(row.started_at)) is not None]
    ended = [seconds for row in rows if (seconds := _seconds(row.finished_at)) is not None]
    return (min(began), max(ended)) if began and ended else None


def _gap(one: _Span, two: _Span) -> float:
    """The seconds between the end of one side and the beginning of the other; negative if they overlap."""
    return max(one[0], two[0]) - min(one[1], two[1])


def _seconds(iso: str | None) -> float | None:
    """Seconds since 1970; None for text that is no time, or names no zone."""
    try:
        moment = datetime.fromisoformat(iso or "")
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo else None
