"""This section recommends a strategy for each goal, and helps to read throughput and memory
together. Pure.
"""

from reporting.analysis.findings import Advice, CellSummary, Findings
from reporting.analysis.formatting import (
    estimate,
    gigabytes,
    is_known,
    middle,
    num_runs,
    number,
    percent,
    short,
)
from reporting.analysis.patterns import Pattern, patterns
from reporting.page.markup import NOTHING, Markup, element, together
from reporting.page.pieces import (
    Table,
    TableCell,
    TableColumn,
    bullets,
    chip,
    left_out,
    note,
    numeric,
    origin_chips,
    section,
    table,
    without_repetition,
)

_MOST_PER_GOAL = 12
_MOST_PATTERNS = 60
_MOST_ON_FRONT = 60
_GOALS = {
    "throughput": "Most throughput",
    "memory": "Least memory",
    "efficiency": "Best efficiency",
}
_TONES = {"Beaten": "bad", "Fastest and lightest": "good"}


def goals(findings: Findings) -> Markup:
    parts = [_cards(findings), _reading_help(findings), _front(findings)]
    if not any(part.text for part in parts):
        return NOTHING
    return section("goals", "Best strategy per goal", *parts)


def _cards(findings: Findings) -> Markup:
    """Says nothing where every card would say that no cell has numbers."""
    if all(one.cell_id is None for one in findings.advice):
        return NOTHING
    found = [_card(goal, [one for one in findings.advice if one.goal == goal], findings) for goal in _GOALS]
    return element("div", *found, class_="cards")


def _card(goal: str, found: list[Advice], findings: Findings) -> Markup:
    flags = {cell.cell_id: cell.flags for cell in findings.cells}
    items = [
        together(
            (
                element("span", f"{short(one.group, 60)} · {short(one.model, 60)}", class_="label"),
                origin_chips(flags.get(one.cell_id or "", ())),
                element("span", short(one.sentence, 400), class_="says"),
            )
        )
        for one in found[:_MOST_PER_GOAL]
    ]
    if not items:
        return NOTHING
    rest = left_out(len(items), len(found), "recommendation", "findings.json has all")
    return element("div", element("h3", _GOALS[goal]), bullets(items, "plain"), rest, class_="card")


def _reading_help(findings: Findings) -> Markup:
    found = patterns(findings.cells)
    if not found:
        return NOTHING
    shown = found[:_MOST_PATTERNS]
    columns = (
        TableColumn(title="Strategy"),
        TableColumn(title="Of"),
        TableColumn(title="Pattern"),
        TableColumn(title="Tokens/s", is_number=True),
        TableColumn(title="Memory", is_number=True),
        TableColumn(title="Free", is_number=True, hint="what the device has beyond that"),
        TableColumn(
            title="Scaling", is_number=True, hint="throughput per device kept from the fewest devices"
        ),
        TableColumn(title="What it means"),
    )
    caption = "Throughput and memory read together, per group and model, where everything else is the same"
    pattern_table = Table(
        label="pattern-table",
        caption=caption,
        columns=columns,
        rows=[_pattern(one) for one in shown],
        is_sortable=False,
    )
    return together(
        (
            element("h3", "What each strategy is good for"),
            table(pattern_table),
            note(
                "Read from medians: those within 2 % of each other count as equal. The verdicts are stricter."
            ),
            left_out(len(shown), len(found), "pattern", "findings.json has all"),
        )
    )


def _pattern(found: Pattern) -> list[TableCell]:
    cell, subject = found.cell, found.cell.subject
    speed = middle(cell.tokens_per_sec)
    setting = f"{short(subject.model, 60)} ×{subject.world_size} S{subject.seq_len} {_batch(cell)}"
    return [
        TableCell(short(subject.strategy, 60)),
        TableCell(together((_group(cell), element("span", element("small", setting), class_="of")))),
        TableCell(chip(found.name, _TONES.get(found.name, "calm"))),
        numeric(number(speed), speed, f"n {num_runs(cell.tokens_per_sec)}"),
        numeric(gigabytes(cell.peak_vram_gb), cell.peak_vram_gb),
        numeric(gigabytes(_free(cell)), _free(cell)),
        numeric(percent(cell.scaling_efficiency_pct), cell.scaling_efficiency_pct),
        TableCell(element("span", found.advice, class_="says")),
    ]


def _free(cell: CellSummary) -> float | None:
    if cell.device_memory_gb is None or cell.peak_vram_gb is None:
        return None
    return cell.device_memory_gb - cell.peak_vram_gb


def _front(findings: Findings) -> Markup:
    cells = [cell for cell in findings.cells if cell.cell_id in findings.pareto]
    if not any(is_known(cell.peak_vram_gb) for cell in cells):
        return NOTHING
    columns = (
        TableColumn(title="Group"),
        TableColumn(title="Model"),
        TableColumn(title="Strategy"),
        TableColumn(title="N", is_number=True, hint="devices"),
        TableColumn(title="S", is_number=True, hint="tokens per sequence"),
        TableColumn(title="Batch"),
        TableColumn(title="Tokens/s [95 %]", is_number=True),
        TableColumn(title="n", is_number=True, hint="runs"),
        TableColumn(title="Memory", is_number=True),
    )
    shown = cells[:_MOST_ON_FRONT]
    caption = "The Pareto front: of the same group, model, S and N, nothing is faster with less memory"
    front = Table(
        label="front-table", caption=caption, columns=columns, rows=[_on_front(cell) for cell in shown]
    )
    rest = left_out(len(shown), len(cells), "cell", "the others are marked in the chart")
    return together(
        (element("h3", "Throughput against memory"), table(without_repetition(front, (1, 3, 4, 5))), rest)
    )


def _on_front(cell: CellSummary) -> list[TableCell]:
    found = cell.tokens_per_sec
    return [
        TableCell(_group(cell)),
        TableCell(short(cell.subject.model, 60)),
        TableCell(short(cell.subject.strategy, 60)),
        numeric(str(cell.subject.world_size), cell.subject.world_size),
        numeric(str(cell.subject.seq_len), cell.subject.seq_len),
        TableCell(_batch(cell)),
        numeric(estimate(found), middle(found)),
        numeric(str(num_runs(found)), num_runs(found)),
        numeric(gigabytes(cell.peak_vram_gb), cell.peak_vram_gb),
    ]


def _group(cell: CellSummary) -> Markup:
    return together((short(cell.group, 60), origin_chips(cell.flags)))


def _batch(cell: CellSummary) -> str:
    subject = cell.subject
    sizes = f"{subject.short_batch} {short(subject.precision, 20)}"
    return f"{sizes} {subject.settings}".rstrip()
