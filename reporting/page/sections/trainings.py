"""This section shows long runs: how much of their time was training, where the rest went, and what happened.
Pure.
"""

from collections.abc import Iterable, Mapping

from reporting.analysis.costs.stretches import stretch_cells, stretch_heads
from reporting.analysis.findings import Findings, Prices
from reporting.analysis.formatting import count, duration, fraction, is_known, number, short
from reporting.analysis.read_data import HEADS, MOST_SOURCES, NUMBERS, cells, what_is_unread
from reporting.analysis.selection import most_relevant, simulated_runs
from reporting.analysis.time_lost import in_order
from reporting.long_runs.ledger import PHASES
from reporting.long_runs.summary import LongRun
from reporting.page.markup import NOTHING, Markup, element, together
from reporting.page.pieces import (
    Table,
    TableCell,
    TableColumn,
    definitions,
    left_out,
    note,
    numeric,
    origin_chips,
    section,
    table,
    without_unknown,
)

MOST_RUNS = 10
_MOST_INCIDENTS = 30
_MOST_STRETCHES = 30


def trainings(findings: Findings) -> Markup:
    if not findings.runs:
        return NOTHING
    shown = findings.runs[:MOST_RUNS]
    simulated = simulated_runs(findings.rows, findings.runs)
    prices = findings.money.prices if findings.money else None
    items = [
        _run(run, index, ["simulated"] if run.name in simulated else [], prices)
        for index, run in enumerate(shown)
    ]
    rest = left_out(len(shown), len(findings.runs), "run", "`longhaul status` shows each")
    return section("runs", "Long runs", *items, rest)


def _run(run: LongRun, index: int, flags: Iterable[str], prices: Prices | None) -> Markup:
    where = f"{short(run.model, 60)} {short(run.strategy, 60)} ×{run.world_size} on {short(run.group, 60)}"
    facts = (
        ("Steps that count", count(run.num_steps)),
        ("Done again", count(run.num_superseded)),
        ("Tokens/s", number(run.tokens_per_sec)),
        ("Wall time", duration(run.wall_sec)),
        ("Goodput", fraction(run.goodput)),
        ("Last loss", number(_last_known(run), 4)),
        *((("Attention kernel", short(run.attention_kernel)),) if run.attention_kernel else ()),
        *((f"Loss of {short(name)}", number(loss, 4)) for name, loss in run.source_losses.items()),
    )
    said = element("p", where, origin_chips(flags), class_="label")
    parts = (
        said,
        definitions(facts),
        _stretches(run, index, prices),
        _data(run, index),
        _ledger(run.phases),
        _incidents(run, index),
    )
    return element("article", element("h3", short(run.name)), *parts)


def _last_known(run: LongRun) -> float | None:
    return next((loss for loss in reversed(run.losses) if is_known(loss)), None)


def _stretches(run: LongRun, index: int, prices: Prices | None) -> Markup:
    if len(run.stretches) < 2:
        return NOTHING
    shown = run.stretches[:_MOST_STRETCHES]
    heads = stretch_heads(prices)
    found = Table(
        label=f"stretches-{index}",
        caption="Where it trained, in turn; time and cost are of the devices that it held",
        columns=[TableColumn(title=head[0].upper() + head[1:], is_number=head != "group") for head in heads],
        rows=[[TableCell(text) for text in stretch_cells(stretch, prices)] for stretch in shown],
        is_sortable=False,
    )
    rest = left_out(len(shown), len(run.stretches), "turn", "the parts of each attempt say where it ran")
    return together((table(found), rest))


def _data(run: LongRun, index: int) -> Markup:
    if not run.data:
        return NOTHING
    found = Table(
        label=f"data-{index}",
        caption="Data that were trained on; cut and copies are shares of the documents",
        columns=[TableColumn(title=head.capitalize(), is_number=head in NUMBERS) for head in HEADS],
        rows=[[TableCell(text) for text in cells(source)] for source in run.data[:MOST_SOURCES]],
        is_sortable=False,
    )
    unread = map(note, what_is_unread(run.data[:MOST_SOURCES]))
    rest = left_out(len(run.data[:MOST_SOURCES]), len(run.data), "source", "the run's data.json has all")
    return together((table(without_unknown(found, range(1, len(HEADS)))), *unread, rest))


def _ledger(phases: Mapping[str, float]) -> Markup:
    """Shows where the wall time went, as parts of one bar with a legend in seconds."""
    spent = in_order(phases)
    total = sum(seconds for _, seconds in spent)
    if not total:
        return NOTHING
    bar = [
        element("i", class_=f"phase-{_tone(name)}", style=f"width:{100 * seconds / total:.2f}%")
        for name, seconds in spent
    ]
    legend = [_legend(name, seconds, total) for name, seconds in spent]
    whole = element("div", *bar, class_="ledger", aria_hidden="true")
    return together((whole, element("ul", *legend, class_="legend")))


def _legend(name: str, seconds: float, total: float) -> Markup:
    swatch = element("i", class_=f"phase-{_tone(name)}", aria_hidden="true")
    share = element("small", f"{duration(seconds)}, {fraction(seconds / total)}")
    return element("li", swatch, f" {short(name, 40)} ", share, title=PHASES.get(name))


def _tone(name: str) -> str:
    return name.replace(" ", "-") if name in PHASES else "other"


def _incidents(run: LongRun, index: int) -> Markup:
    # Saves can be hundreds, and would push out the incidents in which something went wrong.
    shown = most_relevant(
        run.incidents, _MOST_INCIDENTS, lambda incident: incident[1] in ("save", "skipped save")
    )
    if not shown:
        return NOTHING
    found = Table(
        label=f"incidents-{index}",
        caption="Incidents, by the time since the run's first start",
        columns=(
            TableColumn(title="After", is_number=True),
            TableColumn(title="Kind"),
            TableColumn(title="What happened"),
        ),
        rows=[
            [numeric(duration(at), at), TableCell(short(kind, 40)), TableCell(short(text, 200))]
            for at, kind, text in shown
        ],
    )
    rest = left_out(len(shown), len(run.incidents), "incident", "the run's log has all")
    return together((table(found), rest))
