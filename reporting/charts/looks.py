"""Looks are fixed: a strategy has one colour and marker in all charts, a group one line and hatch. Pure.

The colours are Okabe and Ito's, changed in lightness until each has a contrast of 3 on white and on near
black. Colour is never the only sign: the marker says the same as the colour. The hatch and the marker's
filling say the same as the line.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from zlib import crc32


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyLook:
    colour: str
    marker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLook:
    """How a group looks. ``dashes`` are lengths of ink and gap, in line widths; an empty tuple is a solid
    line. ``colour`` is for pictures in which no strategy has one.
    """

    colour: str
    dashes: tuple[float, ...]
    hatch: str
    is_filled: bool


_STRATEGIES = {
    "ddp": StrategyLook(colour="#1276ba", marker="o"),
    "fsdp": StrategyLook(colour="#d55e00", marker="s"),
    "zero1": StrategyLook(colour="#449bd3", marker="^"),
    "zero2": StrategyLook(colour="#009e73", marker="D"),
    "zero3": StrategyLook(colour="#c46a9d", marker="v"),
}
_OTHER_COLOURS = ("#b98000", "#7f7f7f", "#8c6bb1", "#a0693c", "#5b8a00")
_OTHER_MARKERS = ("P", "X", "h", "p", "<", ">", "8")

# A vendor's first group gets the first line of its vendor, and so on. Each vendor has its own family of
# hatches.
_LINES: dict[str | None, tuple[tuple[float, ...], ...]] = {
    "nvidia": ((), (14.0, 2.0), (14.0, 2.0, 3.0, 2.0)),
    "amd": ((4.0, 2.0), (4.0, 1.5, 1.0, 1.5), (4.0, 1.5, 1.0, 1.5, 1.0, 1.5)),
    "cpu": ((6.0, 1.2, 1.0, 1.2), (6.0, 1.2, 1.0, 1.2, 1.0, 1.2), (3.0, 1.2, 1.0, 1.2)),
}
# Of the same series as those of strategies: each has a contrast of 3 on white and on near black.
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
    colour = _OTHER_COLOURS[number % len(_OTHER_COLOURS)]
    return StrategyLook(colour=colour, marker=_OTHER_MARKERS[number // 7 % len(_OTHER_MARKERS)])


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
