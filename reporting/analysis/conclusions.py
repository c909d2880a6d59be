"""This module makes findings from the table: cells, verdicts, advice, checks, and the answer in sentences."""

from collections import Counter
from collections.abc import Iterator, Sequence

from reporting.analysis.advice import advise
from reporting.analysis.answer.fastest import fastest
from reporting.analysis.answer.grounds import of_grounds
from reporting.analysis.answer.pairs import of_pairs
from reporting.analysis.cells import summarise
from reporting.analysis.checks import check
from reporting.analysis.comparing import compare_groups
from reporting.analysis.costs.money import money
from reporting.analysis.costs.telling import told
from reporting.analysis.findings import CellSummary, Comparison, Findings, MatchUp, Prices
from reporting.analysis.formatting import counted, joined, short
from reporting.analysis.inspections.numbers import agreement
from reporting.analysis.inspections.time_order import drift, one_after_the_other
from reporting.analysis.published.nearest import Yardstick, beside_published
from reporting.analysis.sides.at_its_best import at_its_best
from reporting.long_runs.summary import LongRun
from reporting.results.rows import Row
from reporting.results.skipped import Skipped
from reporting.results.unfinished import Unfinished


def conclude(
    name: str,
    store: str,
    rows: Sequence[Row],
    *,
    runs: Sequence[LongRun] = (),
    skipped: Sequence[Skipped] = (),
    unfinished: Sequence[Unfinished] = (),
    prices: Prices | None = None,
    tokens: float | None = None,
    yardstick: Yardstick | None = None,
) -> Findings:
    """Concludes everything that a report says. With prices, or a number of tokens, it says what they cost;
    with a yardstick, which published results are nearest.
    """
    cells = summarise(rows)
    comparisons, at_best = compare_groups(cells), at_its_best(cells)
    advice, pareto = advise(cells)
    costs = money(cells, comparisons, runs, at_best=at_best, prices=prices, tokens=tokens)
    return Findings(
        name=name,
        store=store,
        newest_at=max((row.finished_at for row in rows if row.finished_at), default=None),
        answer=(
            *_answer(cells, comparisons, at_best, runs, skipped),
            *(told(costs) if costs else ()),
            *map(_of_unfinished, unfinished),
        ),
        rows=tuple(rows),
        cells=cells,
        comparisons=comparisons,
        advice=advice,
        pareto=pareto,
        checks=check(cells, runs),
        skipped=tuple(skipped),
        runs=tuple(runs),
        unfinished=tuple(unfinished),
        money=costs,
        at_best=at_best,
        published=beside_published(cells, yardstick) if yardstick else (),
    )


def _answer(
    cells: Sequence[CellSummary],
    comparisons: Sequence[Comparison],
    at_best: Sequence[MatchUp],
    runs: Sequence[LongRun],
    skipped: Sequence[Skipped],
) -> Iterator[str]:
    if cells and all(cell.status != "ok" for cell in cells):
        yield _of_nothing(cells)
    elif cells:
        yield from _of_groups(cells, comparisons, at_best)
        yield from _of_numbers(cells)
        yield from _of_time(cells)
        yield from _of_failures(cells)
    for run in runs:
        yield _of_run(run)
    if skipped:
        unread = counted(len(skipped), "file")
        yield f"{unread} could not be read and {_are(len(skipped))} not in this report."


def _of_groups(
    cells: Sequence[CellSummary], comparisons: Sequence[Comparison], at_best: Sequence[MatchUp]
) -> Iterator[str]:
    groups = sorted({cell.group for cell in cells})
    yield from of_pairs(groups, comparisons, at_best)
    yield from fastest(cells)
    yield from of_grounds(cells, comparisons, at_best)
    if not comparisons and not at_best:
        of_what = f"The only group is {groups[0]}" if len(groups) == 1 else "No two groups ran the same cell"
        yield f"{of_what}: there is nothing to compare."
    simulated = {cell.group for cell in cells if "simulated" in cell.flags and not cell.is_emulated}
    if simulated:
        names = ", ".join(sorted(simulated))
        yield f"Groups on simulated devices, whose figures say nothing of real ones: {names}."
    if num_emulated := sum(cell.is_emulated for cell in cells):
        counted_cells = counted(num_emulated, "cell")
        yield f"On CPUs fp8 is simulated: the figures of {counted_cells} say nothing of fp8 on devices."


def _of_numbers(cells: Sequence[CellSummary]) -> Iterator[str]:
    """Says which groups' numbers can't be true: what the sentences before say of them is no ground to buy."""
    wrong = Counter(cell.group for cell in cells for seen in agreement([cell]) if seen.level == "failed")
    if wrong:
        told = joined(f"{counted(number, 'cell')} of {group}" for group, number in sorted(wrong.items()))
        yield f"Mind the numbers: those of {told} can't be true together (see the checks)."


def _of_time(cells: Sequence[CellSummary]) -> Iterator[str]:
    """Says what may make a verdict one of time instead of hardware."""
    for seen in (*one_after_the_other(cells), *drift(cells)):
        if seen.level != "ok":
            yield f"Mind the time: {seen.subject} {seen.found}."


def _of_failures(cells: Sequence[CellSummary]) -> Iterator[str]:
    failed = Counter(cell.status for cell in cells if cell.status != "ok")
    if failed:
        kinds = ", ".join(f"{count} {status}" for status, count in sorted(failed.items()))
        num = failed.total()
        yield f"{counted(num, 'cell')} of {len(cells)} {'has' if num == 1 else 'have'} no numbers: {kinds}."


def _of_nothing(cells: Sequence[CellSummary]) -> str:
    """The sentence for cells that all failed, with what most of them say."""
    kinds = Counter(cell.status for cell in cells)
    which = f"All {len(cells):,} cells failed" if len(cells) > 1 else "The only cell failed"
    told = ", ".join(f"{count} {status}" for status, count in sorted(kinds.items()))
    reasons = Counter(short(cell.error_reason, 200) for cell in cells if cell.error_reason)
    most = f" The most frequent reason: {reasons.most_common(1)[0][0].rstrip('.')}." if reasons else ""
    return f"{which}: {told}. There are no numbers.{most}"


def _of_run(run: LongRun) -> str:
    what = f"Run {run.name} has done {counted(run.num_steps, 'step')}"
    if run.num_superseded:
        what += f" and repeated {run.num_superseded:,} of them after restarts"
    if run.goodput is None:
        return f"{what}."
    return f"{what}; {100 * run.goodput:.1f} % of its wall time was training that survived."


def _of_unfinished(found: Unfinished) -> str:
    return (
        f"Sweep {found.sweep} is not finished: {found.num_missing:,} of its {counted(found.num_runs, 'run')} "
        f"{_are(found.num_missing)} missing; the same command measures them."
    )


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
