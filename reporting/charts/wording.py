"""Wording turns names and numbers into a chart's text: printable, short, with a suitable unit. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

# Estimates of fewer runs have no interval.
_RUNS_FOR_INTERVAL = 3
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit. ``size`` is the number of base units in it."""

    name: str
    size: float


def name_of(text: str, longest: int = 24) -> str:
    """Returns one printable line of at most ``longest`` characters, never an empty one."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return (line if len(line) <= longest else f"{line[: longest - 1]}…") or "(no name)"


def model_of(text: str, longest: int = 24) -> str:
    """Returns a model's name in the same way, without its middle if it is too long.

    Its end may be a digest, which tells it from others of its name.
    """
    line = name_of(text, len(text) + 1)
    if len(line) <= longest:
        return line
    end = longest // 2
    return f"{line[: longest - end - 1]}…{line[-end:]}"


def short(value: float) -> str:
    """Shows three digits: ``251k``, ``34.9k``, ``0.842``."""
    value = float(f"{value:.3g}")
    for size, prefix in _PREFIXES:
        if size <= abs(value) < 1e15:
            return f"{_digits(value / size)}{prefix}"
    return _digits(value)


def tick(value: float) -> str:
    """Shows as many digits as an axis needs: ``252.5k``."""
    for size, prefix in _PREFIXES:
        if size <= abs(value) < 1e15:
            return f"{value / size:.6g}{prefix}"
    return f"{value:.6g}"


def step_unit(largest_s: float) -> Unit:
    if largest_s < 1e-3:
        return Unit("µs", 1e-6)
    return Unit("ms", 1e-3) if largest_s < 1.0 else Unit("s", 1.0)


def elapsed_unit(longest_s: float) -> Unit:
    if longest_s < 180.0:
        return Unit("s", 1.0)
    if longest_s < 3 * 3600.0:
        return Unit("min", 60.0)
    return Unit("h", 3600.0) if longest_s < 4 * 86_400.0 else Unit("days", 86_400.0)


def duration(seconds: float) -> str:
    unit = elapsed_unit(seconds)
    return f"{_digits(seconds / unit.size)} {unit.name}"


def runs_per_cell(numbers: Iterable[int], *, has_intervals: bool = True) -> str:
    """Says how often each point was measured, and what its bar means. ``has_intervals`` says whether bars are
    drawn where there are enough runs.
    """
    found = sorted(set(numbers))
    if not found or found == [1]:
        return "n = 1 run per cell, so there are no intervals."
    n = f"{found[0]}" if len(found) == 1 else f"{found[0]} to {found[-1]}"
    if not has_intervals:
        return f"n = {n} runs per cell; medians."
    if found[-1] < _RUNS_FOR_INTERVAL:
        return f"n = {n} runs per cell; medians, too few runs for intervals."
    return f"n = {n} runs per cell; medians with 95 % intervals."


def listed(names: Iterable[str], most: int = 4) -> str:
    """Returns ``a, b and 3 more``."""
    found = list(names)
    shown = ", ".join(name_of(name) for name in found[:most])
    return shown if len(found) <= most else f"{shown} and {len(found) - most} more"


def is_number(value: float | None) -> bool:
    """Whether a value is known, finite, and small enough to be drawn without overflow."""
    return value is not None and isfinite(value) and abs(value) < 1e30


def _digits(value: float) -> str:
    if value == 0 or not 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    text = f"{value:.{max(0, 3 - whole)}f}"
    return text.rstrip("0").rstrip(".") if "." in text and abs(value) < 1 else text
