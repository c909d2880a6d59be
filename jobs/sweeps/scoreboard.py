"""Rows -> what a person reads at the end: one line per cell, over its repeats,
and one for each node that keeps failing. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from cluster.node_scores import Outcome
from cluster.node_scores import scores as node_scores
from jobs.sweeps.grid import Cell
from reporting.results.formulas import coefficient_of_variation, percentile, weak_scaling_efficiency
from reporting.results.records import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One cell. Numbers are medians over its ok runs; None where nothing was measured.

    ``spread`` is the coefficient of variation of tokens/s over the repeats. ``scaling`` is against
    ``baseline``, the smallest world size measured for the same cell otherwise.
    """

    cell: Cell
    statuses: tuple[str, ...]
    tokens_per_sec: float | None
    spread: float | None
    step_p50_s: float | None
    step_p95_s: float | None
    scaling: float | None
    baseline: int | None
    mfu: float | None
    memory_bytes: int | None
    on_host: bool
    is_simulated: bool

    @property
    def tokens_per_sec_per_device(self) -> float | None:
        return None if self.tokens_per_sec is None else self.tokens_per_sec / self.cell.recipe.world_size

    @property
    def status(self) -> str:
        """``ok``, or what went wrong and how often."""
        wrong = [status for status in self.statuses if status != "ok"]
        if not wrong:
            return "ok" if self.statuses else "missing"
        counted = ", ".join(f"{wrong.count(status)} {status}" for status in dict.fromkeys(wrong))
        return wrong[0] if len(wrong) == len(self.statuses) == wrong.count(wrong[0]) else counted


def scores(cells: Sequence[Cell], records: Iterable[RunRecord]) -> list[Score]:
    by_cell: dict[str, list[RunRecord]] = {cell.cell_id: [] for cell in cells}
    for record in records:
        if record.cell_id in by_cell:
            by_cell[record.cell_id].append(record)
    throughput = {cell_id: _throughput(found) for cell_id, found in by_cell.items()}
    baselines = _baselines(cells, throughput)
    return [_score(cell, by_cell[cell.cell_id], baselines.get(_family(cell))) for cell in cells]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Baseline:
    world_size: int
    tokens_per_sec: float


def _score(cell: Cell, records: list[RunRecord], baseline: _Baseline | None) -> Score:
    ok = [record for record in records if record.status == "ok"]
    throughput = _throughput(records)
    times = [seconds for record in ok for seconds in record.raw_step_times]
    memory, on_host = _memory(ok)
    return Score(
        cell=cell,
        statuses=tuple(record.status for record in records),
        tokens_per_sec=throughput,
        spread=coefficient_of_variation([record.tokens_per_sec or 0.0 for record in ok]),
        step_p50_s=percentile(times, 50) if times else None,
        step_p95_s=percentile(times, 95) if times else None,
        scaling=_scaling(cell, throughput, baseline),
        baseline=baseline.world_size if baseline else None,
        mfu=_median([record.mfu for record in ok]),
        memory_bytes=memory,
        on_host=on_host,
        is_simulated=any(record.simulated for record in records),
    )


def _throughput(records: list[RunRecord]) -> float | None:
    return _median([record.tokens_per_sec for record in records])


def _family(cell: Cell) -> tuple[object, ...]:
    """What two cells share that differ in world size alone."""
    recipe = cell.recipe
    return (
        cell.group,
        recipe.model.name,
        recipe.strategy,
        recipe.seq_len,
        recipe.micro_batch,
        recipe.precision,
    )


def _baselines(
    cells: Sequence[Cell], throughput: dict[str, float | None]
) -> dict[tuple[object, ...], _Baseline]:
    found: dict[tuple[object, ...], _Baseline] = {}
    for cell in sorted(cells, key=lambda cell: -cell.recipe.world_size):
        tokens_per_sec = throughput[cell.cell_id]
        if tokens_per_sec is not None:
            found[_family(cell)] = _Baseline(world_size=cell.recipe.world_size, tokens_per_sec=tokens_per_sec)
    return found


def _scaling(cell: Cell, throughput: float | None, baseline: _Baseline | None) -> float | None:
    if throughput is None or baseline is None:
        return None
    return weak_scaling_efficiency(
        throughput, cell.recipe.world_size, baseline.tokens_per_sec, baseline.world_size
    )


def _memory(ok: list[RunRecord]) -> tuple[int | None, bool]:
    """The device's peak; where there is no accelerator, the host's growth, and True to say so."""
    sections = [record.memory_metrics for record in ok if record.memory_metrics]
    on_device = [section.peak_allocated_bytes_max for section in sections]
    if known := [peak for peak in on_device if peak is not None]:
        return max(known), False
    return max((section.host_peak_growth_bytes_max for section in sections), default=None), True


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def node_history(records: Iterable[RunRecord]) -> list[Outcome]:
    """In the order in which the runs ended, one for each node of each run whose nodes are known."""
    return [
        Outcome(node=node, run=record.run_id, cell=record.cell_id, status=record.status)
        for record in sorted(records, key=lambda record: (record.finished_at, record.run_id))
        for node in _nodes(record)
    ]


def suspicions(records: Iterable[RunRecord]) -> list[str]:
    """A line for each node that failed several runs by itself, the worst first."""
    return [
        f"node {score.node} is suspicious: {score.num_failed} of its {score.num_runs} runs failed, the last "
        f"{score.num_in_row} in a row; --exclude-node {score.node} leaves it out"
        for score in node_scores(node_history(records))
        if score.is_suspicious
    ]


def _nodes(record: RunRecord) -> tuple[str, ...]:
    """Of a failed run those of the ranks that failed."""
    found = record.per_rank.node if record.per_rank else record.error.nodes if record.error else ()
    return tuple(dict.fromkeys(found))
