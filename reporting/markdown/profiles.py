"""These functions write the folded part of ``report.md`` about profiles. Pure."""

from collections.abc import Iterator, Sequence

from reporting.analysis.formatting import duration, fraction, plain, times
from reporting.analysis.profiles import ABOUT, CellProfile
from reporting.markdown.parts import left_out, origin, raw, table

_MOST_PROFILES = 30
_MOST_OPERATIONS = 3


def profiles(found: Sequence[CellProfile]) -> Iterator[str]:
    if not found:
        return
    shown = found[:_MOST_PROFILES]
    heads = ("group", "cell", "step", "of measured", "communication", "exposed", "data wait", "device idle")
    yield table((*heads, "most of the time"), "llrrrrrrl", map(_profile, shown))
    yield from left_out(len(shown), len(found), "profile", "metrics.csv has all")
    yield ABOUT


def _profile(one: CellProfile) -> list[str]:
    return [
        f"{plain(one.cell.group, 40)}{origin(one.cell.flags)}",
        plain(str(one.cell.subject)),
        raw(duration(one.step_sec)),
        raw(times(one.slowdown)),
        *(raw(fraction(share)) for share in (one.communication, one.exposed, one.data_wait, one.idle)),
        _operations(one),
    ]


def _operations(one: CellProfile) -> str:
    told = [
        f"{plain(found.name, 60)} {raw(fraction(found.share))}" for found in one.operations[:_MOST_OPERATIONS]
    ]
    return ", ".join([*told, *([plain(one.problem, 200)] if one.problem else [])])
