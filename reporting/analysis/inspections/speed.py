"""These inspections ask whether speeds can be true, are steady, and scale. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from statistics import median

from reporting.analysis.findings import CellSummary
from reporting.analysis.formatting import counted
from reporting.analysis.inspections.seen import Seen, how_to_name_the_device, name_of, ok_rows
from reporting.long_runs.summary import LongRun
from reporting.results.rows import Row

MOST_SPREAD = 0.10
MOST_STRAGGLING = 0.05
_SUPERLINEAR_PCT = 110.0
_POOR_SCALING_PCT = 30.0
_CAPPED = 0.90
# Percent of a window's samples, for reasons that should never last on a healthy device.
_MOST_HINDERED_PCT = 5.0
_HINDRANCES = frozenset({"heat", "hardware", "power brake", "board limit", "reliability"})
# Drivers round power caps.
_LOWERED = 0.99
# Traces of fewer samples don't show which clock a device sustains.
_FEWEST_SAMPLES = 10


def throughput(cells: Sequence[CellSummary]) -> Iterator[Seen]:
    """Compares throughput with the device's peak, from the datasheet and, if there is one, as measured."""
    for cell in cells:
        if cell.tokens_per_sec is None:
            continue
        shares = dict(_shares_of_peaks(cell))
        if not shares:
            yield _without_peak(cell)
        for peak, share in shares.items():
            yield _of_peak(cell, peak, share)


def _shares_of_peaks(cell: CellSummary) -> Iterator[tuple[str, float]]:
    utilization = cell.hfu if cell.hfu is not None else cell.mfu
    if utilization is not None:
        yield "datasheet", utilization
    measured = [share for row in ok_rows(cell) if (share := _share_of_measured(row)) is not None]
    if measured:
        yield "measured", median(measured)


def _share_of_measured(row: Row) -> float | None:
    rate, flops, peak = row.tokens_per_sec_per_device, row.flops_per_token, row.measured_peak_flops
    if not (rate and flops and peak):
        return None
    return rate * (flops + (row.recomputed_flops_per_token or 0.0)) / peak


def _of_peak(cell: CellSummary, peak: str, share: float) -> Seen:
    if share <= 1:
        return Seen(level="ok", subject=name_of(cell), value=100 * share)
    return Seen(
        level="failed",
        subject=name_of(cell),
        found=f"{100 * share:.0f} % of the {peak} peak, which no device can do",
        advice="The device's name, the step's tokens or its time are wrong: don't use this number.",
        badness=share,
    )


def _without_peak(cell: CellSummary) -> Seen:
    devices = ", ".join(sorted({row.device_name for row in cell.rows if row.device_name})) or "unknown"
    return Seen(
        level="unknown",
        subject=cell.group,
        found=f"no peak FLOP/s is known for the device ({devices}) and what ran on it",
        advice=how_to_name_the_device(cell),
    )


def attention(cells: Sequence[CellSummary]) -> Iterator[Seen]:
    """Looks for cells whose attention held all scores although nobody had asked for that."""
    for cell in cells:
        kernels = {row.attention_kernel for row in ok_rows(cell) if row.attention_kernel}
        if "math" in kernels and all(row.attention != "math" for row in cell.rows):
            yield Seen(
                level="warning",
                subject=name_of(cell),
                found="attention ran by the slow kernel, which holds the scores of all heads",
                advice="Use bf16, or attention: flash or efficient, which refuse instead of being slow.",
            )
        elif kernels:
            yield Seen(level="ok", subject=name_of(cell))


def step_times(cells: Sequence[CellSummary]) -> Iterator[Seen]:
    for cell in cells:
        times = [time for row in ok_rows(cell) if (time := row.step_time_p50_sec or row.mean_step_time_sec)]
        if len(times) < 2:
            continue
        spread = (max(times) - min(times)) / median(times)
        if spread <= MOST_SPREAD:
            yield Seen(level="ok", subject=name_of(cell), value=100 * spread)
            continue
        yield Seen(
            level="warning",
            subject=name_of(cell),
            found=f"medians of {len(times)} runs differ by {100 * spread:.1f} % "
            f"({min(times):.4g} s to {max(times):.4g} s)",
            advice="Look at clocks, heat and what else ran there; repeat the cell.",
            badness=spread,
        )


