"""Sums up the telemetry of all ranks of one run: energy and limits of all devices. Pure."""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median

from cluster.telemetry.summary import Watched
from jobs.training.task.measurement import RankSummary
from reporting.results.records import PowerRecord


def power_of(ranks: Sequence[RankSummary], num_tokens: int) -> PowerRecord | None:
    """The power record of all ``ranks``, or None if no device reported telemetry.

    ``num_tokens`` counts the tokens of all ranks together.
    """
    told = [rank.watched for rank in ranks]
    if all(one == Watched() for one in told):
        return None
    energy = _total(one.energy_joules for one in told)
    return PowerRecord(
        energy_joules=energy,
        energy_integrated_joules=_total(one.integrated_joules for one in told),
        energy_joules_per_token=None if energy is None else energy / num_tokens,
        power_watts_mean=_of(fmean, (one.power_watts_mean for one in told)),
        power_cap_watts=_of(min, (one.power_cap_watts for one in told)),
        power_cap_default_watts=_of(max, (one.power_cap_default_watts for one in told)),
        clock_mhz_min=_of(min, (one.clock_mhz_min for one in told)),
        clock_mhz_median=_of(median, (one.clock_mhz_median for one in told)),
        memory_clock_mhz_median=_of(median, (one.memory_clock_mhz_median for one in told)),
        temperature_c_max=_of(max, (one.temperature_c_max for one in told)),
        throttled_pct=_of(max, (one.throttled_pct for one in told)),
        throttled=_worst(told),
        ecc_errors=_errors(told),
    )


def _total(values: Iterable[float | None]) -> float | None:
    """The sum over all devices, or None if a device gives no value: a partial energy would mislead."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if len(known) == len(found) else None


def _of(summary: Callable[[list[float]], float], values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return summary(known) if known else None


def _worst(told: Sequence[Watched]) -> dict[str, float]:
    """The percentage of samples per throttle reason, on the device where that reason was most frequent."""
    found: dict[str, float] = {}
    for reason, share in sorted(pair for one in told for pair in one.throttled or ()):
        found[reason] = 100 * share
    return found


def _errors(told: Sequence[Watched]) -> int | None:
    known = [one.ecc_errors for one in told if one.ecc_errors is not None]
    return sum(known) if known else None
