"""Advice names the best cell for each goal, relative to this report's own cells, never to fixed numbers.
Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, get_args

from reporting.analysis.findings import Advice, CellSummary
from reporting.analysis.formatting import counted
from reporting.analysis.inspections.sample_size import FEWEST_REPEATS

Goal = Literal["throughput", "memory", "efficiency"]

_BASELINE = "ddp"
# The value for what an imported row does not say.
_UNKNOWN = "unknown"


def advise(cells: Sequence[CellSummary]) -> tuple[tuple[Advice, ...], frozenset[str]]:
    """Returns one line per goal, group and model, and the cells on the Pareto front of throughput and memory.

    Each front is among cells of one group, model, sequence length and number of devices. If memory is known
    only for some of them, the others are not on the front. If it is known for none, the fastest cell is the
    front.
    """
    measured = [cell for cell in cells if cell.tokens_per_sec is not None]
    places = sorted({(cell.group, cell.subject.model) for cell in cells})
    advice = [
        line
        for group, model in places
        for line in _for_place(
            group, model, [cell for cell in measured if (cell.group, cell.subject.model) == (group, model)]
        )
    ]
    return tuple(advice), frozenset(cell.cell_id for cell in _front(measured))


def _for_place(group: str, model: str, cells: Sequence[CellSummary]) -> Iterator[Advice]:
    fastest = max(cells, key=_speed, default=None)
    if fastest is None:
        for goal in get_args(Goal):
            yield _nothing(goal, group, model, "No cell has numbers")
        return
    speed = f"{_speed(fastest):,.0f} tokens/s{_relative(fastest, cells)}{_as_fast(fastest, cells)}"
    yield _best("throughput", fastest, speed)
    yield _for_memory(group, model, cells)
    yield _for_efficiency(group, model, cells)


def _for_memory(group: str, model: str, cells: Sequence[CellSummary]) -> Advice:
    known = [cell for cell in cells if cell.peak_vram_gb is not None]
    if not known:
        return _nothing("memory", group, model, "No accelerator memory was measured")
    least = min(known, key=lambda cell: (cell.peak_vram_gb or 0.0, -_speed(cell)))
    rest = len(cells) - len(known)
    unknown = f"; unknown for {counted(rest, 'cell')}" if rest else ""
    return _best("memory", least, f"{least.peak_vram_gb:.4g} GB per device{unknown}{_relative(least, cells)}")


def _for_efficiency(group: str, model: str, cells: Sequence[CellSummary]) -> Advice:
    scaled = [
        (cell.scaling_efficiency_pct, cell)
        for cell in cells
        if cell.scaling_efficiency_pct is not None
        and cell.scaling_baseline_world_size != cell.subject.world_size
    ]
    if not scaled:
        return _nothing("efficiency", group, model, "Nothing was measured at two world sizes")
    share, best = max(scaled, key=lambda pair: pair[0])
    kept = f"keeps {share:.1f} % of the throughput per device of {_devices(best.scaling_baseline_world_size)}"
    baseline = _baseline(best, [cell for _, cell in scaled])
    others = (
        f"; {baseline.subject.strategy} keeps {baseline.scaling_efficiency_pct:.1f} %" if baseline else ""
    )
    return _best("efficiency", best, f"{kept}{others}")


def _best(goal: Goal, best: CellSummary, value: str) -> Advice:
    sentence = f"{_name(best)}: {value}{_caution(best)}."
    return Advice(
        goal=goal, group=best.group, model=best.subject.model, cell_id=best.cell_id, sentence=sentence
    )


def _name(cell: CellSummary) -> str:
    subject = cell.subject
    precision = f", {subject.precision}" if subject.precision != _UNKNOWN else ""
    return (
        f"{subject.strategy} on {_devices(subject.world_size)}, micro-batch {subject.batch[0]}{precision}"
        f"{subject.settings and f', {subject.settings}'}"
    )


def _devices(number: int | None) -> str:
    return f"{number} device{'' if number == 1 else 's'}"


def _relative(best: CellSummary, cells: Sequence[CellSummary]) -> str:
    baseline = _baseline(best, cells)
    if baseline is None:
        return ""
    ratio = _speed(best) / _speed(baseline) if _speed(baseline) else 0.0
    beside = _memory_beside(best, baseline)
    return f"; {ratio:.2f}x the tokens/s of {baseline.subject.strategy}{beside}"


def _baseline(best: CellSummary, cells: Sequence[CellSummary]) -> CellSummary | None:
    """Returns ddp doing the same work, or else the fastest other strategy that does."""
    peers = _peers(best, cells)
    ddp = (cell for cell in peers if cell.subject.strategy == _BASELINE)
    return next(ddp, max(peers, key=_speed, default=None))


def _as_fast(best: CellSummary, cells: Sequence[CellSummary]) -> str:
    """Names the strategies doing the same work that are not shown to be slower. With too few runs that would
    be all of them.
    """
    if best.tokens_per_sec is None or best.tokens_per_sec.low is None:
        return ""
    names = sorted(
        {
            cell.subject.strategy
            for cell in _peers(best, cells)
            if not best.tokens_per_sec.is_above(cell.tokens_per_sec)
        }
    )
    return (
        f"; {', '.join(names)} {'is' if len(names) == 1 else 'are'} not shown to be slower" if names else ""
    )


def _peers(best: CellSummary, cells: Sequence[CellSummary]) -> list[CellSummary]:
    same = [cell for cell in cells if _same_work(cell) == _same_work(best)]
    return [cell for cell in same if cell.subject.strategy != best.subject.strategy]


def _same_work(cell: CellSummary) -> object:
    return cell.sweep, replace(cell.subject, strategy="")


def _memory_beside(best: CellSummary, baseline: CellSummary) -> str:
    mine, its = best.peak_vram_gb, baseline.peak_vram_gb
    if mine is None or not its:
        return ""
    percent = round(100 * (mine / its - 1))
    if percent == 0:
        return " with the same memory"
    return f" with {abs(percent)} % {'less' if percent < 0 else 'more'} memory"


def _caution(cell: CellSummary) -> str:
    num_runs = cell.tokens_per_sec.num_runs if cell.tokens_per_sec else 0
    said = [counted(num_runs, "run")] if num_runs < FEWEST_REPEATS else []
    said += [flag for flag in ("simulated", "imported", "unstable") if flag in cell.flags]
    return f" ({', '.join(said)})" if said else ""


def _nothing(goal: Goal, group: str, model: str, why: str) -> Advice:
    return Advice(goal=goal, group=group, model=model, cell_id=None, sentence=f"{why}.")


def _front(cells: Sequence[CellSummary]) -> Iterator[CellSummary]:
    presence: dict[object, list[CellSummary]] = {}
    for cell in cells:
        subject = cell.subject
        place = (cell.sweep, cell.group, subject.model, subject.seq_len, subject.world_size)
        presence.setdefault(place, []).append(cell)
    for members in presence.values():
        known = [cell for cell in members if cell.peak_vram_gb is not None]
        yield from _undominated(known) if known else [max(members, key=_speed)]


def _undominated(cells: Sequence[CellSummary]) -> Iterator[CellSummary]:
    """Yields, from the fastest down, each cell that needs less memory than all cells before it."""
    least = float("inf")
    for cell in sorted(cells, key=lambda cell: (-_speed(cell), cell.peak_vram_gb or 0.0, cell.cell_id)):
        if (cell.peak_vram_gb or 0.0) < least:
            least = cell.peak_vram_gb or 0.0
            yield cell


def _speed(cell: CellSummary) -> float:
    return cell.tokens_per_sec.median if cell.tokens_per_sec else 0.0
