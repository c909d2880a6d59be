"""Looks are fixed: a group has one colour, line and hatch in all charts, a strategy one marker. Pure.

The colours are Okabe and Ito's, changed in lightness until each has a contrast of 3 on white and on near
black. Colour is never the only sign: line, hatch and the marker's filling say the same as the colour.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from zlib import crc32


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyLook:
    marker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLook:
    """How a group looks. ``dashes`` are lengths of ink and gap, in line widths; an empty tuple is a solid
    line.
    """

    colour: str
    dashes: tuple[float, ...]
    hatch: str
    is_filled: bool


_STRATEGIES = {
    "ddp": StrategyLook(marker="o"),
    "fsdp": StrategyLook(marker="s"),
    "zero1": StrategyLook(marker="^"),
    "zero2": StrategyLook(marker="D"),
    "zero3": StrategyLook(marker="v"),
}
_OTHER_MARKERS = ("P", "X", "h", "p", "<", ">", "8")

# A vendor's first group gets the first line of its vendor, and so on. Each vendor has its own family of
# hatches.
_LINES: dict[str | None, tuple[tuple[float, ...], ...]] = {
    "nvidia": ((), (14.0, 2.0), (14.0, 2.0, 3.0, 2.0)),
    "amd": ((4.0, 2.0), (4.0, 1.5, 1.0, 1.5), (4.0, 1.5, 1.0, 1.5, 1.0, 1.5)),
    "cpu": ((6.0, 1.2, 1.0, 1.2), (6.0, 1.2, 1.0, 1.2, 1.0, 1.2), (3.0, 1.2, 1.0, 1.2)),
}
_GROUP_COLOURS: dict[str | None, tuple[str, ...]] = {
    "nvidia": ("#009e73", "#5b8a00", "#7f7f7f"),
    "amd": ("#d55e00", "#c46a9d", "#a0693c"),
    "cpu": ("#1276ba", "#8c6bb1", "#b98000"),
}
_OTHER_GROUP_COLOURS = ("#8c6bb1", "#b98000", "#7f7f7f")
_OTHER_LINES = ((9.0, 2.0, 2.5, 2.0), (9.0, 2.0, 2.5, 2.0, 2.5, 2.0), (2.5, 2.5))
_HATCHES: dict[str | None, tuple[str, ...]] = {
    "nvidia": ("", "\\\\\\", "|||"),
    "amd": ("////", "////..", "//"),
    "cpu": ("....", "..", "oo"),
}
_OTHER_HATCHES = ("---", "++", "--..")


def strategy_look(strategy: str) -> StrategyLook:
    """Returns a strategy's look. The look of an unknown strategy depends only on its name."""
    known = _STRATEGIES.get(strategy)
    if known:
        return known
    number = crc32(strategy.encode("utf-8", "replace"))
    return StrategyLook(marker=_OTHER_MARKERS[number % len(_OTHER_MARKERS)])


def strategy_order(strategy: str) -> tuple[int, str]:
    """Orders strategies: known ones first, those that shard more later."""
    names = list(_STRATEGIES)
    return (names.index(strategy) if strategy in _STRATEGIES else len(names), strategy)


def group_looks(groups: Iterable[tuple[str, str | None]]) -> dict[str, GroupLook]:
    """Returns a look by group, from (group, vendor). A vendor's groups differ in detail; its first group by
    name looks plainest.
    """
    looks: dict[str, GroupLook] = {}
    num_of_vendor: dict[str | None, int] = {}
    for group, vendor in sorted(set(groups), key=lambda pair: (pair[0], pair[1] or "")):
        number = num_of_vendor.get(vendor, 0)
        num_of_vendor[vendor] = number + 1
        looks[group] = _group_look(vendor, number)
    return looks


def _group_look(vendor: str | None, number: int) -> GroupLook:
    lines, hatches = _LINES.get(vendor, _OTHER_LINES), _HATCHES.get(vendor, _OTHER_HATCHES)
    colours = _GROUP_COLOURS.get(vendor, _OTHER_GROUP_COLOURS)
    return GroupLook(
        colour=colours[number % len(colours)],
        dashes=lines[number % len(lines)],
        hatch=hatches[number % len(hatches)],
        is_filled=vendor != "amd",
    )