def scaling(cells: Sequence[CellSummary]) -> Iterator[Seen]:
    for cell in cells:
        share, baseline = cell.scaling_efficiency_pct, cell.scaling_baseline_world_size
        if share is None or baseline is None or baseline == cell.subject.world_size:
            continue
        whose = "1 device's" if baseline == 1 else f"{baseline} devices'"
        found = f"{share:.1f} % of {whose} throughput per device"
        if share > _SUPERLINEAR_PCT:
            advice = (
                f"More than linear is suspicious: repeat the baseline of {counted(baseline, 'device')} first."
            )
        elif share < _POOR_SCALING_PCT:
            advice = "Look at the link between the devices and nodes, and at the collective library's log."
        else:
            yield Seen(level="ok", subject=name_of(cell), value=share)
            continue
        yield Seen(
            level="warning", subject=name_of(cell), found=found, advice=advice, badness=abs(share - 100)
        )


def stragglers(cells: Sequence[CellSummary]) -> Iterator[Seen]:
    for cell in cells:
        lags = [lag for row in ok_rows(cell) if (lag := _lag(row)) is not None]
        if not lags:
            continue
        if max(lags) <= MOST_STRAGGLING:
            yield Seen(level="ok", subject=name_of(cell), value=100 * max(lags))
            continue
        yield Seen(
            level="warning",
            subject=name_of(cell),
            found=f"the slowest rank took {100 * max(lags):.1f} % longer than the fastest",
            advice="per_rank in the run's result.json says which; look at that node's clocks and neighbours.",
            badness=max(lags),
        )


def _lag(row: Row) -> float | None:
    slowest, fastest = row.rank_total_sec_max, row.rank_total_sec_min
    return slowest / fastest - 1 if slowest and fastest and (row.world_size or 1) > 1 else None


def held_back(cells: Sequence[CellSummary]) -> Iterator[Seen]:
    """Warns of a power cap below the device's default, and of a clock held back by heat or hardware.

    At its own default power cap a device works as designed, so that is no reason to warn.
    """
    for cell in cells:
        rows = [row for row in ok_rows(cell) if not (row.throttled_pct is row.power_cap_watts is None)]
        if rows:
            yield _of_limits(cell, max(rows, key=_hindrance))


def _of_limits(cell: CellSummary, row: Row) -> Seen:
    hindered = {reason: pct for reason, pct in row.throttled if reason in _HINDRANCES}
    if max(hindered.values(), default=0.0) > _MOST_HINDERED_PCT:
        reasons = ", ".join(f"{reason} in {pct:.0f} %" for reason, pct in sorted(hindered.items()))
        return Seen(
            level="warning",
            subject=name_of(cell),
            found=f"a device's clock was held back by {reasons} of the looks",
            advice="Look at its cooling and its power supply, then repeat the cell.",
            badness=_hindrance(row),
        )
    cap, default = row.power_cap_watts, row.power_cap_default_watts
    if cap is not None and default is not None and cap < _LOWERED * default:
        return Seen(
            level="warning",
            subject=name_of(cell),
            found=f"a device's power was capped at {cap:,.0f} W, by default it is {default:,.0f} W",
            advice="Give it its default cap, or compare it with devices that are capped alike.",
            badness=_hindrance(row),
        )
    return Seen(level="ok", subject=name_of(cell), value=row.throttled_pct)


def _hindrance(row: Row) -> float:
    """Orders runs; the worst one has the highest value."""
    hindered = max((pct / 100 for reason, pct in row.throttled if reason in _HINDRANCES), default=0.0)
    cap, default = row.power_cap_watts, row.power_cap_default_watts
    lowered = 1 - cap / default if cap and default else 0.0
    return max(hindered if hindered > _MOST_HINDERED_PCT / 100 else 0.0, lowered, 0.0)


def clocks(runs: Sequence[LongRun]) -> Iterator[Seen]:
    """Warns if a device's clock is mostly below its own maximum: heat or a power cap holds it back."""
    for run in runs:
        for device, trace in sorted(_mhz(run).items()):
            usual, best = median(trace), max(trace)
            if usual >= _CAPPED * best:
                yield Seen(level="ok", subject=f"{run.name}: {device}", value=100 * usual / best)
                continue
            yield Seen(
                level="warning",
                subject=f"{run.name}: {device}",
                found=f"its clock was {usual:,.0f} MHz in the median, {best:,.0f} MHz at best",
                advice="Look at its power cap and temperature.",
                badness=1 - usual / best,
            )


def _mhz(run: LongRun) -> Mapping[str, list[float]]:
    traces = {
        device: [mhz for _, mhz in trace if isfinite(mhz) and mhz > 0]
        for device, trace in run.clock_mhz.items()
    }
    return {device: trace for device, trace in traces.items() if len(trace) >= _FEWEST_SAMPLES}
