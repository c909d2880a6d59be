"""This section shows what needs attention: checks with advice, failures with their errors, files not read.
Pure.
"""

from reporting.analysis.findings import Check, Findings
from reporting.analysis.formatting import clean, counted, short
from reporting.analysis.selection import FailedCell, checks_shown, failures
from reporting.page.markup import NOTHING, Markup, element, together
from reporting.page.pieces import (
    Table,
    TableCell,
    TableColumn,
    chip,
    definitions,
    details,
    left_out,
    origin_chips,
    section,
    table,
)
from reporting.results.skipped import Skipped

MOST_CHECKS = 100
MOST_FAILURES = 60
MOST_SKIPPED = 100
_MOST_LINES = 20
_TONES = {"ok": "good", "warning": "open", "failed": "bad", "unknown": "plain"}


def checks(findings: Findings) -> Markup:
    if not findings.checks:
        return NOTHING
    shown = checks_shown(findings, MOST_CHECKS)
    columns = (
        TableColumn(title="Check"),
        TableColumn(title="Result"),
        TableColumn(title="Of"),
        TableColumn(title="Found"),
        TableColumn(title="What to do"),
    )
    found = Table(
        label="check-table",
        caption="What was checked, the worst first",
        columns=columns,
        rows=[_check(check) for check in shown],
    )
    rest = left_out(len(shown), len(findings.checks), "check", "the worst come first; findings.json has all")
    return section("checks", "Checks", table(found), rest)


def _check(check: Check) -> list[TableCell]:
    return [
        TableCell(short(check.name)),
        TableCell(chip(check.level, _TONES[check.level])),
        TableCell(short(check.subject)),
        TableCell(element("span", short(check.found, 300), class_="says")),
        TableCell(element("span", short(check.advice, 300) if check.advice else "", class_="says")),
    ]


def failed(findings: Findings) -> Markup:
    found = failures(findings.cells)
    if not found:
        return NOTHING
    shown = found[:MOST_FAILURES]
    items = [_failure(failure) for failure in shown]
    rest = left_out(len(shown), len(found), "failure", "metrics.csv has all reasons")
    return section("failures", "Failures", element("div", *items, class_="failures"), rest)


def _failure(failure: FailedCell) -> Markup:
    cell = failure.cell
    title = (
        chip(short(failure.status, 40), "bad"),
        " ",
        f"{short(cell.group, 60)} · {short(str(cell.subject))}",
        origin_chips(cell.flags),
    )
    facts = (
        ("Reason", short(failure.reason, 600)),
        ("Phase", short(failure.phase, 60)),
        ("Runs", f"{failure.num_runs} of {len(cell.rows)}"),
    )
    return element("article", element("h3", *title), definitions(facts), _log(failure))


def _log(failure: FailedCell) -> Markup:
    lines = [line[:200] for line in failure.log_tail[-_MOST_LINES:]]
    if not lines:
        return NOTHING
    text = together(f"{clean(line)}\n" for line in lines)
    return details(f"Last {counted(len(lines), 'line')} of the log", element("pre", text, tabindex=0))


def skipped(findings: Findings) -> Markup:
    if not findings.skipped:
        return NOTHING
    shown = findings.skipped[:MOST_SKIPPED]
    found = Table(
        label="skipped-table",
        caption=f"{counted(len(findings.skipped), 'file')} could not be read and count nowhere",
        columns=(TableColumn(title="File"), TableColumn(title="Why")),
        rows=[_skipped(one) for one in shown],
    )
    rest = left_out(len(shown), len(findings.skipped), "file", "findings.json has all")
    return section("skipped", "Skipped files", table(found), rest)


def _skipped(found: Skipped) -> list[TableCell]:
    return [TableCell(element("code", short(found.name, 200))), TableCell(short(found.reason, 300))]
