"""Says what a verdict about two groups rests on, what else differed, and what could overturn it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import date

from reporting.analysis.cells import measured
from reporting.analysis.findings import CellSummary, Comparison, Difference, MatchUp
from reporting.analysis.formatting import counted, joined, short
from reporting.analysis.sides.causes import likeliest_first

_MOST_DIFFERENCES = 4
_FEW_RUNS = 5
# Groups of different devices are compared because of these.
_WHAT_IS_COMPARED = ("vendor", "device name", "device memory bytes", "platform")


def of_grounds(
    cells: Sequence[CellSummary], comparisons: Sequence[Comparison], at_best: Sequence[MatchUp]
) -> Iterator[str]:
    """Yields up to three sentences about all comparisons of groups; what differed is of the first pair alone,
    since the page has a table of all.
    """
    decided = [one for one in comparisons if one.ratio]
    if not decided:
        return
    groups = {group for one in decided for group in (one.baseline, one.other)}
    own = [cell for cell in cells if cell.group in groups]
    yield _rests_on(decided, own)
    first = (decided[0].baseline, decided[0].other)
    yield from _differed([one for one in decided if (one.baseline, one.other) == first], first, len(groups))
    doubts = list(_doubts(comparisons, own, at_best))
    if doubts:
        yield f"What could overturn it: {'; '.join(doubts)}."


def _rests_on(found: Sequence[Comparison], cells: Sequence[CellSummary]) -> str:
    fewest = min(min(one.num_baseline, one.num_other) for one in found)
    most = max(max(one.num_baseline, one.num_other) for one in found)
    runs = counted(fewest, "run") if fewest == most else f"{fewest} to {most} runs"
    rows = [row for cell in cells for row in measured(cell.rows)]
    days = sorted({row.started_at[:10] for row in rows if row.started_at and _is_day(row.started_at[:10])})
    when = f", measured on {days[0]}" if len(days) == 1 else ""
    if len(days) > 1:
        when = f", measured on {len(days)} days from {days[0]} to {days[-1]}"
    sessions = min(min(one.baseline_sessions, one.other_sessions) for one in found)
    over = f" in {sessions} sessions" if sessions > 1 else ""
    return f"The verdict rests on {runs} of each cell and side{over}{when}."


def _is_day(text: str) -> bool:
    with suppress(ValueError):
        return bool(date.fromisoformat(text))
    return False


def _differed(found: Sequence[Comparison], pair: tuple[str, str], num_groups: int) -> Iterator[str]:
    """Names what else differed in any of them, the likeliest reason first."""
    seen: dict[str, Difference] = {}
    for one in found:
        for difference in one.differences:
            seen.setdefault(difference.what, difference)
    known = [one for one in likeliest_first(seen.values()) if one.what not in _WHAT_IS_COMPARED]
    if known:
        texts = [f"{one.what} ({short(one.baseline, 40)} and {short(one.other, 40)})" for one in known]
        where = f" between {' and '.join(pair)}" if num_groups > 2 else ""
        yield f"What else differed{where}, the likeliest reason first: {joined(texts, _MOST_DIFFERENCES)}."


def _doubts(
    found: Sequence[Comparison],
    cells: Sequence[CellSummary],
    at_best: Sequence[MatchUp],
) -> Iterator[str]:
    open_ones = sum(one.verdict in ("inconclusive", "too few repeats") for one in found)
    if open_ones:
        of_all = f" of {len(found):,}" if open_ones < len(found) else ""
        need = "needs" if open_ones == 1 else "need"
        yield f"{counted(open_ones, 'cell')}{of_all} {need} more runs to be decided"
    few = sum(min(one.num_baseline, one.num_other) < _FEW_RUNS for one in found if one.ratio)
    if few and not open_ones:
        yield f"fewer than {_FEW_RUNS} runs of a side in {counted(few, 'cell')}"
    if all(min(one.baseline_sessions, one.other_sessions) <= 1 for one in found):
        has_several = any(max(one.baseline_sessions, one.other_sessions) > 1 for one in found)
        side = "a side" if has_several else "each side"
        yield f"another day, since {side} was measured in one session (sweep --again adds one)"
    yield from _failed_runs(cells)
    unstable = [cell for cell in cells if "unstable" in cell.flags]
    if unstable:
        yield f"{counted(len(unstable), 'cell')} with unstable steps"
    uneven = [each for each in at_best if each.baseline.num_candidates != each.other.num_candidates]
    if uneven:
        first = uneven[0]
        yield (
            f"the best of {first.baseline.group} is of {counted(first.baseline.num_candidates, 'setting')}, "
            f"that of {first.other.group} of {first.other.num_candidates}"
        )


def _failed_runs(cells: Sequence[CellSummary]) -> Iterator[str]:
    """Names the groups whose runs failed in cells that have numbers all the same."""
    failed = Counter[str]()
    for cell in cells:
        if cell.status == "ok" and cell.num_failed:
            failed[cell.group] += cell.num_failed
    if failed:
        told = (f"{counted(number, 'run')} of {group}" for group, number in sorted(failed.items()))
        yield f"{joined(told)} failed in cells that have numbers from other runs"
