"""The summary that a person reads after a sweep: one line per cell, and one per node that keeps failing.

The numbers equal those of a report: the same code computes both from the same rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobs.commandline.text_table import TextColumn, as_text
from jobs.sweeps.grid import MAX, Cell
from jobs.sweeps.tables import NOTHING, cell_columns, number_column, or_nothing
from reporting.analysis.cells import summarise
from reporting.analysis.findings import CellSummary
from reporting.analysis.suspect_nodes import node_summaries
from reporting.results.formulas import percentile
from reporting.results.rows import Row


def score_table(cells: Sequence[Cell], rows: Iterable[Row]) -> str:
    """Formats one line per cell. Rows of other cells are ignored; a cell without rows is ``missing``."""
    wanted = {cell.cell_id for cell in cells}
    found = {cell.cell_id: cell for cell in summarise([row for row in rows if row.cell_id in wanted])}
    lines = [_Line(cell=cell, summary=found.get(cell.cell_id)) for cell in cells]
    is_all_on_host = all(line.device_bytes is None for line in lines)
    columns = [
        *cell_columns(
            cells,
            [any(row.simulated for row in line.rows) for line in lines],
            [line.batch for line in lines],
        ),
        number_column("runs", (str(len(line.rows)) for line in lines)),
        number_column("tokens/s", (or_nothing(line.tokens_per_sec, "{:,.0f}") for line in lines)),
        number_column("CV", (or_nothing(line.spread, "{:.1%}") for line in lines)),
        number_column("per device", (or_nothing(line.per_device, "{:,.0f}") for line in lines)),
        number_column("p50 ms", (line.step_ms(50) for line in lines)),
        number_column("p95 ms", (line.step_ms(95) for line in lines)),
        number_column("scaling", (line.scaling for line in lines)),
        number_column("MFU", (or_nothing(line.mfu, "{:.1%}") for line in lines)),
        number_column("host GB" if is_all_on_host else "GB", (line.memory(is_all_on_host) for line in lines)),
        TextColumn(title="status", texts=tuple(line.status for line in lines)),
    ]
    return as_text(columns)


def suspicions(rows: Iterable[Row]) -> list[str]:
    """One line for each node on which several runs failed through that node's own fault, the worst first."""
    return [
        f"node {node.node} is suspicious: {node.num_failed} of its {node.num_runs} runs failed, the last "
        f"{node.num_in_row} in a row; --exclude-node {node.node} leaves it out"
        for node in node_summaries(rows)
        if node.is_suspicious
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One cell. ``summary`` is None while the cell has no row."""

    cell: Cell
    summary: CellSummary | None

    @property
    def rows(self) -> tuple[Row, ...]:
        return self.summary.rows if self.summary else ()

    @property
    def batch(self) -> tuple[str, str]:
        """The micro-batch and the number of them: what was found, where the largest was asked for."""
        recipe = self.cell.recipe
        if not self.cell.question:
            return str(recipe.micro_batch), str(recipe.grad_accum)
        row = next(iter(self.ok), None)
        return (f"{MAX} ({row.per_device_batch})", str(row.grad_accum)) if row else (MAX, NOTHING)

    @property
    def ok(self) -> list[Row]:
        return [row for row in self.rows if row.status == "ok"]

    @property
    def tokens_per_sec(self) -> float | None:
        found = self.summary.tokens_per_sec if self.summary else None
        return found.median if found else None

    @property
    def per_device(self) -> float | None:
        total = self.tokens_per_sec
        return None if total is None else total / self.cell.recipe.world_size

    @property
    def spread(self) -> float | None:
        found = self.summary.tokens_per_sec if self.summary else None
        return found.cv if found else None

    @property
    def mfu(self) -> float | None:
        return self.summary.mfu if self.summary else None

    @property
    def device_bytes(self) -> int | None:
        """The highest peak on an accelerator, or None without one."""
        peaks = (row.peak_allocated_bytes_max for row in self.ok)
        return max((peak for peak in peaks if peak is not None), default=None)

    @property
    def scaling(self) -> str:
        if self.summary is None or self.summary.scaling_efficiency_pct is None:
            return NOTHING
        percent, baseline = self.summary.scaling_efficiency_pct, self.summary.scaling_baseline_world_size
        return f"{percent:.0f}% of {baseline}"

    @property
    def status(self) -> str:
        """``ok``, ``missing``, or what went wrong and how often."""
        wrong = [row.status for row in self.rows if row.status != "ok"]
        if not wrong:
            return "ok" if self.rows else "missing"
        if len(set(wrong)) == 1 and len(wrong) == len(self.rows):
            return wrong[0]
        return ", ".join(f"{wrong.count(status)} {status}" for status in dict.fromkeys(wrong))

    def step_ms(self, percent: int) -> str:
        times = [seconds for row in self.ok for seconds in row.raw_step_times]
        return or_nothing(percentile(times, percent) if times else None, "{:.1f}", scale=1e3)

    def memory(self, is_all_on_host: bool) -> str:
        """The highest peak in GB. If a table has both kinds, host memory is marked ``host``."""
        if self.device_bytes is not None:
            return or_nothing(self.device_bytes, "{:.2f}", scale=1e-9)
        growth = (row.host_peak_growth_bytes_max for row in self.ok)
        pattern = "{:.2f}" if is_all_on_host else "host {:.2f}"
        most = max((found for found in growth if found is not None), default=None)
        return or_nothing(most, pattern, scale=1e-9)
