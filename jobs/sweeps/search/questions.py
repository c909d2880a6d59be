"""Sorts a sweep's cells into questions: the cells among which ``--best`` looks for the fastest. Pure.

A question is a group with a value of each axis that is not searched. All its cells do equally many sequences
per step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jobs.commandline.usage_error import SpecError
from jobs.sweeps.grid import MAX, Cell
from reporting.results.settings import NUMBERS, SETTINGS

if TYPE_CHECKING:  # as in jobs.sweeps.grid
    from jobs.spec_schema.sweep_spec import SweepSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """``asked`` are its values by axis, in the order in which they are shown."""

    asked: tuple[tuple[str, Any], ...]
    cells: tuple[Cell, ...]

    @property
    def group(self) -> str:
        return self.cells[0].group

    @property
    def sequences_per_step(self) -> int:
        return self.cells[0].recipe.sequences_per_step


def questions_of(spec: "SweepSpec", cells: Sequence[Cell]) -> list[Question]:
    """In the order of the cells. Raises ``SpecError`` if a question's cells differ in their steps."""
    found: dict[tuple[tuple[str, Any], ...], list[Cell]] = {}
    for cell in cells:
        asked = tuple((axis, value) for axis, value in _values(cell).items() if axis not in spec.best.over)
        found.setdefault(asked, []).append(cell)
    questions = [Question(asked=asked, cells=tuple(members)) for asked, members in found.items()]
    if any(len({cell.recipe.sequences_per_step for cell in one.cells}) > 1 for one in questions):
        raise SpecError(
            [
                "axes.micro_batch: --best compares settings at equal sequences per step, and with grad_accum "
                "these grow with the micro-batch; write global_batch: N, the sequences of a step over all "
                "devices, and leave grad_accum out"
            ]
        )
    return questions


def searched_values(spec: "SweepSpec", cell: Cell) -> dict[str, Any]:
    """The cell's values of the axes that are searched."""
    return {axis: value for axis, value in _values(cell).items() if axis in spec.best.over}


def _values(cell: Cell) -> dict[str, Any]:
    recipe = cell.recipe
    return {
        "group": cell.group,
        "model": recipe.model.name,
        "strategy": recipe.strategy,
        "world_size": recipe.world_size,
        "seq_len": recipe.seq_len,
        "micro_batch": MAX if cell.question else recipe.micro_batch,
        "precision": recipe.precision,
        **{name: getattr(recipe, name) for name in (*SETTINGS, *NUMBERS)},
    }
