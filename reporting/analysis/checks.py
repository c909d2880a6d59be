"""Checks say what was found about a report's numbers, and what to do about it. Pure.

All passed results of a check are one line; each failed result is its own line, worst first, at most
``MOST_LINES``.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from reporting.analysis.findings import CellSummary, Check, CheckLevel
from reporting.analysis.formatting import counted
from reporting.analysis.inspections import losses, memory, numbers, sample_size, speed, time_order
from reporting.analysis.inspections.seen import Seen
from reporting.long_runs.summary import LongRun

MOST_LINES = 20
# Used for runs, by their window, and for long runs, by their clocks' traces.
_CAPPED = "clocks or power capped"
_WORST_FIRST: tuple[CheckLevel, ...] = ("failed", "warning", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inspection:
    """One check. ``what`` is the format of the values that are right; ``noun`` names what each value belongs
    to.
    """

    name: str
    look: Callable[[Sequence[CellSummary]], Iterable[Seen]]
    what: str
    noun: str = "cell"


_INSPECTIONS = (
    _Inspection(name="throughput plausible", look=speed.throughput, what="{} % of the device's peak"),
    _Inspection(name="throughput and step time agree", look=numbers.agreement, what=""),
    _Inspection(name="step time consistent", look=speed.step_times, what="run medians differ by {} %"),
    _Inspection(name="scaling efficiency sane", look=speed.scaling, what="{} % of the baseline"),
    _Inspection(name="attention by a fast kernel", look=speed.attention, what=""),
    _Inspection(name="stragglers", look=speed.stragglers, what="slowest rank {} % behind"),
    _Inspection(name="memory below the device's", look=memory.limits, what="{} % of it"),
    _Inspection(name="memory as predicted", look=memory.predictions, what="{} % off"),
    _Inspection(name="memory ordered as theory says", look=memory.order, what="", noun="pair"),
    _Inspection(name="loss decreasing", look=losses.decreasing, what="changed by {} %"),
    _Inspection(name="loss equal across strategies", look=losses.equal, what="{} % off"),
    _Inspection(name="enough repeats", look=sample_size.repeats, what="{} runs"),
    _Inspection(name="measured at the same time", look=time_order.one_after_the_other, what="", noun="pair"),
    _Inspection(name="no trend inside the window", look=time_order.trends, what=""),
    _Inspection(name="no drift over time", look=time_order.drift, what="{} %", noun="group"),
    _Inspection(name="measured by us on real devices", look=sample_size.origins, what=""),
    _Inspection(name=_CAPPED, look=speed.held_back, what="held back in {} % of the looks"),
)


def check(cells: Sequence[CellSummary], runs: Sequence[LongRun] = ()) -> tuple[Check, ...]:
    """Returns lines in the order of the checks. A check that had nothing to look at has no line."""
    clocks = _Inspection(
        name=_CAPPED,
        look=lambda _: speed.clocks(runs),
        what="clock at {} % of its best",
        noun="device",
    )
    return tuple(line for inspection in (*_INSPECTIONS, clocks) for line in _lines(inspection, cells))


def _lines(inspection: _Inspection, cells: Sequence[CellSummary]) -> Iterator[Check]:
    seen = list(inspection.look(cells))
    wrong = sorted({one for one in seen if one.level != "ok"}, key=_badness)
    say = partial(Check, name=inspection.name)
    for one in wrong[:MOST_LINES]:
        yield say(level=one.level, subject=one.subject, found=one.found, advice=one.advice)
    if rest := wrong[MOST_LINES:]:
        yield say(level=rest[0].level, subject=f"{len(rest):,} more", found="less bad than those above")
    if right := [one for one in seen if one.level == "ok"]:
        yield say(level="ok", subject=counted(len(right), inspection.noun), found=_range(inspection, right))


def _badness(one: Seen) -> tuple[int, float, str, str]:
    return _WORST_FIRST.index(one.level), -one.badness, one.subject, one.found


def _range(inspection: _Inspection, right: Sequence[Seen]) -> str:
    values = [one.value for one in right if one.value is not None]
    if not values:
        return "as it should be"
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return inspection.what.format(low if low == high else f"{low} to {high}")
