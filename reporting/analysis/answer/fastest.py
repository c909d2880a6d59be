"""The fastest setting of each model, in one sentence. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence

from reporting.analysis.findings import CellSummary
from reporting.analysis.formatting import counted, joined


def fastest(cells: Sequence[CellSummary]) -> Iterator[str]:
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
