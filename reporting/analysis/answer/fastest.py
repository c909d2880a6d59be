"""The fastest setting of each model, in one sentence. Pure."""

from collections.abc import Iterator, Sequence

from reporting.analysis.answer.sizes import at_sizes, setting_of, sizes_of, usual_sizes, without_its_batch
from reporting.analysis.findings import CellSummary
from reporting.analysis.formatting import joined, short


def fastest(cells: Sequence[CellSummary]) -> Iterator[str]:
    """Yields one sentence per model, about throughput per device at the sizes that most groups have."""
    for model in sorted({cell.subject.model for cell in cells}):
        measured = [
            (found.median, cell)
            for cell in cells
            if cell.subject.model == model
            and "imported" not in cell.flags
            and (found := cell.tokens_per_sec_per_device)
        ]
        usual = usual_sizes(cell for _, cell in measured)
        comparable = [(value, cell) for value, cell in measured if sizes_of(cell.subject) == usual]
        if comparable:
            _, best = max(comparable, key=lambda pair: pair[0])
            batch = without_its_batch(best, (cell for _, cell in comparable))
            yield "".join((_of_fastest(model, comparable), *batch))


def _of_fastest(model: str, comparable: Sequence[tuple[float, CellSummary]]) -> str:
    """The sentence about cells of the same sizes, which names those that are not shown to be slower."""
    value, best = max(comparable, key=lambda pair: pair[0])
    what = f"{at_sizes(best.subject)}, {short(model, 60)}"
    others = [cell for _, cell in comparable if (cell.group, cell.subject) != (best.group, best.subject)]
    if not others:
        return f"{what} does {value:,.0f} tokens/s per device with {_setting(best)}."
    said = f"{what} is fastest per device with {_setting(best)}: {value:,.0f} tokens/s each"
    speed = best.tokens_per_sec_per_device
    if speed is None or speed.low is None:
        return f"{said}, from too few runs to be sure."
    as_fast = sorted(
        {_setting(cell) for cell in others if not speed.is_above(cell.tokens_per_sec_per_device)}
    )
    if not as_fast:
        return f"{said}."
    return f"{said}; {joined(as_fast, 3)} {'is' if len(as_fast) == 1 else 'are'} not shown to be slower."


def _setting(cell: CellSummary) -> str:
    return f"{setting_of(cell.subject)} on {short(cell.group, 60)}"
