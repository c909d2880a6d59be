"""Finds each question's best cell by successive halving: which measurements are wanted next. Pure.

A first rung measures all cells for few steps. Each further rung measures the better half for twice as many.
At most ``FINALISTS`` are measured as the spec says, with all repeats. All follows from the stored rows, so a
search that was killed goes on where it was.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, hypot
from typing import TYPE_CHECKING

from jobs.sweeps.grid import Cell, at_window
from jobs.training.task.job import Window

if TYPE_CHECKING:  # as in jobs.sweeps.grid
    from jobs.spec_schema.sweep_spec import SweepSpec

FINALISTS = 3
# A rung of fewer steps says little, as one step may be slow for any reason.
_FEWEST_STEPS = 5
_FIRST_SHARE = 8
# From then on rungs are half of the measurement, which is the most.
_DIFFERENT_RUNGS = 4
# Cells this close are equally good for all that anybody does with them. As in a report's comparisons.
_EQUAL = 0.02
# So many standard errors may lie between two equal cells.
_STANDARD_ERRORS = 2.0
# However close all are, a quarter goes: halving ends, and costs less than the whole grid.
_MOST_KEPT = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Of one short measurement. ``error`` is the relative standard error that its own steps show."""

    tokens_per_sec: float
    error: float


@dataclass(frozen=True, slots=True)
class Failed:
    """The short measurement left a row without numbers."""


# What is known of a cell; None if it has no row yet.
Known = Callable[[Cell], Throughput | Failed | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The cells to measure next, once each; or the finalists, with all repeats.

    ``earlier`` are the short cells of the rungs before.
    """

    cells: tuple[Cell, ...]
    is_final: bool
    earlier: tuple[Cell, ...] = ()


def stage_of(spec: "SweepSpec", candidates: Sequence[Cell], known: Known) -> Stage:
    """The stage at which the search among ``candidates``, full cells of one question, is.

    A final stage may have nothing left to measure.
    """
    rung, earlier = 1, list[Cell]()
    while len(candidates) > FINALISTS:
        cells = [rung_cell(spec, cell, rung) for cell in candidates]
        found = [known(cell) for cell in cells]
        if any(one is None for one in found):
            return Stage(cells=tuple(cells), is_final=False, earlier=tuple(earlier))
        ok = [(one, cell) for one, cell in zip(found, candidates, strict=True) if isinstance(one, Throughput)]
        candidates = _better(ok)
        earlier += cells
        rung += 1
    return Stage(cells=tuple(candidates), is_final=True, earlier=tuple(earlier))


def rung_cell(spec: "SweepSpec", cell: Cell, rung: int) -> Cell:
    """A cell's short measurement. Late rungs may be as long as an earlier one: then theirs is the same."""
    window = rung_window(spec.measure, rung)
    first = next(one for one in range(1, rung + 1) if rung_window(spec.measure, one) == window)
    return at_window(spec, cell, window, first)


def short_cells(spec: "SweepSpec", cell: Cell, num_cells: int) -> list[Cell]:
    """All short measurements of one of ``num_cells`` cells that there may be."""
    rungs = 0
    while num_cells > FINALISTS and rungs < _DIFFERENT_RUNGS:
        num_cells, rungs = _most_kept(num_cells), rungs + 1
    return [rung_cell(spec, cell, rung) for rung in range(1, rungs + 1)]


def rung_window(full: Window, rung: int) -> Window:
    """An eighth of the steps in the first rung, twice as many in each further one, at most half of them."""
    most = max(full.steps // 2, min(_FEWEST_STEPS, full.steps))
    steps = min(most, max(_FEWEST_STEPS, full.steps // _FIRST_SHARE) * 2 ** (rung - 1))
    if steps == full.steps:
        return full
    share = steps / full.steps
    return replace(
        full,
        steps=steps,
        profile_steps=0,
        warmup=ceil(full.warmup * share),
        max_s=None if full.max_s is None else full.max_s * share,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    num_cells: int
    window: Window
    repeats: int

    @property
    def num_runs(self) -> int:
        return self.num_cells * self.repeats


def expected_rounds(spec: "SweepSpec", num_cells: int) -> list[Round]:
    """The rungs and the final of a question, if no cell fails and none are close to each other."""
    rounds: list[Round] = []
    while num_cells > FINALISTS:
        window = rung_window(spec.measure, len(rounds) + 1)
        rounds.append(Round(num_cells=num_cells, window=window, repeats=1))
        num_cells = ceil(num_cells / 2)
    return [*rounds, Round(num_cells=num_cells, window=spec.measure, repeats=spec.repeats)]


def _better(found: list[tuple[Throughput, Cell]]) -> list[Cell]:
    """The better half, and what the noise does not tell from the best; in the order of the sweep."""
    ranked = sorted(found, key=lambda one: -one[0].tokens_per_sec)
    num_kept, num_most = ceil(len(ranked) / 2), _most_kept(len(ranked))
    best = ranked[0][0] if ranked else None
    close = [one for one in ranked[num_kept:num_most] if best is not None and _is_close(one[0], best)]
    kept = {cell.cell_id for _, cell in (*ranked[:num_kept], *close)}
    return [cell for _, cell in found if cell.cell_id in kept]


def _most_kept(num_cells: int) -> int:
    return max(ceil(num_cells / 2), int(_MOST_KEPT * num_cells))


def _is_close(other: Throughput, best: Throughput) -> bool:
    margin = max(_EQUAL, _STANDARD_ERRORS * hypot(other.error, best.error))
    return other.tokens_per_sec >= best.tokens_per_sec * (1 - margin)
