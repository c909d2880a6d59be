"""Summarises the looks at one device in a window: energy, clocks and why the clock was reduced. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from cluster.telemetry.readings import Reading

# The energy counts as unknown if two ways of measuring it differ by more than this.
MOST_DISAGREEMENT = 0.10
# Power between two looks is unknown, so it is not integrated over a longer gap.
_LONGEST_GAP_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLook:
    """One look at a device. ``at_s`` is when it began, by a monotonic clock."""

    at_s: float
    reading: Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One device during one window. ``energy_joules`` is from its counter, if integrated power agrees
    within 10 %.

    - ``throttled`` has each reason's share of the looks; None if the device does not report reasons.
    - ``throttled_pct`` is the percentage of looks with any reason at all.
    """

    energy_joules: float | None = None
    integrated_joules: float | None = None
    power_watts_mean: float | None = None
    power_cap_watts: float | None = None
    power_cap_default_watts: float | None = None
    clock_mhz_min: float | None = None
    clock_mhz_median: float | None = None
    memory_clock_mhz_median: float | None = None
    temperature_c_max: float | None = None
    throttled_pct: float | None = None
    throttled: tuple[tuple[str, float], ...] | None = None
    ecc_errors: int | None = None


def watched(looks: Sequence[DeviceLook]) -> Watched:
    """Summarises ``looks``, which begin just before the window and end just after it, in order."""
    inside = looks[1:-1] or looks
    counted, integrated = _counted(looks), _integrated(looks)
    clocks = _known(inside, lambda reading: reading.clock_mhz)
    reasons = [look.reading.throttle for look in inside if look.reading.throttle is not None]
    return Watched(
        energy_joules=counted if _agree(counted, integrated) else None,
        integrated_joules=integrated,
        power_watts_mean=_of(fmean, _known(inside, lambda reading: reading.power_watts)),
        power_cap_watts=_of(min, _known(looks, lambda reading: reading.power_cap_watts)),
        power_cap_default_watts=_of(max, _known(looks, lambda reading: reading.power_cap_default_watts)),
        clock_mhz_min=_of(min, clocks),
        clock_mhz_median=_of(median, clocks),
        memory_clock_mhz_median=_of(median, _known(inside, lambda reading: reading.memory_clock_mhz)),
        temperature_c_max=_of(max, _known(looks, lambda reading: reading.temperature_c)),
        throttled_pct=100 * fmean(bool(found) for found in reasons) if reasons else None,
        throttled=_shares(reasons) if reasons else None,
        ecc_errors=_new_errors(looks),
    )


def _counted(looks: Sequence[DeviceLook]) -> float | None:
    """Returns None if the counter is missing at an end, or ever went backwards: it wrapped or was reset."""
    counters = [look.reading.energy_joules for look in looks]
    if len(counters) < 2 or counters[0] is None or counters[-1] is None:
        return None
    known = [counter for counter in counters if counter is not None]
    if any(after < before for before, after in pairwise(known)):
        return None
    return known[-1] - known[0]


def _integrated(looks: Sequence[DeviceLook]) -> float | None:
    """Integrates power over time by trapezoids."""
    if len(looks) < 2:
        return None
    joules = 0.0
    for before, after in pairwise(looks):
        span_s, first, second = (
            after.at_s - before.at_s,
            before.reading.power_watts,
            after.reading.power_watts,
        )
        if first is None or second is None or span_s > _LONGEST_GAP_S:
            return None
        joules += span_s * (first + second) / 2
    return joules


def _agree(counted: float | None, integrated: float | None) -> bool:
    if not counted or integrated is None:
        return False
    return abs(counted - integrated) <= MOST_DISAGREEMENT * counted


def _known(looks: Sequence[DeviceLook], of: Callable[[Reading], float | None]) -> list[float]:
    return [value for look in looks if (value := of(look.reading)) is not None]


def _of(summary: Callable[[list[float]], float], values: list[float]) -> float | None:
    return summary(values) if values else None


def _shares(reasons: Sequence[tuple[str, ...]]) -> tuple[tuple[str, float], ...]:
    names = sorted({name for found in reasons for name in found})
    return tuple((name, fmean(name in found for found in reasons)) for name in names)


def _new_errors(looks: Sequence[DeviceLook]) -> int | None:
    """Counts errors of both kinds since the first look; None if a count is missing or was reset."""
    totals = [_errors(look.reading) for look in looks]
    if len(totals) < 2 or totals[0] is None or totals[-1] is None or totals[-1] < totals[0]:
        return None
    return totals[-1] - totals[0]


def _errors(reading: Reading) -> int | None:
    if reading.ecc_corrected is None or reading.ecc_uncorrected is None:
        return None
    return reading.ecc_corrected + reading.ecc_uncorrected
