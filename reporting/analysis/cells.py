"""This module groups rows into cells: repeats of the same configuration, summarised together.

Numbers are over the runs that are ok. A run with several attempts counts once, with its newest attempt.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import TypeVar

from reporting.analysis.findings import LARGEST, CellSummary, Estimate, Subject
from reporting.analysis.statistics import estimate, is_unstable, num_severe_outliers
from reporting.results.formulas import weak_scaling_efficiency
from reporting.results.rows import Row
from reporting.results.settings import settings_text

UNKNOWN = "unknown"
_GB = 1e9

T = TypeVar("T")


def summarise(rows: Sequence[Row]) -> tuple[CellSummary, ...]:
    """Returns cells ordered by group and subject. Rows without a cell id, such as imported ones, are grouped
    by group and subject.
    """
    found: dict[tuple[str | None, ...], list[Row]] = {}
    for row in newest_attempts(rows):
        found.setdefault(_key(row), []).append(row)
    cells = sorted((_cell(key, members) for key, members in found.items()), key=_order)
    return tuple(_with_scaling(cells))


def newest_attempts(rows: Iterable[Row]) -> list[Row]:
    """Returns one row per run, in the order in which runs first appear. Each row without a run id counts as
    its own run. The short runs of a search for the best setting are left out.
    """
    found: dict[object, Row] = {}
    for row in (row for row in rows if row.rung is None):
        key: object = (row.sweep, row.run_id) if row.run_id else len(found)
        if key not in found or found[key].attempt <= row.attempt:
            found[key] = row
    return list(found.values())


def subject_of(row: Row) -> Subject:
    """Returns what a row measured. Unknown values are ``unknown`` or 0, so that rows with the same gaps are
    compared with each other.
    """
    is_largest = row.micro_batch_asked == "max"
    micro_batch, grad_accum = row.per_device_batch or 0, row.grad_accum or 0
    return Subject(
        model=row.model or UNKNOWN,
        strategy=row.strategy or UNKNOWN,
        world_size=row.world_size or 0,
        seq_len=row.seq_len or 0,
        micro_batch=LARGEST if is_largest else micro_batch,
        grad_accum=micro_batch * grad_accum if is_largest else grad_accum,
        precision=row.precision or UNKNOWN,
        settings=settings_text(row),
    )


def group_of(row: Row) -> str:
    return row.group or UNKNOWN


def measured(rows: Iterable[Row]) -> list[Row]:
    """Returns the runs that are ok and have a throughput."""
    return [row for row in rows if row.status == "ok" and row.tokens_per_sec and row.tokens_per_sec > 0]


def status_of(rows: Sequence[Row]) -> str:
    """Returns ``ok`` if any run is ok, else the most common failure; among equally common ones, the first."""
    if any(row.status == "ok" for row in rows):
        return "ok"
    return Counter(row.status for row in rows).most_common(1)[0][0]


def _key(row: Row) -> tuple[str | None, ...]:
    if row.cell_id:
        return (row.sweep, row.cell_id)
    return (None, f"{group_of(row)}: {subject_of(row)}")


def _order(cell: CellSummary) -> tuple[str, Subject, str, str]:
    return (cell.group, cell.subject, cell.sweep, cell.cell_id)


def _cell(key: tuple[str | None, ...], rows: Sequence[Row]) -> CellSummary:
    first, ok, status = rows[0], [row for row in rows if row.status == "ok"], status_of(rows)
    num_outliers = sum(num_severe_outliers(row.raw_step_times) for row in ok)
    tokens_per_sec = _estimate(row.tokens_per_sec for row in ok)
    return CellSummary(
        cell_id=key[-1] or UNKNOWN,
        sweep=next(_known(row.sweep for row in rows), UNKNOWN),
        group=group_of(first),
        vendor=next(_known(row.vendor for row in rows), None),
        subject=subject_of(first),
        status=status,
        num_failed=len(rows) - len(ok),
        flags=tuple(_flags(rows, ok, num_outliers)),
        tokens_per_sec=tokens_per_sec,
        tokens_per_sec_per_device=_estimate(map(_per_device, ok)),
        step_time_sec=_step_time(ok, tokens_per_sec),
        peak_vram_gb=max(_known(row.peak_vram_gb for row in ok), default=None),
        device_memory_gb=_scaled(max(_known(row.device_memory_bytes for row in rows), default=None)),
        predicted_gb=_scaled(max(_known(row.predicted_bytes for row in rows), default=None)),
        h2d_gbps_per_gpu=_median(row.h2d_gbps_per_gpu for row in ok),
        scaling_efficiency_pct=None,
        scaling_baseline_world_size=None,
        mfu=_median(row.mfu for row in ok),
        hfu=_median(row.hfu for row in ok),
        joules_per_token=_median(row.energy_joules_per_token for row in ok),
        loss=_median(row.mean_loss for row in ok),
        num_severe_outliers=num_outliers,
        num_steps=sum(len(row.raw_step_times) or row.steps or 0 for row in ok),
        error_reason=next(_known(_reasons(rows, status)), None),
        rows=tuple(rows),
    )


def _step_time(rows: Sequence[Row], tokens_per_sec: Estimate | None) -> Estimate | None:
    """Follows from the throughput, so that both together give the tokens of a step. Other tools' rows have
    what they say.
    """
    sizes = {row.tokens_per_step for row in rows}
    tokens = sizes.pop() if len(sizes) == 1 else None
    if tokens is None or tokens_per_sec is None or any(row.imported for row in rows):
        return _estimate(row.mean_step_time_sec for row in rows)
    low, high = tokens_per_sec.high, tokens_per_sec.low
    return replace(
        tokens_per_sec,
        median=tokens / tokens_per_sec.median,
        low=tokens / low if low else None,
        high=tokens / high if high else None,
    )


def _flags(rows: Sequence[Row], ok: Sequence[Row], num_outliers: int) -> Iterator[str]:
    num_steps = sum(len(row.raw_step_times) for row in ok)
    run_medians = [seconds for seconds in _known(map(_median_step, ok)) if seconds > 0]
    if is_unstable(num_outliers=num_outliers, num_steps=num_steps, run_medians=run_medians):
        yield "unstable"
    if num_outliers:
        yield "outliers"
    if any(row.recompilations for row in ok):
        yield "recompiled"
    if 0 < len(ok) < len(rows):
        yield "some failed"
    if any(row.simulated for row in rows):
        yield "simulated"
    if any(row.imported for row in rows):
        yield "imported"


def _median_step(row: Row) -> float | None:
    return (
        median(row.raw_step_times) if row.raw_step_times else row.step_time_p50_sec or row.mean_step_time_sec
    )


def _reasons(rows: Sequence[Row], status: str) -> Iterator[str | None]:
    """Yields the reasons of the failure that the cell's status names, or of any failure if the status is
    ``ok``.
    """
    return (row.error_reason for row in rows if row.status != "ok" and status in ("ok", row.status))


def _per_device(row: Row) -> float | None:
    if row.tokens_per_sec is None or not row.world_size:
        return row.tokens_per_sec_per_device
    return row.tokens_per_sec / row.world_size


def _with_scaling(cells: Sequence[CellSummary]) -> Iterator[CellSummary]:
    """Adds efficiency, against the smallest world size that was measured in the same sweep with all else
    equal. Where a smaller one has no numbers, that baseline has no efficiency itself.
    """
    baselines: dict[tuple[object, ...], tuple[int, float]] = {}
    smallest: dict[tuple[object, ...], int] = {}
    # Cells are ordered by world size, so the first of each family is the smallest.
    for cell in cells:
        if cell.subject.world_size:
            smallest.setdefault(_family(cell), cell.subject.world_size)
        if cell.tokens_per_sec and cell.subject.world_size:
            baselines.setdefault(_family(cell), (cell.subject.world_size, cell.tokens_per_sec.median))
    for cell in cells:
        family = _family(cell)
        baseline = baselines.get(family)
        is_own = baseline is not None and baseline[0] == cell.subject.world_size
        if baseline is None or (is_own and smallest[family] < cell.subject.world_size):
            yield cell
        else:
            yield _against(cell, baseline)


def _family(cell: CellSummary) -> tuple[object, ...]:
    return (cell.sweep, cell.group, replace(cell.subject, world_size=0))


def _against(cell: CellSummary, baseline: tuple[int, float]) -> CellSummary:
    world_size, throughput = baseline
    if not cell.tokens_per_sec or not cell.subject.world_size:
        return cell
    efficiency = weak_scaling_efficiency(
        cell.tokens_per_sec.median, cell.subject.world_size, throughput, world_size
    )
    return replace(cell, scaling_efficiency_pct=100 * efficiency, scaling_baseline_world_size=world_size)


def _estimate(values: Iterable[float | None]) -> Estimate | None:
    return estimate([value for value in values if value is not None and value > 0])


def _median(values: Iterable[float | None]) -> float | None:
    known = list(_known(values))
    return median(known) if known else None


def _scaled(num_bytes: int | None) -> float | None:
    return None if num_bytes is None else num_bytes / _GB


def _known(values: Iterable[T | None]) -> Iterator[T]:
    return (value for value in values if value is not None)
