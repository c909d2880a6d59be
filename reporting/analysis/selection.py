"""Selection decides what is shown if not everything fits, and in which order. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from reporting.analysis.findings import CellCost, CellSummary, Check, Comparison, Findings, Money, Subject
from reporting.analysis.formatting import counted, moment
from reporting.analysis.sides.environments import groups_of
from reporting.long_runs.summary import LongRun
from reporting.results.rows import Row

_LEVELS = ("failed", "warning", "unknown", "ok")

Item = TypeVar("Item")
Origins = Mapping[tuple[str, Subject], frozenset[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCell:
    """Runs of one cell that failed in the same way. ``log_tail`` is that of the last run that has one."""

    cell: CellSummary
    status: str
    phase: str | None
    reason: str | None
    num_runs: int
    log_tail: tuple[str, ...]


def extent(findings: Findings) -> tuple[str, ...]:
    """Says in words what a report is made of. Without a sweep, only its long runs count."""
    rows, runs = findings.rows, findings.runs
    trainings = [counted(len(runs), "long run")] if runs else []
    if runs and not rows:
        return tuple(trainings)
    num_ok = sum(row.status == "ok" for row in rows)
    num_missing = sum(one.num_missing for one in findings.unfinished)
    return (
        f"{counted(len(rows), 'run')}, {num_ok:,} of them ok"
        f"{f', {num_missing:,} more are missing' if num_missing else ''}",
        counted(len(findings.cells), "cell"),
        counted(len(groups_of(rows)), "group"),
        *trainings,
        f"newest result {moment(findings.newest_at)}",
    )


def most_relevant(items: Sequence[Item], most: int, rank: Callable[[Item], int]) -> tuple[Item, ...]:
    """Returns at most ``most`` items, those with the lowest rank, in their original order."""
    chosen = sorted(range(len(items)), key=lambda index: (rank(items[index]), index))[:most]
    return tuple(items[index] for index in sorted(chosen))


def cells_shown(findings: Findings, most: int) -> tuple[CellSummary, ...]:
    """Chooses the best cells first, then cells that failed or have flags, then the rest."""
    advised = {advice.cell_id for advice in findings.advice} | findings.pareto
    return most_relevant(findings.cells, most, lambda cell: _rank(cell, advised))


def comparisons_shown(findings: Findings, most: int) -> tuple[Comparison, ...]:
    """Chooses first the comparisons that say which side is faster."""
    return most_relevant(findings.comparisons, most, lambda found: found.verdict not in ("faster", "slower"))


def costs_shown(found: Money, most: int) -> tuple[CellCost, ...]:
    """Returns the cheapest cells first, by cost or, where no price is known, by days; then those of which
    neither is known.
    """

    def rank(cost: CellCost) -> tuple[bool, float, bool, float]:
        price, days = cost.per_million_tokens, cost.training.days if cost.training else None
        return (
            price is None,
            price.median if price else 0.0,
            days is None,
            days.median if days else 0.0,
        )

    return tuple(sorted(found.costs, key=rank))[:most]


def checks_shown(findings: Findings, most: int) -> tuple[Check, ...]:
    """Returns the worst checks first."""
    return tuple(sorted(findings.checks, key=lambda check: _LEVELS.index(check.level)))[:most]


def failures(cells: Iterable[CellSummary]) -> tuple[FailedCell, ...]:
    """Returns equal failures of one cell as one, however often the cell was tried."""
    return tuple(failure for cell in cells for failure in _failures_of(cell))


def equal_failures(cells: Iterable[CellSummary]) -> tuple[tuple[FailedCell, ...], ...]:
    """Returns cells of one group that failed in the same way together, in the order of the first of each."""
    alike: dict[tuple[object, ...], list[FailedCell]] = {}
    for failure in failures(cells):
        flags = frozenset({"simulated", "imported"}.intersection(failure.cell.flags))
        key = (failure.cell.group, flags, failure.status, failure.phase, failure.reason)
        alike.setdefault(key, []).append(failure)
    return tuple(map(tuple, alike.values()))


def origins(findings: Findings) -> Origins:
    """Returns, by group and subject, why its numbers are not measured here: ``simulated``, ``imported``."""
    found: dict[tuple[str, Subject], frozenset[str]] = {}
    for cell in findings.cells:
        key = cell.group, cell.subject
        found[key] = found.get(key, frozenset()) | {"simulated", "imported"}.intersection(cell.flags)
    return found


def simulated_runs(rows: Iterable[Row], runs: Iterable[LongRun]) -> frozenset[str]:
    """Returns the names of long runs with numbers that are not of real devices.

    Older runs did not record it, so cells of their group tell.
    """
    groups = {row.group for row in rows if row.simulated and not row.is_emulated}
    return frozenset(run.name for run in runs if run.simulated or run.group in groups)


def _rank(cell: CellSummary, advised: Iterable[str | None]) -> int:
    if cell.cell_id in advised:
        return 0
    return 1 if cell.num_failed or cell.flags else 2


def _failures_of(cell: CellSummary) -> list[FailedCell]:
    alike: dict[tuple[str, str | None, str | None], list[Row]] = {}
    for row in cell.rows:
        if row.status != "ok":
            alike.setdefault((row.status, row.error_phase, row.error_reason), []).append(row)
    return [
        FailedCell(
            cell=cell,
            status=status,
            phase=phase,
            reason=reason,
            num_runs=len(rows),
            log_tail=next((row.error_log_tail for row in reversed(rows) if row.error_log_tail), ()),
        )
        for (status, phase, reason), rows in alike.items()
    ]
