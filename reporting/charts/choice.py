"""This module chooses what is drawn of many cells, because a chart that shows everything is unreadable. Pure.

Keys with the most cells are taken first, then those that appear first; a caption can say what was left out.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from reporting.analysis.findings import LARGEST, CellSummary, Estimate, Findings, Subject
from reporting.charts.looks import GroupLook, group_looks, strategy_order
from reporting.charts.wording import is_number, model_of, name_of

MOST_GROUPS = 3
MOST_RECIPES = 3
MOST_PANELS = 6
MOST_STRATEGIES = 6

# Longer names would leave a panel no room, or cover the one beside it.
_LONGEST_NAME = 40

NAMES_MEAN = " In names x is devices, S tokens per sequence, b the micro-batch, g the accumulated ones."

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Recipe:
    """The settings that stay the same along a curve over the number of devices."""

    model: str
    seq_len: int
    micro_batch: int
    grad_accum: int
    precision: str
    settings: str

    @property
    def batch(self) -> str:
        if self.micro_batch == LARGEST:
            return f"micro-batch max of {self.grad_accum}"
        return f"micro-batch {self.micro_batch}, {self.grad_accum} accumulated"

    def __str__(self) -> str:
        return (
            f"{model_of(self.model)}, {self.seq_len:,} tokens, {self.batch}, {name_of(self.precision, 8)}"
            f"{self.settings and f', {self.settings}'}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The cells that charts choose from, and each group's look and title in all charts."""

    cells: tuple[CellSummary, ...]
    pareto: frozenset[str]
    looks: dict[str, GroupLook]
    titles: dict[str, str]


def view_of(findings: Findings) -> View:
    """Makes the view of findings. Cells without devices are left out, because they have no place on
    an axis.
    """
    cells = tuple(cell for cell in findings.cells if cell.subject.world_size > 0)
    pairs = [(cell.group, cell.vendor) for cell in cells] + [(run.group, run.vendor) for run in findings.runs]
    groups = dict.fromkeys(group for group, _ in pairs)
    titles = {group: name_of(group, 18) + _origin(group, findings) for group in groups}
    return View(cells=cells, pareto=findings.pareto, looks=group_looks(pairs), titles=titles)


def _origin(group: str, findings: Findings) -> str:
    """What is said of a group of which cells are simulated. With fp8 on a CPU only some of them are."""
    are_simulated = {"simulated" in cell.flags for cell in findings.cells if cell.group == group}
    if True not in are_simulated:
        return ""
    return " (partly simulated)" if False in are_simulated else " (simulated)"


def recipe_of(subject: Subject) -> Recipe:
    return Recipe(
        model=subject.model,
        seq_len=subject.seq_len,
        micro_batch=subject.micro_batch,
        grad_accum=subject.grad_accum,
        precision=subject.precision,
        settings=subject.settings,
    )


def is_measured(cell: CellSummary) -> bool:
    return throughput(cell) is not None


def throughput(cell: CellSummary) -> Estimate | None:
    return known(cell.tokens_per_sec)


def known(estimate: Estimate | None) -> Estimate | None:
    """Returns the estimate if it has a number that can be drawn, else None."""
    return estimate if estimate and is_number(estimate.median) and estimate.median > 0 else None


def richest(keys: Iterable[Key], most: int) -> list[Key]:
    """Returns the ``most`` most common keys, in the order of their first appearance."""
    counts = Counter(keys)
    chosen = {key for key, _ in counts.most_common(most)}
    return [key for key in counts if key in chosen]


def groups_of(cells: Iterable[CellSummary]) -> list[str]:
    return richest((cell.group for cell in cells), MOST_GROUPS)


def strategies_of(cells: Iterable[CellSummary]) -> list[str]:
    chosen = richest((cell.subject.strategy for cell in cells), MOST_STRATEGIES)
    return sorted(chosen, key=strategy_order)


def best_key(
    cells: Iterable[CellSummary],
    key: Callable[[CellSummary], Key],
    *,
    kind: Callable[[CellSummary], Hashable],
) -> Key | None:
    """Returns the key whose cells are of the most kinds; among several, the first."""
    found: defaultdict[Key, set[Hashable]] = defaultdict(set)
    for cell in cells:
        found[key(cell)].add(kind(cell))
    return max(found, key=lambda name: len(found[name]), default=None)


def curve_recipes(cells: Sequence[CellSummary]) -> list[Recipe]:
    """Returns one recipe for each model and sequence length: the one with the most points over numbers of
    devices.
    """
    measured = [cell for cell in cells if is_measured(cell)]
    by_family: defaultdict[tuple[str, int], list[CellSummary]] = defaultdict(list)
    for cell in measured:
        by_family[cell.subject.model, cell.subject.seq_len].append(cell)
    most = min(MOST_RECIPES, MOST_PANELS // max(len(groups_of(measured)), 1))
    families = richest(((cell.subject.model, cell.subject.seq_len) for cell in measured), most)
    chosen = (best_key(by_family[family], _recipe, kind=_point) for family in families)
    return [recipe for recipe in chosen if recipe]


def differing_names(subjects: Iterable[Subject]) -> dict[Subject, str]:
    """Names each subject by its strategy and by the settings that are not the same for all subjects. A name
    that is too long for a picture lacks its middle.
    """
    parts = {subject: _parts(subject) for subject in subjects}
    places = range(len(_parts(next(iter(parts))))) if parts else range(0)
    differ = [place for place in places if len({found[place] for found in parts.values()}) > 1]
    return {
        subject: model_of(
            " ".join([name_of(subject.strategy, 12), *(found[place] for place in differ if found[place])]),
            _LONGEST_NAME,
        )
        for subject, found in parts.items()
    }


def same_for_all(subjects: Iterable[Subject]) -> str:
    """Returns the settings that ``differing_names`` leaves out, as one text."""
    found = list(zip(*(_parts(subject) for subject in subjects), strict=True))
    return ", ".join(values[0] for values in found if len(set(values)) == 1 and values[0])


def left_out(shown: int, of: int, what: str) -> str:
    """Returns a sentence for the caption, or nothing if all cells are drawn."""
    return f" {shown:,} of {of:,} cells are drawn: {what}." if shown < of else ""


def _parts(subject: Subject) -> tuple[str, ...]:
    return (
        model_of(subject.model, 18),
        f"x{subject.world_size}",
        f"S{subject.seq_len}",
        *subject.short_batch.split(" g", 1),
        name_of(subject.precision, 8),
        subject.settings,
    )


def _recipe(cell: CellSummary) -> Recipe:
    return recipe_of(cell.subject)


def _point(cell: CellSummary) -> tuple[str, str, int]:
    return cell.group, cell.subject.strategy, cell.subject.world_size
