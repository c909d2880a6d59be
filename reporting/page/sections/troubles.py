"""This section shows what needs attention: checks with advice, failures with their errors, files not read.
Pure.
"""

from collections.abc import Sequence

from reporting.analysis.findings import Check, Findings
from reporting.analysis.formatting import clean, counted, joined, short
from reporting.analysis.selection import FailedCell, checks_shown, equal_failures
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
_MOST_NAMED = 12
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
    found = equal_failures(findings.cells)
    if not found:
        return NOTHING
    shown = found[:MOST_FAILURES]
    items = [_failure(alike) for alike in shown]
    rest = left_out(len(shown), len(found), "failure", "metrics.csv has all reasons")
    return section("failures", "Failures", element("div", *items, class_="failures"), rest)


def _failure(alike: Sequence[FailedCell]) -> Markup:
    """One card for cells that failed in the same way. Its log is the first one's that has one."""
    failure = next((one for one in alike if one.log_tail), alike[0])
    subjects = [str(one.cell.subject) for one in alike]
    which = short(subjects[0]) if len(alike) == 1 else counted(len(alike), "cell")
    title = (
        chip(short(failure.status, 40), "bad"),
        " ",
        f"{short(failure.cell.group, 60)} · {which}",
        origin_chips(failure.cell.flags),
    )
    num_runs, num_failed = sum(len(one.cell.rows) for one in alike), sum(one.num_runs for one in alike)
    facts = (
        ("Reason", short(failure.reason, 600)),
        ("Phase", short(failure.phase, 60)),
        *([("Cells", joined(subjects, _MOST_NAMED))] if len(alike) > 1 else []),
        ("Runs", f"{num_failed:,} of {num_runs:,}"),
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
