"""Formatting shows numbers and names to people: sensible digits, units, a dash for unknown values. Pure."""

import re
from collections.abc import Iterable
from datetime import datetime
from html import escape
from math import floor, isfinite, log10
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:  # Commands that only count something need not load what compares.
    from reporting.analysis.findings import Comparison, Estimate

UNKNOWN = "–"
THIN = "\u202f"  # between a number and its unit, and never at a line's end

# Control characters, then those that are invisible or turn the direction of the text after them.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]"
)
# Characters with a meaning in Markdown, line beginnings that would start a list, and the at sign, which would
# notify a GitHub user.
_MARKUP = re.compile(r"[\\`*_\[\]#|~$@]|^[-+]|(?<=^\d)[.)](?= |$)|(?<=^\d\d)[.)](?= |$)")
_DURATIONS = ((7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (1.0, 1.0, "s"), (1e-3, 1e-3, "ms"))


def is_known(value: float | None) -> TypeGuard[float]:
    return value is not None and isfinite(value)


def number(value: float | None, digits: int = 3) -> str:
    """Shows at least ``digits`` significant digits, and all digits before the decimal point. Commas group
    thousands.
    """
    if not is_known(value):
        return UNKNOWN
    if value == 0:
        return "0"
    magnitude = floor(log10(abs(value)))
    if magnitude < -4:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}"


def count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def counted(value: int, noun: str, plural: str = "") -> str:
    """Returns ``1 cell``, ``2 cells``."""
    return f"{value:,} {noun if value == 1 else plural or noun + 's'}"


def unit(text: str, name: str) -> str:
    return text if text == UNKNOWN else f"{text}{THIN}{name}"


def percent(value: float | None) -> str:
    """Shows a value that is already in percent, with at most one decimal."""
    if not is_known(value):
        return UNKNOWN
    return unit(f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}", "%")


def fraction(value: float | None) -> str:
    return percent(None if value is None else 100 * value)


def gigabytes(value: float | None) -> str:
    return unit(number(value, 4), "GB")


def duration(seconds: float | None) -> str:
    if not is_known(seconds):
        return UNKNOWN
    for at_least, size, name in _DURATIONS:
        if seconds >= at_least:
            return unit(number(seconds / size), name)
    return unit(number(seconds * 1e6), "µs")


def moment(iso: str | None) -> str:
    """Shows a time to the minute. Text that isn't an ISO 8601 time stays as it is."""
    try:
        found = datetime.fromisoformat(iso or "")
    except ValueError:
        return short(iso, 40)
    zone = found.tzname() or ""
    return f"{found:%Y-%m-%d %H:%M} {zone}".strip()


def times(ratio: float | None) -> str:
    return f"{ratio:.3f}×" if is_known(ratio) else UNKNOWN


def between(low: float | None, high: float | None) -> str:
    """Shows the interval of a ratio with as many digits as ``times``, or nothing if there is no interval."""
    return f"[{low:.3f}, {high:.3f}]" if is_known(low) and is_known(high) else ""


def probability(p: float | None) -> str:
    """Shows three decimals; smaller values become ``< 0.001``."""
    if not is_known(p):
        return UNKNOWN
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def interval(low: float | None, high: float | None, digits: int = 3) -> str:
    """Returns ``[low, high]``, or nothing if a bound is unknown."""
    if not is_known(low) or not is_known(high):
        return ""
    return f"[{number(low, digits)}, {number(high, digits)}]"


def middle(found: "Estimate | None") -> float | None:
    return None if found is None else found.median


def num_runs(found: "Estimate | None") -> int:
    return 0 if found is None else found.num_runs


def estimate(found: "Estimate | None", digits: int = 3) -> str:
    if found is None:
        return UNKNOWN
    return " ".join(filter(None, (number(found.median, digits), interval(found.low, found.high, digits))))


def winner(found: "Comparison") -> str:
    """Returns which group won and by how much, or the verdict itself if neither did."""
    if not found.ratio or found.verdict not in ("faster", "slower"):
        return verdict_text(found)
    if found.verdict == "faster":
        return f"{short(found.other)} by {times(found.ratio)}"
    return f"{short(found.baseline)} by {times(1 / found.ratio)}"


def verdict_text(found: "Comparison") -> str:
    """Returns the verdict in words. If a side has no numbers, it says which and why."""
    return found.failures or found.verdict


def short(text: str | None, length: int = 100) -> str:
    """Returns one line of at most ``length`` characters that can be encoded as UTF-8."""
    if text is None:
        return UNKNOWN
    line = " ".join(clean(text[: 4 * length]).split()) or UNKNOWN
    return line if len(line) <= length else f"{line[: length - 1]}…"


def clean(text: str) -> str:
    """Replaces characters that no page may hold: halves of surrogate pairs, control characters, and those
    that let a name look like another one.
    """
    whole = text.encode(errors="replace").decode()
    return _CONTROL.sub("\ufffd", whole)


def joined(texts: Iterable[str], most: int = 5) -> str:
    """Returns the first ``most`` texts, and how many more there are."""
    found = list(texts)
    shown = ", ".join(short(text) for text in found[:most]) or UNKNOWN
    return shown if len(found) <= most else f"{shown} and {len(found) - most:,} more"


def plain(text: str | None, length: int = 100) -> str:
    """Escapes text so that Markdown shows it as it is: no markup, HTML, table borders or user mentions."""
    safe = escape(short(text, length).replace(THIN, " "), quote=False)
    return _MARKUP.sub(lambda found: "&#64;" if found[0] == "@" else f"\\{found[0]}", safe)
