"""This section shows where the time of long runs went, what each restart cost, and all alarms. Pure."""

from reporting.analysis.findings import Findings
from reporting.analysis.formatting import count, duration, fraction, short
from reporting.analysis.time_lost import alarms_of, closing, costs, in_order
from reporting.long_runs.ledger import PHASES
from reporting.long_runs.recoveries import PHASES as OF_A_RESTART
from reporting.long_runs.recoveries import Recovery
from reporting.long_runs.summary import LongRun
from reporting.page.markup import NOTHING, Markup, element, together
from reporting.page.pieces import Table, TableCell, TableColumn, left_out, numeric, section, table
from reporting.page.sections.trainings import MOST_RUNS

_MOST_ROWS = 50
_ELSEWHERE = "findings.json has all"


def goodput(findings: Findings) -> Markup:
    told = [_run(run, index) for index, run in enumerate(findings.runs[:MOST_RUNS])]
    items = [one for one in told if one.text]
    return section("goodput", "Goodput", *items) if items else NOTHING


def _run(run: LongRun, index: int) -> Markup:
    parts = [part for part in (_ledger(run, index), _restarts(run, index), _alarms(run, index)) if part.text]
    if not parts:
        return NOTHING
    return element("article", element("h3", short(run.name)), *parts)


def _ledger(run: LongRun, index: int) -> Markup:
    spent = in_order(run.phases)
    whole = sum(seconds for _, seconds in spent)
    if not whole:
        return NOTHING
    found = Table(
        label=f"ledger-{index}",
        caption=f"Goodput {fraction(run.goodput)}. {closing(run)}",
        columns=(
            TableColumn(title="Time went into"),
            TableColumn(title="Time", is_number=True),
            TableColumn(title="Share", is_number=True),
            TableColumn(title="Which is"),
        ),
        rows=[
            [
                TableCell(short(name, 40)),
                numeric(duration(seconds), seconds),
                numeric(fraction(seconds / whole), seconds),
                TableCell(PHASES.get(name, "")),
            ]
            for name, seconds in spent
        ],
    )
    return table(found)


def _restarts(run: LongRun, index: int) -> Markup:
    shown = run.recoveries[:_MOST_ROWS]
    if not shown:
        return NOTHING
    phases = (
        TableColumn(title=name.capitalize(), is_number=True, hint=PHASES[name]) for name in OF_A_RESTART
    )
    found = Table(
        label=f"restarts-{index}",
        caption=costs(run),
        columns=(
            TableColumn(title="After", is_number=True),
            TableColumn(title="Ended by"),
            *phases,
            TableColumn(title="Together", is_number=True),
            TableColumn(title="Steps again", is_number=True),
            TableColumn(
                title="Device time", is_number=True, hint="times the devices that stood still for it"
            ),
            TableColumn(title="What happened"),
        ),
        rows=[_restart(one) for one in shown],
    )
    return together((table(found), left_out(len(shown), len(run.recoveries), "restart", _ELSEWHERE)))


def _restart(one: Recovery) -> list[TableCell]:
    spent = [one.phases.get(name) for name in OF_A_RESTART]
    return [
        numeric(duration(one.at_s), one.at_s),
        TableCell(short(one.cause, 40)),
        *(numeric(duration(seconds), seconds) for seconds in spent),
        numeric(duration(one.seconds), one.seconds),
        numeric(count(one.num_redone), one.num_redone),
        numeric(duration(one.device_s), one.device_s),
        TableCell(short(one.text, 200)),
    ]


def _alarms(run: LongRun, index: int) -> Markup:
    alarms = alarms_of(run)
    shown = alarms[:_MOST_ROWS]
    if not shown:
        return NOTHING
    found = Table(
        label=f"alarms-{index}",
        caption="Alarms, by the time since the run's first start",
        columns=(TableColumn(title="After", is_number=True), TableColumn(title="What was not as usual")),
        rows=[[numeric(duration(at_s), at_s), TableCell(short(text, 200))] for at_s, text in shown],
    )
    return together((table(found), left_out(len(shown), len(alarms), "alarm", _ELSEWHERE)))
