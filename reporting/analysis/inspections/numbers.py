"""This inspection asks whether the numbers of a single run can be true together. Pure."""

from collections.abc import Iterator, Sequence
from math import isclose

from reporting.analysis.findings import CellSummary
from reporting.analysis.formatting import counted, is_known
from reporting.analysis.inspections.seen import Seen, name_of, ok_rows
from reporting.results.rows import Row

# Results of other tools may be rounded.
_ROUNDED = 0.01


def agreement(cells: Sequence[CellSummary]) -> Iterator[Seen]:
    """Compares tokens per second times the step's time with the step's tokens, run by run.

    Imports may lack one of them. Whether they agree, the import has asked before.
    """
    for cell in cells:
        rows = [row for row in ok_rows(cell) if not row.imported or _is_wrong_sign(row)]
        wrong = [found for row in rows if (found := _disagreement(row))]
        if wrong:
            yield Seen(
                level="failed",
                subject=name_of(cell),
                found=f"{len(wrong):,} of {counted(len(ok_rows(cell)), 'ok run')}: {wrong[0]}",
                advice="No run can do that: don't use these numbers, and look at what wrote the result.",
                badness=len(wrong),
            )
        elif any(_tokens_per_step(row) for row in rows):
            yield Seen(level="ok", subject=name_of(cell))


def _is_wrong_sign(row: Row) -> bool:
    return any(value is not None and value <= 0 for value in (row.tokens_per_sec, row.mean_step_time_sec))


def _disagreement(row: Row) -> str | None:
    """What is wrong with the run's numbers; None if nothing is, or if the step's tokens are not known."""
    rate, step_s, tokens = row.tokens_per_sec, row.mean_step_time_sec, _tokens_per_step(row)
    said = f"{_shown(rate)} tokens/s at {_shown(step_s)} s a step"
    if _is_wrong_sign(row):
        return said
    if tokens is None:
        return None
    if not is_known(rate) or not is_known(step_s):
        return said
    if isclose(rate * step_s, tokens, rel_tol=_ROUNDED):
        return None
    return f"{said} are {_shown(rate * step_s)} tokens a step, and it has {tokens:,}"


def _tokens_per_step(row: Row) -> int | None:
    if row.tokens_per_step:
        return row.tokens_per_step
    if not (row.world_size and row.per_device_batch and row.seq_len):
        return None
    return row.world_size * row.per_device_batch * (row.grad_accum or 1) * row.seq_len


def _shown(value: float | None) -> str:
    return f"{value:,.4g}" if is_known(value) else "unknown"
