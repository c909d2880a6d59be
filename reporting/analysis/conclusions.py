"""This module makes findings from the table: cells, verdicts, advice, checks, and the answer in sentences."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import median

from reporting.analysis.advice import advise
from reporting.analysis.cells import summarise
from reporting.analysis.checks import check
from reporting.analysis.comparing import compare_groups
from reporting.analysis.costs.money import money
from reporting.analysis.costs.telling import told
from reporting.analysis.findings import CellSummary, Comparison, Findings, Prices
from reporting.analysis.formatting import counted, joined, short
from reporting.analysis.inspections.time_order import drift, one_after_the_other
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
) -> Findings:
    """Concludes everything that a report says. With prices, or a number of tokens, it says what they cost."""
    cells = summarise(rows)
    comparisons = compare_groups(cells)
    advice, pareto = advise(cells)
    costs = money(cells, comparisons, runs, prices=prices, tokens=tokens)
    return Findings(
        name=name,
        store=store,
        newest_at=max((row.finished_at for row in rows if row.finished_at), default=None),
        answer=(
            *_answer(cells, comparisons, runs, skipped),
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
    )


def _answer(
    cells: Sequence[CellSummary],
    comparisons: Sequence[Comparison],
    runs: Sequence[LongRun],
    skipped: Sequence[Skipped],
) -> Iterator[str]:
    if cells and all(cell.status != "ok" for cell in cells):
        yield _of_nothing(cells)
    elif cells:
        yield from _of_groups(cells, comparisons)
        yield from _of_time(cells)
        yield from _of_failures(cells)
    for run in runs:
        yield _of_run(run)
    if skipped:
        unread = counted(len(skipped), "file")
        yield f"{unread} could not be read and {_are(len(skipped))} not in this report."


def _of_groups(cells: Sequence[CellSummary], comparisons: Sequence[Comparison]) -> Iterator[str]:
    groups = sorted({cell.group for cell in cells})
    pairs = sorted(comparisons, key=_pair)
    for (baseline, other), found in groupby(pairs, key=_pair):
        yield _of_pair(baseline, other, list(found))
    yield from _fastest(cells)
    if not comparisons:
        of_what = f"The only group is {groups[0]}" if len(groups) == 1 else "No two groups ran the same cell"
        yield f"{of_what}: there is nothing to compare."
    simulated = {cell.group for cell in cells if "simulated" in cell.flags and not cell.is_emulated}
    if simulated:
        names = ", ".join(sorted(simulated))
        yield f"Groups on simulated devices, whose figures say nothing of real ones: {names}."
    if num_emulated := sum(cell.is_emulated for cell in cells):
        counted_cells = counted(num_emulated, "cell")
        yield f"On CPUs fp8 is simulated: the figures of {counted_cells} say nothing of fp8 on devices."


def _pair(comparison: Comparison) -> tuple[str, str]:
    return comparison.baseline, comparison.other


def _of_pair(baseline: str, other: str, found: Sequence[Comparison]) -> str:
    """Names the group that is faster in most cells, or says that neither is shown to be."""
    verdicts = Counter(comparison.verdict for comparison in found)
    num_faster, num_slower, num = verdicts["faster"], verdicts["slower"], len(found)
    first, second = (baseline, other) if num_slower > num_faster else (other, baseline)
    num_won, num_lost = max(num_faster, num_slower), min(num_faster, num_slower)
    ratios = [
        1 / comparison.ratio if first == baseline else comparison.ratio
        for comparison in found
        if comparison.ratio
    ]
    speed, cells = _speed(ratios), counted(num, "cell")
    if num_won == num:
        return f"{first} is faster than {second} in {'all ' if num > 1 else ''}{cells}: {speed}."
    beside = f"; {first} does {speed}" if speed else ""
    if not num_won:
        return f"Neither {baseline} nor {other} is shown to be faster in {cells}: {_rest(verdicts)}{beside}."
    others = [f"{second} in {num_lost}"] if num_lost else []
    told = ", ".join([*others, *([_rest(verdicts)] if num_won + num_lost < num else [])])
    return f"{first} is faster than {second} in {num_won} of {cells}, {told}{beside}."


def _rest(verdicts: Counter[str]) -> str:
    """Counts the verdicts that name no winner. Those of a side without numbers are its statuses."""
    known = {"equivalent": "equivalent", "inconclusive": "undecided", "too few repeats": "too few repeats"}
    failed = {each: f"{each} on one side" for each in sorted(verdicts.keys() - {*known, "faster", "slower"})}
    words = {**known, **failed}
    return ", ".join(f"{told} in {verdicts[each]}" for each, told in words.items() if verdicts[each])


def _speed(ratios: Sequence[float]) -> str:
    """The ratio over the cells that both measured."""
    if not ratios:
        return ""
    spread = f" ({min(ratios):.2f}x to {max(ratios):.2f}x)" if len(ratios) > 1 else ""
    return f"{median(ratios):.2f}x the tokens/s{' in the median' if spread else ''}{spread}"


def _fastest(cells: Sequence[CellSummary]) -> Iterator[str]:
    """Yields one sentence per model, about throughput per device at the sizes that most cells have."""
    for model in sorted({cell.subject.model for cell in cells if "imported" not in cell.flags}):
        measured = [
            (found.median, cell)
            for cell in cells
            if cell.subject.model == model and (found := cell.tokens_per_sec_per_device)
        ]
        sizes = Counter(_sizes(cell) for _, cell in measured)
        # Of equally common sizes the largest.
        usual = max(sizes, key=lambda found: (sizes[found], found), default=None)
        comparable = [(value, cell) for value, cell in measured if _sizes(cell) == usual]
        if comparable:
            yield _of_fastest(model, comparable)


def _sizes(cell: CellSummary) -> tuple[int, int, str]:
    return cell.subject.world_size, cell.subject.seq_len, cell.subject.precision


def _of_fastest(model: str, comparable: Sequence[tuple[float, CellSummary]]) -> str:
    """The sentence about cells of the same sizes, which names those that are not shown to be slower."""
    value, best = max(comparable, key=lambda pair: pair[0])
    world_size, seq_len, precision = _sizes(best)
    where = f"on {counted(world_size, 'device')} of {best.group} at S={seq_len} in {precision}"
    others = [cell for _, cell in comparable if cell is not best]
    if not others:
        return f"{model} does {value:,.0f} tokens/s per device with {best.subject.strategy} {where}."
    said = f"{model} is fastest per device with {best.subject.strategy} {where}: {value:,.0f} tokens/s each"
    speed = best.tokens_per_sec_per_device
    if speed is None or speed.low is None:
        return f"{said}, from too few runs to be sure."
    as_fast = sorted(
        {
            f"{cell.subject.strategy} of {cell.group}"
            for cell in others
            if not speed.is_above(cell.tokens_per_sec_per_device)
        }
    )
    if not as_fast:
        return f"{said}."
    return f"{said}; {joined(as_fast, 3)} {'is' if len(as_fast) == 1 else 'are'} not shown to be slower."


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
