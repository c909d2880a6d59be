"""Patterns read throughput and memory together, and say what each strategy is good for in this report. Pure.

Strategies are compared only if everything else is the same. Medians within 2 % of each other count as equal.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from reporting.analysis.findings import CellSummary
from reporting.analysis.formatting import fraction, is_known, middle

_ALIKE = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A pattern sums up one strategy's cell. ``advice`` says what the pattern ``name`` means for
    the choice.
    """

    cell: CellSummary
    name: str
    advice: str


@dataclass(frozen=True, slots=True)
class _Measured:
    cell: CellSummary
    speed: float
    memory: float

    @property
    def strategy(self) -> str:
        return self.cell.subject.strategy

    def is_faster(self, other: "_Measured") -> bool:
        return self.speed > _ALIKE * other.speed

    def is_lighter(self, other: "_Measured") -> bool:
        return _ALIKE * self.memory < other.memory

    def beats(self, other: "_Measured") -> bool:
        """Whether this one is better in throughput or memory and not worse in the other."""
        if other.is_faster(self) or other.is_lighter(self):
            return False
        return self.is_faster(other) or self.is_lighter(other)


def patterns(cells: Iterable[CellSummary]) -> tuple[Pattern, ...]:
    """Returns, for each group and model, the patterns of the setting in which the most strategies were
    measured.
    """
    settings: dict[tuple[str, str], dict[object, list[_Measured]]] = {}
    for found in filter(None, map(_measured, cells)):
        of_model = settings.setdefault((found.cell.group, found.cell.subject.model), {})
        setting = (found.cell.sweep, replace(found.cell.subject, strategy=""))
        of_model.setdefault(setting, []).append(found)
    return tuple(pattern for of_model in settings.values() for pattern in _of_setting(_fullest(of_model)))


def _measured(cell: CellSummary) -> _Measured | None:
    speed, memory = middle(cell.tokens_per_sec), cell.peak_vram_gb
    if not is_known(speed) or not is_known(memory) or min(speed, memory) <= 0:
        return None
    return _Measured(cell, speed, memory)


def _fullest(settings: dict[object, list[_Measured]]) -> list[_Measured]:
    """Returns the setting with the most strategies; then the most devices, then known scaling, then the
    highest speed decides.
    """
    return max(settings.values(), key=_fullness)


def _fullness(found: Sequence[_Measured]) -> tuple[int, int, int, float]:
    num_scaled = sum(one.cell.scaling_efficiency_pct is not None for one in found)
    return len(found), found[0].cell.subject.world_size, num_scaled, max(one.speed for one in found)


def _of_setting(found: Sequence[_Measured]) -> list[Pattern]:
    if len(found) < 2:
        return []
    fastest = max(found, key=lambda one: one.speed)
    lightest = min(found, key=lambda one: one.memory)
    by_speed = sorted(found, key=lambda one: -one.speed)
    return [_pattern(one, fastest, lightest, found) for one in by_speed]


def _pattern(one: _Measured, fastest: _Measured, lightest: _Measured, found: Sequence[_Measured]) -> Pattern:
    is_fast, is_light = not fastest.is_faster(one), not lightest.is_lighter(one)
    cost = fraction(1 - one.speed / fastest.speed)
    more = fraction(one.memory / lightest.memory - 1)
    better = next((other for other in found if other.beats(one)), None)
    if better is not None:
        name = "Beaten"
        advice = f"{better.strategy} is better in one and not worse in the other: no reason to take it"
    elif is_fast and is_light:
        name, advice = "Fastest and lightest", "Nothing to weigh up: take it"
    elif is_fast:
        is_heaviest = not any(one.is_lighter(other) for other in found)
        name = f"High throughput, {'high' if is_heaviest else 'medium'} memory"
        advice = f"Needs {more} more memory than {lightest.strategy}: take it while the model fits"
    elif is_light:
        name = "Low memory at a price"
        advice = f"Gives up {cost} of {fastest.strategy}'s throughput: take it where others don't fit"
    else:
        name = "In between"
        advice = f"Gives up {cost} of the most throughput and needs {more} more than the least memory"
    return Pattern(cell=one.cell, name=name, advice=f"{advice}.")
