"""These inspections ask whether memory fits, was predicted, and is ordered by strategy as theory
says. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from reporting.analysis.findings import CellSummary, Subject
from reporting.analysis.inspections.seen import Seen, how_to_name_the_device, name_of

_ALMOST_FULL = 0.95
_MOST_OFF = 0.20
# Allocators round sizes, so strategies this close count as equal.
_EQUAL = 0.02
# (more, less): a strategy that shards less needs more memory, if both of a pair ran the same work.
_MORE_THAN = (("ddp", "fsdp"), ("fsdp", "zero3"), ("ddp", "zero1"), ("zero1", "zero2"), ("zero2", "zero3"))


def limits(cells: Sequence[CellSummary]) -> Iterator[Seen]:
    for cell in cells:
        peak, there = cell.peak_vram_gb, cell.device_memory_gb
        if peak is None:
            continue
        if not there:
            yield Seen(
                level="unknown",
                subject=cell.group,
                found="the device's memory is not known",
                advice=how_to_name_the_device(cell),
            )
        elif peak <= _ALMOST_FULL * there:
            yield Seen(level="ok", subject=name_of(cell), value=100 * peak / there)
        else:
            yield _full(cell, peak, there)


def _full(cell: CellSummary, peak: float, there: float) -> Seen:
    impossible = peak > there
    return Seen(
        level="failed" if impossible else "warning",
        subject=name_of(cell),
        found=f"{peak:.4g} GB of {there:.4g} GB ({100 * peak / there:.0f} %)",
        advice="One of the two numbers is wrong: don't use this one."
        if impossible
        else "A longer run may not fit: take a smaller micro-batch or shard more.",
        badness=peak / there,
    )


def predictions(cells: Sequence[CellSummary]) -> Iterator[Seen]:
    for cell in cells:
        peak, predicted = cell.peak_vram_gb, cell.predicted_gb
        if not peak or not predicted:
            continue
        off = peak / predicted - 1
        if abs(off) <= _MOST_OFF:
            yield Seen(level="ok", subject=name_of(cell), value=100 * off)
            continue
        yield Seen(
            level="warning",
            subject=name_of(cell),
            found=f"{peak:.4g} GB measured, {predicted:.4g} GB predicted ({100 * off:+.0f} %)",
            advice="What fits on other devices can't be foreseen for this cell: try it before a long run.",
            badness=abs(off),
        )


def order(cells: Sequence[CellSummary]) -> Iterator[Seen]:
    """Compares strategies only on several devices: on a single device no strategy shards anything."""
    known = {
        _place(cell): cell for cell in cells if cell.peak_vram_gb is not None and cell.subject.world_size > 1
    }
    for cell in known.values():
        for more in _expected_above(cell.subject.strategy):
            other = known.get(_place(cell, more))
            if other is not None:
                yield _ordered(other, cell)


def _expected_above(strategy: str) -> Iterable[str]:
    return [more for more, less in _MORE_THAN if less == strategy]


def _place(cell: CellSummary, strategy: str | None = None) -> tuple[str, str, Subject]:
    subject = cell.subject if strategy is None else replace(cell.subject, strategy=strategy)
    return cell.sweep, cell.group, subject


def _ordered(more: CellSummary, less: CellSummary) -> Seen:
    upper, lower = more.peak_vram_gb or 0.0, less.peak_vram_gb or 0.0
    if lower <= upper * (1 + _EQUAL):
        return Seen(level="ok", subject=f"{name_of(more)} > {less.subject.strategy}")
    above, below = less.subject.strategy, more.subject.strategy
    return Seen(
        level="warning",
        subject=name_of(less),
        found=f"{above} needs {lower:.4g} GB, {below} {upper:.4g} GB: it shards more and needs more",
        advice="Look at what it is given to shard, at its buckets, and at which peak was taken.",
        badness=lower / upper if upper else 0.0,
    )
