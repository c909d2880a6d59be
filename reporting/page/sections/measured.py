"""This section has every cell as a row of one sortable table. Pure."""

from reporting.analysis.findings import LARGEST, CellSummary, Estimate, Findings
from reporting.analysis.formatting import (
    fraction,
    interval,
    is_known,
    middle,
    num_runs,
    number,
    percent,
    short,
)
from reporting.analysis.selection import cells_shown
from reporting.page.markup import NOTHING, Markup, element, together
from reporting.page.pieces import (
    Table,
    TableCell,
    TableColumn,
    chip,
    left_out,
    note,
    numeric,
    origin_chips,
    section,
    table,
    without_repetition,
    without_unknown,
)

MOST_CELLS = 5_000
_MOST_FLAGS = 8
_ORIGINS = ("simulated", "imported")
_COLUMNS = (
    TableColumn(title="Group"),
    TableColumn(title="Model"),
    TableColumn(title="Strategy"),
    TableColumn(title="N", is_number=True, hint="torch devices"),
    TableColumn(title="S", is_number=True, hint="tokens per sequence"),
    TableColumn(title="b", is_number=True, hint="sequences per device and micro-batch"),
    TableColumn(title="g", is_number=True, hint="micro-batches per step"),
    TableColumn(title="Precision", hint="and what is not usual of checkpointing and loss"),
    TableColumn(title="Status"),
    TableColumn(title="Tokens/s [95 %]", is_number=True, hint="median over runs"),
    TableColumn(title="CV", is_number=True, hint="coefficient of variation over runs"),
    TableColumn(title="n", is_number=True, hint="runs that count"),
    TableColumn(title="Step, s", is_number=True, hint="mean step time, median over runs"),
    TableColumn(title="Memory, GB", is_number=True, hint="peak allocated, of what the device has"),
    TableColumn(title="Scaling", is_number=True, hint="per device, against the smallest number of devices"),
    TableColumn(title="MFU", is_number=True, hint="model FLOP utilisation"),
    TableColumn(title="H2D, GB/s", is_number=True, hint="host to device, per device"),
    TableColumn(title="Flags"),
)
# These columns are left out if they would be empty, or say the same as MFU.
_HFU = TableColumn(title="HFU", is_number=True, hint="hardware FLOP utilisation: with what is computed again")
_ENERGY = TableColumn(title="J/token", is_number=True, hint="energy of all devices, median over runs")
_CAPTION = "Medians over runs; a cell of which no run went well has no numbers"
_SIZES = (1, *range(4, 8))
# What is not known of every device, from the spread on. They stand behind the sizes.
_MEASURED = (10, *range(12, len(_COLUMNS) - 1))


def cells(findings: Findings) -> Markup:
    if not findings.cells:
        return NOTHING
    shown = cells_shown(findings, MOST_CELLS)
    has_energy = any(is_known(cell.joules_per_token) for cell in shown)
    has_hfu = any(is_known(cell.hfu) and cell.hfu != cell.mfu for cell in shown)
    found = Table(
        label="cell-table",
        caption=_CAPTION,
        columns=(*_COLUMNS[:-1], *[_HFU] * has_hfu, *[_ENERGY] * has_energy, _COLUMNS[-1]),
        rows=[_row(cell, has_hfu=has_hfu, has_energy=has_energy) for cell in shown],
    )
    where = "best ones, failed and flagged ones first; all are in metrics.csv"
    return section(
        "cells",
        "All cells",
        left_out(len(shown), len(findings.cells), "cell", where),
        table(without_repetition(without_unknown(found, _MEASURED), _SIZES)),
        note(
            "N devices, S tokens per sequence, b sequences per device and micro-batch, g micro-batches per "
            "step, n runs. What is in brackets is a 95 % interval; “–” is not known."
        ),
    )


def _batch(cell: CellSummary) -> tuple[TableCell, TableCell]:
    """The micro-batch and the number of them, with what was found where the largest was asked for."""
    subject = cell.subject
    size, number_of_them = subject.batch
    if subject.micro_batch != LARGEST:
        return numeric(size, subject.micro_batch), numeric(number_of_them, subject.grad_accum)
    row = next((row for row in cell.rows if row.status == "ok"), None)
    found = (row.per_device_batch, row.grad_accum) if row else (None, None)
    return numeric(size, found[0], "" if row is None else str(found[0])), numeric(
        number_of_them if row is None else str(found[1]), found[1]
    )


def _row(cell: CellSummary, *, has_hfu: bool, has_energy: bool) -> list[TableCell]:
    subject, speed, step = cell.subject, cell.tokens_per_sec, cell.step_time_sec
    return [
        TableCell(together((short(cell.group, 60), origin_chips(cell.flags)))),
        TableCell(short(subject.model, 60)),
        TableCell(short(subject.strategy, 60)),
        *(numeric(f"{size}", size) for size in (subject.world_size, subject.seq_len)),
        *_batch(cell),
        TableCell(", ".join(filter(None, (short(subject.precision, 20), subject.settings)))),
        TableCell(_status(cell)),
        _estimate(speed),
        _percent(speed.cv if speed else None),
        numeric(str(num_runs(speed)), num_runs(speed)),
        numeric(number(middle(step)), middle(step)),
        TableCell(_memory(cell), cell.peak_vram_gb),
        numeric(percent(cell.scaling_efficiency_pct), cell.scaling_efficiency_pct),
        _percent(cell.mfu),
        numeric(number(cell.h2d_gbps_per_gpu), cell.h2d_gbps_per_gpu),
        *([_percent(cell.hfu)] if has_hfu else []),
        *([numeric(number(cell.joules_per_token), cell.joules_per_token)] if has_energy else []),
        TableCell(_flags(cell)),
    ]


def _status(cell: CellSummary) -> Markup:
    if cell.status != "ok":
        return chip(short(cell.status, 40), "bad")
    return chip(f"{cell.num_failed} failed", "open") if cell.num_failed else chip("ok", "quiet")


def _estimate(found: Estimate | None) -> TableCell:
    if found is None:
        return numeric(number(None), None)
    return numeric(number(found.median), found.median, interval(found.low, found.high))


def _percent(value: float | None) -> TableCell:
    return numeric(fraction(value), value)


def _memory(cell: CellSummary) -> Markup | str:
    used, there = cell.peak_vram_gb, cell.device_memory_gb
    if not is_known(used) or not is_known(there) or there <= 0:
        return number(used, 4)
    filled = f"width:{min(100.0, max(0.0, 100 * used / there)):.0f}%"
    meter = element("span", element("i", style=filled), class_="meter", aria_hidden="true")
    return together((number(used, 4), " ", element("small", f"of {number(there)}"), meter))


def _flags(cell: CellSummary) -> Markup:
    words = [_with_count(flag, cell) for flag in cell.flags[:_MOST_FLAGS] if flag not in _ORIGINS]
    return together(together((chip(short(word, 40), "open"), " ")) for word in words)


def _with_count(flag: str, cell: CellSummary) -> str:
    return f"{flag}: {cell.num_severe_outliers} of {cell.num_steps}" if flag == "outliers" else flag
