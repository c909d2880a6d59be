"""This section shows where the time of profiled steps went, cell by cell. Pure."""

from reporting.analysis.findings import Findings
from reporting.analysis.formatting import duration, fraction, number, short, times
from reporting.analysis.profiles import ABOUT, CellProfile, ProfiledOperation, profiles_of
from reporting.page.markup import NOTHING, Markup, element, together
from reporting.page.pieces import (
    Table,
    TableCell,
    TableColumn,
    details,
    left_out,
    note,
    numeric,
    origin_chips,
    section,
    table,
    without_unknown,
)

_MOST_PROFILES = 50
_MOST_NAME = 100
_COLUMNS = (
    TableColumn(title="Group"),
    TableColumn(title="Cell"),
    TableColumn(title="Basis", hint="what was looked at: a device's kernels, or a CPU's operators"),
    TableColumn(title="Step", is_number=True, hint="under the profiler, slowest rank"),
    TableColumn(title="Of measured", is_number=True, hint="time of a step, with the profiler's cost"),
    TableColumn(title="Communication", is_number=True),
    TableColumn(title="Exposed", is_number=True, hint="communication while nothing is computed"),
    TableColumn(title="Data wait", is_number=True, hint="the host's time to get batches"),
    TableColumn(title="Device idle", is_number=True, hint="nothing ran on the device; unknown on a CPU"),
    TableColumn(title="Trace"),
)


def profiles(findings: Findings) -> Markup:
    found = profiles_of(findings.cells)
    if not found:
        return NOTHING
    shown = found[:_MOST_PROFILES]
    whole = Table(
        label="profile-table",
        caption="Shares of the time of profiled steps, medians over runs",
        columns=_COLUMNS,
        rows=[_row(one) for one in shown],
    )
    return section(
        "profiles",
        "Profiles",
        table(without_unknown(whole, range(3, len(_COLUMNS) - 1))),
        left_out(len(shown), len(found), "profile", "metrics.csv has the others"),
        note(ABOUT),
        *(_operations(one, index) for index, one in enumerate(shown) if one.operations),
    )


def _row(one: CellProfile) -> list[TableCell]:
    return [
        TableCell(together((short(one.cell.group, 60), origin_chips(one.cell.flags)))),
        TableCell(short(str(one.cell.subject), 200)),
        TableCell(short(one.basis, 20)),
        numeric(duration(one.step_sec), one.step_sec),
        numeric(times(one.slowdown), one.slowdown),
        numeric(fraction(one.communication), one.communication),
        numeric(fraction(one.exposed), one.exposed, _between(one)),
        numeric(fraction(one.data_wait), one.data_wait),
        numeric(fraction(one.idle), one.idle),
        TableCell(_trace(one)),
    ]


def _between(one: CellProfile) -> str:
    """The least and the most of any rank; nothing for one rank."""
    if one.cell.subject.world_size == 1:
        return ""
    return f"{fraction(one.exposed_least)} to {fraction(one.exposed_most)}"


def _trace(one: CellProfile) -> Markup | str:
    problem = short(one.problem, 300) if one.problem else ""
    if one.trace is None:
        return problem
    return together((element("code", short(one.trace, 300)), f" {problem}" if problem else ""))


def _operations(one: CellProfile, index: int) -> Markup:
    found = Table(
        label=f"operations-{index}",
        caption="Operations of rank 0 that took most of the time, per step",
        columns=(
            TableColumn(title="Operation"),
            TableColumn(title="Share", is_number=True, hint="of the profiled time"),
            TableColumn(title="Calls", is_number=True),
            TableColumn(title="Time", is_number=True),
        ),
        rows=[_operation(operation) for operation in one.operations],
    )
    title = f"Operations: {short(one.cell.group, 60)}, {short(str(one.cell.subject), 200)}"
    return details(title, table(found))


def _operation(found: ProfiledOperation) -> list[TableCell]:
    return [
        TableCell(element("code", short(found.name, _MOST_NAME))),
        numeric(fraction(found.share), found.share),
        numeric(number(found.calls), found.calls),
        numeric(duration(found.seconds), found.seconds),
    ]
