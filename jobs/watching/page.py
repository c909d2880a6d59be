"""The page: a frame without any figure, and the figures as a piece of HTML that the frame puts in.

Its policy forbids all that is not this server's, and everything inline. So no element here has a style.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from cluster.inventory import LOCAL_GROUP
from jobs.watching.runs import RunRecords
from jobs.watching.snapshot import Snapshot, problems
from jobs.watching.sweeps import CellSeen, SweepRecords
from reporting.analysis.findings import Chart
from reporting.analysis.formatting import UNKNOWN, count, counted, duration, fraction, number, short
from reporting.analysis.time_lost import costs, in_order
from reporting.long_runs.ledger import PHASES
from reporting.long_runs.summary import LongRun
from reporting.page.markup import NOTHING, Markup, element, together, void
from reporting.page.pieces import (
    Table,
    TableCell,
    TableColumn,
    bullets,
    chip,
    definitions,
    left_out,
    note,
    numeric,
    origin_chips,
    section,
    table,
)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TONES = {
    "training": "good", "measuring": "good", "finished": "good", "starting": "open", "waiting": "open",
    "silent": "bad", "failed": "bad", "given up": "bad", "interrupted": "bad",
}  # fmt: skip
_FREQUENT = ("save", "skipped save")
_MOST_INCIDENTS = 30
_MOST_RESTARTS = 20
_MOST_CELLS = 500
_HERE = Path(__file__).parent


def frame() -> str:
    """The same for everybody: what it shows later needs the token."""
    head = element(
        "head",
        void("meta", charset="utf-8"),
        void("meta", name="viewport", content="width=device-width, initial-scale=1"),
        void("meta", name="color-scheme", content="light dark"),
        element("title", "Longhaul watch"),
        void("link", rel="stylesheet", href="/style.css"),
        element("script", src="/watch.js", defer=True),
    )
    field = void("input", id="token", type="password", autocomplete="off", spellcheck="false")
    ask = element(
        "section",
        element("h2", "The token, please"),
        element("p", "The figures are for those who know the token of this page."),
        element(
            "form",
            element("label", "Token ", field, for_="token"),
            element("button", "Show"),
            id="token-form",
        ),
        id="ask",
        hidden=True,
    )
    body = element(
        "body",
        element("div", id="connection", role="status", hidden=True),
        element("div", element("main", ask), id="live"),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en').text}\n"


def style() -> str:
    from reporting.page import document

    report = Path(document.__file__).with_name("style.css").read_text(encoding="utf-8")
    return report + (_HERE / "watch.css").read_text(encoding="utf-8")


def script() -> str:
    return (_HERE / "watch.js").read_text(encoding="utf-8")


def live(snapshot: Snapshot) -> str:
    """The figures. Each child of ``main`` has an id, by which the frame knows it again."""
    status = snapshot.status.value or {}
    pieces = _of_run(snapshot, status) if snapshot.kind == "run" else _of_sweep(snapshot, status)
    told = [piece for piece in (_troubles(snapshot), *pieces) if piece.text]
    return element("div", _header(snapshot, status), element("main", *told), id="live").text


def _header(snapshot: Snapshot, status: Mapping[str, Any]) -> Markup:
    stage = snapshot.stage or "not started by a driver that tells of it"
    facts = [f"store {short(snapshot.store, 200)}", f"read {_ago(snapshot.status.age_s)}"]
    if (told_s := status.get("told_age_s")) is not None:
        facts.append(f"its driver told of it {_ago(told_s)}")
    return element(
        "header",
        element("p", f"Longhaul watch: a {snapshot.kind}", class_="eyebrow"),
        element("h1", short(snapshot.name, 200), " ", chip(stage, _TONES.get(stage, "plain"))),
        element("ul", *(element("li", fact) for fact in facts), class_="facts"),
        id="head",
    )


def _troubles(snapshot: Snapshot) -> Markup:
    found = problems(snapshot)
    if not found and snapshot.status.value is None:
        found = ["The store has not answered yet."]
    return element("section", bullets(found), id="troubles", role="alert") if found else NOTHING


def _of_run(snapshot: Snapshot, status: Mapping[str, Any]) -> tuple[Markup, ...]:
    records = snapshot.records.value
    if not isinstance(records, RunRecords) or records.run is None:
        return (_now(status, None), _waiting(snapshot))
    run = records.run
    return (
        _now(status, run),
        _charts(records.charts),
        _time(run, snapshot.records.age_s),
        _restarts(run),
        _incidents(run),
    )


def _now(status: Mapping[str, Any], run: LongRun | None) -> Markup:
    if not status:
        return NOTHING
    is_training = status.get("stage") == "training"
    speed = status.get("tokens_per_s") if is_training else None
    facts: list[tuple[str, str]] = [
        ("Step", _of(status.get("step"), status.get("num_steps"))),
        ("Loss", number(status.get("loss"), 4)),
        ("Tokens/s", number(speed)),
        ("Waiting for data", fraction(status.get("data_wait_share") if is_training else None)),
        ("Done in", _span(status.get("eta_s") if is_training else None)),
        ("Newest checkpoint", _checkpoint(status)),
        ("Steps at risk", count(status.get("steps_at_risk"))),
        ("Attempts", count(status.get("attempts"))),
    ]
    if (group := status.get("group")) not in (None, LOCAL_GROUP):
        facts.append(("Group", short(str(group))))
    if run is not None:
        restarts, goodput = count(len(run.recoveries)), fraction(run.goodput)
        facts += [("Restarts", restarts), ("Goodput", goodput), ("Power", _watts(run))]
    if (retry_s := status.get("retry_in_s")) is not None:
        facts.append(("Next attempt in", _span(retry_s)))
    why = status.get("why")
    return section(
        "now",
        "Now",
        element("p", short(why, 500), class_="label") if isinstance(why, str) and why else NOTHING,
        element("article", definitions(facts)),
        origin_chips(["simulated"] if run is not None and run.simulated else []),
    )


def _waiting(snapshot: Snapshot) -> Markup:
    if snapshot.records.age_s is None and not snapshot.records.problem:
        return section("records", "Recorded", note("What was recorded is being read."))
    return section("records", "Recorded", note("Nothing was recorded yet."))


def _charts(charts: Iterable[Chart]) -> Markup:
    shown = [_figure(chart) for chart in charts]
    return section("charts", "Charts", element("div", *shown, class_="figures")) if shown else NOTHING


def chart_key(chart: Chart) -> str:
    """Changes with the picture, so that a page fetches each once."""
    from hashlib import sha256

    return sha256(chart.svg.encode()).hexdigest()[:16]


def _figure(chart: Chart) -> Markup:
    # `data-chart` is no style and no source: the script fetches the picture with the token.
    image = void("img", alt=chart.alt, data_chart=f"{chart.name}-{chart_key(chart)}")
    caption = together((element("strong", chart.title), " ", chart.caption))
    return element("figure", element("div", image, class_="paper"), element("figcaption", caption))


def _time(run: LongRun, age_s: float | None) -> Markup:
    spent = in_order(run.phases)
    whole = sum(seconds for _, seconds in spent)
    if not whole:
        return NOTHING
    return section(
        "time",
        "Where the time went",
        element("p", f"Goodput {fraction(run.goodput)} of {duration(run.wall_sec)}, recorded {_ago(age_s)}."),
        _bar([(name, seconds / whole) for name, seconds in spent]),
        element("ul", *(_legend(name, seconds, whole) for name, seconds in spent), class_="legend"),
    )


def _bar(shares: Iterable[tuple[str, float]]) -> Markup:
    rectangles, begin = [], 0.0
    for name, share in shares:
        width = 100 * share
        rectangles.append(
            element("rect", x=f"{begin:.3f}", y=0, width=f"{width:.3f}", height=10, class_=_phase(name))
        )
        begin += width
    picture = element(
        "svg", *rectangles, viewBox="0 0 100 10", preserveAspectRatio="none", aria_hidden="true", class_="bar"
    )
    return element("div", picture, class_="ledger")


def _legend(name: str, seconds: float, whole: float) -> Markup:
    swatch = element("i", class_=_phase(name), aria_hidden="true")
    share = element("small", f"{duration(seconds)}, {fraction(seconds / whole)}")
    return element("li", swatch, f" {short(name, 40)} ", share, title=PHASES.get(name))


def _phase(name: str) -> str:
    return f"phase-{name.replace(' ', '-') if name in PHASES else 'other'}"


def _restarts(run: LongRun) -> Markup:
    shown = run.recoveries[-_MOST_RESTARTS:][::-1]
    if not shown:
        return NOTHING
    found = Table(
        label="restart-table",
        caption=costs(run),
        columns=(
            TableColumn(title="After", is_number=True),
            TableColumn(title="Ended by"),
            TableColumn(title="Cost", is_number=True),
            TableColumn(title="Steps again", is_number=True),
            TableColumn(title="What happened"),
        ),
        rows=[
            [
                numeric(duration(one.at_s), one.at_s),
                TableCell(short(one.cause, 40)),
                numeric(duration(one.seconds), one.seconds),
                numeric(count(one.num_redone), one.num_redone),
                TableCell(short(one.text, 200)),
            ]
            for one in shown
        ],
        is_sortable=False,
    )
    rest = left_out(len(shown), len(run.recoveries), "restart", "the report has all")
    return section("restarts", "Restarts", table(found), rest)


def _incidents(run: LongRun) -> Markup:
    notable = [one for one in run.incidents if one[1] not in _FREQUENT] or list(run.incidents)
    shown = notable[-_MOST_INCIDENTS:][::-1]
    if not shown:
        return NOTHING
    found = Table(
        label="incident-table",
        caption="The newest first, by the time since the run's first start",
        columns=(
            TableColumn(title="After", is_number=True),
            TableColumn(title="Kind"),
            TableColumn(title="What happened"),
        ),
        rows=[
            [numeric(duration(at_s), at_s), TableCell(short(kind, 40)), TableCell(short(text, 200))]
            for at_s, kind, text in shown
        ],
        is_sortable=False,
    )
    rest = left_out(len(shown), len(notable), "incident", "the report has all")
    return section("incidents", "What happened", table(found), rest)


def _of_sweep(snapshot: Snapshot, status: Mapping[str, Any]) -> tuple[Markup, ...]:
    records = snapshot.records.value
    known = records if isinstance(records, SweepRecords) else None
    return (_sweep_now(status, known), _running(status), _cells(known) if known else _waiting(snapshot))


def _sweep_now(status: Mapping[str, Any], records: SweepRecords | None) -> Markup:
    facts = [
        ("Done by this start", _of(status.get("num_done"), status.get("num_runs"))),
        ("Failed of these", count(_whole(status.get("num_failed")))),
        ("Running", count(len(status.get("running", ())))),
        ("Elapsed", _span(status.get("elapsed_s"))),
        ("Remaining", _span(status.get("remaining_s") if status.get("stage") == "measuring" else None)),
    ]
    if records is not None:
        facts += [
            ("Results in the store", _of(records.num_results, records.num_runs)),
            ("Failed results", count(records.num_failed)),
        ]
    return section("now", "Now", element("article", definitions(facts)))


def _running(status: Mapping[str, Any]) -> Markup:
    running = [short(text, 200) for text in status.get("running", ())]
    return section("running", "Running", bullets(running)) if running else NOTHING


def _cells(records: SweepRecords) -> Markup:
    shown = records.cells[:_MOST_CELLS]
    if not shown:
        return section("cells", "Cells", note("No result is in the store yet."))
    found = Table(
        label="cell-table",
        caption="The results so far",
        columns=(
            TableColumn(title="Cell"),
            TableColumn(title="Runs", is_number=True),
            TableColumn(title="Tokens/s", is_number=True, hint="the median of its runs that are ok"),
            TableColumn(title="Status"),
            TableColumn(title="Why"),
        ),
        rows=[_cell(cell) for cell in shown],
        is_sortable=False,
    )
    return section(
        "cells", "Cells", table(found), left_out(len(shown), len(records.cells), "cell", "the report has all")
    )


def _cell(cell: CellSeen) -> list[TableCell]:
    num_runs = sum(cell.statuses.values())
    statuses = [
        chip(
            f"{short(status, 30)} {times}" if len(cell.statuses) > 1 else short(status, 30), _tone_of(status)
        )
        for status, times in sorted(cell.statuses.items())
    ]
    return [
        TableCell(together((short(cell.title, 200), origin_chips(["simulated"] if cell.simulated else [])))),
        numeric(count(num_runs), num_runs),
        numeric(number(cell.median), cell.median),
        TableCell(together(together((one, " ")) for one in statuses)),
        TableCell(short(cell.reason, 200) if cell.reason else ""),
    ]


def _tone_of(status: str) -> str:
    return "good" if status == "ok" else "bad"


def _checkpoint(status: Mapping[str, Any]) -> str:
    age_s = status.get("newest_durable_age_s")
    return "none yet" if age_s is None else _ago(age_s)


def _watts(run: LongRun) -> str:
    newest = [trace[-1][1] for trace in run.power_watts.values() if trace]
    devices = "" if len(newest) == 1 else f" of {counted(len(newest), 'device')}"
    return f"{number(sum(newest))} W{devices}" if newest else UNKNOWN


def _of(done: Any, whole: Any) -> str:
    done, whole = _whole(done), _whole(whole)
    return count(done) if not whole else f"{count(done)} of {count(whole)}"


def _whole(value: Any) -> int | None:
    """Statuses are JSON that anybody may have written; these are numbers, but perhaps no whole ones."""
    return int(value) if isinstance(value, int | float) else None


def _ago(seconds: float | None) -> str:
    if seconds is None:
        return "not yet"
    return f"{seconds:.0f} s ago" if seconds < 120 else f"{_span(seconds)} ago"


def _span(seconds: Any) -> str:
    if not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
        return UNKNOWN
    return str(timedelta(seconds=round(seconds)))
