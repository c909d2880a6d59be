"""These inspections ask whether runs learn, and whether runs of the same work learn the same. Pure."""

from collections.abc import Iterator, Sequence
from statistics import median

from reporting.analysis.findings import CellSummary
from reporting.analysis.inspections.seen import Seen, name_of, ok_rows
from reporting.results.rows import Row

# Tolerances for the noise at a window's end, and for a different order of summation over a few steps.
_FLAT = 0.01
_EQUAL = 0.01

_Member = tuple[CellSummary, float]


def decreasing(cells: Sequence[CellSummary]) -> Iterator[Seen]:
    """Compares the window's first loss with the median of its last tenth. A run without finite losses fails
    the check.
    """
    for cell in cells:
        if any(row.status == "invalid_loss" for row in cell.rows):
            yield Seen(
                level="failed",
                subject=name_of(cell),
                found="a loss was not finite",
                advice="Its speed counts for nothing: lower the learning rate, look at precision and data.",
            )
            continue
        rises = [rise for row in ok_rows(cell) if (rise := _rise(row)) is not None]
        if rises:
            yield _of_rise(cell, median(rises))


def _rise(row: Row) -> float | None:
    first, last = row.loss_first, row.loss_median_last_tenth
    return last / first - 1 if first and last is not None else None


def _of_rise(cell: CellSummary, rise: float) -> Seen:
    if rise <= _FLAT:
        return Seen(level="ok", subject=name_of(cell), value=100 * rise)
    return Seen(
        level="warning",
        subject=name_of(cell),
        found=f"the loss rose by {100 * rise:.1f} % within the window",
        advice="A short window or random data can do this; else lower the learning rate.",
        badness=rise,
    )


def equal(cells: Sequence[CellSummary]) -> Iterator[Seen]:
    """Compares the loss at a step that all runs have, among cells that must compute the same up to rounding.

    With three or more cells, those that differ from the median are wrong. With two, nobody knows which one
    is.
    """
    families: dict[tuple[object, ...], list[_Member]] = {}
    for cell in cells:
        for family, losses in _losses_by_seed(cell).items():
            families.setdefault(family, []).append((cell, median(losses)))
    for members in families.values():
        if len(members) > 2:
            yield from _against_median(members)
        elif len(members) == 2:
            yield _of_two(*members)


def _losses_by_seed(cell: CellSummary) -> dict[tuple[object, ...], list[float]]:
    """Returns losses by everything that the loss depends on, which excludes strategy and group."""
    subject = cell.subject
    same = (cell.sweep, subject.model, subject.world_size, subject.seq_len, subject.micro_batch,
            subject.grad_accum)  # fmt: skip
    found: dict[tuple[object, ...], list[float]] = {}
    for row in ok_rows(cell):
        if row.loss_reference is not None:
            dtype = row.fp8 if row.has_fp8 else row.precision
            family = (*same, dtype, row.seed, row.loss_reference_step, row.optimizer)
            found.setdefault(family, []).append(row.loss_reference)
    return found


def _against_median(members: Sequence[_Member]) -> Iterator[Seen]:
    usual = median(loss for _, loss in members)
    for cell, loss in members:
        off = _off(loss, usual)
        if off <= _EQUAL:
            yield Seen(level="ok", subject=name_of(cell), value=100 * off)
        else:
            yield _different(
                cell, f"its loss is {loss:.4f}, that of the {len(members)} like it {usual:.4f}", off
            )


def _of_two(first: _Member, second: _Member) -> Seen:
    (cell, loss), (other, other_loss) = first, second
    off = _off(other_loss, loss)
    if off <= _EQUAL:
        return Seen(level="ok", subject=name_of(cell), value=100 * off)
    return _different(other, f"its loss is {other_loss:.4f}, that of {name_of(cell)} {loss:.4f}", off)


def _different(cell: CellSummary, found: str, off: float) -> Seen:
    return Seen(
        level="failed",
        subject=name_of(cell),
        found=found,
        advice="It computes something else, so its speed can't be compared: look at gradient averaging.",
        badness=off,
    )


def _off(loss: float, usual: float) -> float:
    return abs(loss - usual) / abs(usual) if usual else abs(loss)
