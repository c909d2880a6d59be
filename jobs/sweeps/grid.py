"""Expands a sweep into its cells, in a stable order and with stable identities. Pure.

A cell's identity is the digest of exactly what determines its result. So it does not change when the file is
reordered, or when axis values, repeats or limits are added or changed.
"""

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import chain, groupby, product
from typing import TYPE_CHECKING, Any, Literal

from jobs.commandline.usage_error import SpecError
from jobs.spec_schema.combinations import impossible
from jobs.sweeps.sessions import Sessions
from jobs.training.task.job import OptimizerConfig, Precision, Recipe, Strategy, Window
from jobs.training.task.presets import ModelConfig
from jobs.training.task.settings import Settings
from reporting.results.settings import settings_of, settings_text

if TYPE_CHECKING:  # the types only: loading YAML and pydantic is not needed here
    from jobs.spec_schema.sweep_spec import SweepSpec

_LATER = ("qk_norm", "init_std")
MAX: Literal["max"] = "max"
_OF_SCHEDULES = ("schedule", "min_lr_ratio", "decay_steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One combination to measure, on one group.

    A cell with a ``question`` asks for the largest micro-batch that fits. Its recipe has micro-batches of one
    sequence. Cells with equal questions, which differ in their windows alone, have the same answer.
    A cell with a ``rung`` is one of the short measurements by which ``--best`` chooses; they count from 1.
    """

    cell_id: str
    group: str
    recipe: Recipe
    window: Window
    environment: tuple[tuple[str, str], ...] = ()
    question: str = ""
    rung: int | None = None

    @property
    def readable_name(self) -> str:
        recipe = self.recipe
        settings = "".join(f"-{word}" for word in settings_text(recipe).replace(",", "").split())
        size = MAX if self.question else recipe.micro_batch
        rung = f"-rung{self.rung}" if self.rung else ""
        return (
            f"{recipe.model.name}-{recipe.strategy}-ws{recipe.world_size}-seq{recipe.seq_len}"
            f"-mb{size}-{recipe.precision}{settings}-{self.group}{rung}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measurement of a cell. ``repeat`` counts from 1, over all sessions; ``order`` is the run's position
    in the sweep.
    """

    cell: Cell
    repeat: int
    order: int
    session: int = 1

    @property
    def run_id(self) -> str:
        return f"{self.cell.cell_id}-r{self.repeat}"

    @property
    def name(self) -> str:
        """The folder of the run's results: readable, unique, and valid in every file system."""
        return f"{self.cell.readable_name}-r{self.repeat}-{self.cell.cell_id[:8]}"


def expand(spec: "SweepSpec", groups: Sequence[str]) -> list[Cell]:
    """Returns the cells of the sweep in order. ``groups`` is what ``auto`` stands for.

    Raises ``SpecError`` if a combination is impossible or no cell is left.
    """
    wanted = spec.group_names(groups)
    if not wanted:
        raise SpecError(["groups: 'auto' finds no group to measure on; name one, or add a node with devices"])
    points = dict.fromkeys(_points(spec, wanted))
    excluded = [spec.values(selection) for selection in spec.exclude]
    kept = [point for point in points if not any(_matches(point, values) for values in excluded)]
    recipes = [_recipe(spec, point) for point in kept]
    found = (_problems(spec, point, recipe) for point, recipe in zip(kept, recipes, strict=True))
    problems = list(dict.fromkeys(chain.from_iterable(found)))
    if problems:
        raise SpecError(problems)
    if not kept:
        raise SpecError([f"{spec.name}: no cell is left; exclude takes away all that axes and include give"])
    return [_cell(spec, point, recipe) for point, recipe in zip(kept, recipes, strict=True)]


def schedule(spec: "SweepSpec", cells: Sequence[Cell], sessions: Sessions | None = None) -> list[Run]:
    """Returns all runs in the order in which they are measured: by default those of a first session.

    Every repeat is a round over all cells, so that drift affects all cells alike. Within a round the cells of
    one group and world size are adjacent, so that they may share worker processes. Repeats of one cell never
    share processes.
    """
    runs: list[Run] = []
    for repeat, session in (sessions or Sessions.first(spec.repeats)).repeats():
        for cell in _round(spec, cells, repeat):
            runs.append(Run(cell=cell, repeat=repeat, order=len(runs) + 1, session=session))
    return runs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point(Settings):
    group: str
    model: ModelConfig
    strategy: Strategy
    world_size: int
    seq_len: int
    micro_batch: int | Literal["max"]
    precision: Precision

    @property
    def sequences_at_once(self) -> int:
        """Those of all devices in one micro-batch, or the least number of them."""
        return self.world_size * (1 if self.micro_batch == MAX else self.micro_batch)


def _points(spec: "SweepSpec", groups: Sequence[str]) -> Iterator[_Point]:
    for selection in spec.selections:
        models = [model.config for model in spec.models]
        chosen: dict[str, Sequence[Any]] = {"group": groups, "model": models, **dict(spec.axes)}
        chosen |= spec.values(selection)
        for values in product(*chosen.values()):
            yield _Point(**dict(zip(chosen, values, strict=True)))


def _matches(point: _Point, part: Mapping[str, Sequence[Any]]) -> bool:
    return all(getattr(point, axis) in values for axis, values in part.items())


def _problems(spec: "SweepSpec", point: _Point, recipe: Recipe) -> Iterator[str]:
    if spec.global_batch is not None and spec.global_batch % point.sequences_at_once:
        size = "" if point.micro_batch == MAX else f" with micro-batches of {point.micro_batch}"
        yield (
            f"global_batch: {spec.global_batch} sequences can't be divided among {point.world_size} "
            f"devices{size}; expected a multiple of {point.sequences_at_once}, or exclude that combination"
        )
        return
    if point.micro_batch == MAX:
        # If a micro-batch goes with the other values, the largest does.
        recipe = recipe.in_micro_batches_of(recipe.grad_accum)
    for found in impossible(recipe):
        yield f"axes.{found.key}: {found.reason}, or exclude that combination"


def at_window(spec: "SweepSpec", cell: Cell, window: Window, rung: int | None) -> Cell:
    """The same question measured otherwise, which makes it another cell unless the window is the same."""
    if window == cell.window:
        return cell
    cell_id = _digest(cell.group, cell.recipe, window, cell.environment, _seating(spec), bool(cell.question))
    return replace(cell, cell_id=cell_id, window=window, rung=rung)


def _recipe(spec: "SweepSpec", point: _Point) -> Recipe:
    return Recipe(
        model=point.model,
        strategy=point.strategy,
        world_size=point.world_size,
        seq_len=point.seq_len,
        micro_batch=1 if point.micro_batch == MAX else point.micro_batch,
        grad_accum=_grad_accum(spec, point),
        precision=point.precision,
        seed=spec.seed,
        optimizer=spec.optimizer,
        **{**settings_of(point), "deterministic": spec.deterministic},
    )


def _cell(spec: "SweepSpec", point: _Point, recipe: Recipe) -> Cell:
    override = spec.overrides.get(point.group)
    environment = tuple(sorted(override.environment.items())) if override else ()
    window, is_max = spec.measure, point.micro_batch == MAX
    seating = _seating(spec)
    return Cell(
        cell_id=_digest(point.group, recipe, window, environment, seating, is_max),
        group=point.group,
        recipe=recipe,
        window=window,
        environment=environment,
        question=_digest(point.group, recipe, None, environment, seating, is_max) if is_max else "",
    )


def _grad_accum(spec: "SweepSpec", point: _Point) -> int:
    return spec.global_batch // point.sequences_at_once if spec.global_batch else spec.grad_accum


def _seating(spec: "SweepSpec") -> dict[str, bool]:
    """The placement options that enter a cell's identity.

    ``spread`` enters only if it is set: cells measured before the option existed keep their identity.
    """
    return {"share_nodes": spec.share_nodes} | ({"spread": True} if spec.spread else {})


def _digest(
    group: str,
    recipe: Recipe,
    window: Window | None,
    environment: tuple[tuple[str, str], ...],
    seating: dict[str, bool],
    is_max: bool,
) -> str:
    identity = {
        "group": group,
        "recipe": {
            **_fields(recipe),
            "model": _model_fields(recipe.model),
            **({"micro_batch": MAX} if is_max else {}),
        },
        "window": _fields(window) if window else None,
        "environment": environment,
        **seating,
    }
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _fields(value: Recipe | Window) -> dict[str, object]:
    """The fields that enter a cell's identity; usual settings are left out, see ``_seating``.

    ``profile_steps`` enters unless it is 0. A finished sweep to which it is added then has cells that miss,
    so running it again profiles them, and no row that exists is replaced. It also tells rows apart that may
    differ: a process in which a profiler has run may be slower at the next cell that it measures.
    """
    fields = {name: getattr(value, name) for name in value.__dataclass_fields__}
    if isinstance(value, Recipe):
        fields["optimizer"] = _optimizer_fields(value.optimizer)
        for setting in settings_of(value):
            if fields[setting] == Recipe.__dataclass_fields__[setting].default:
                del fields[setting]
    elif not value.profile_steps:
        del fields["profile_steps"]
    return fields


def _optimizer_fields(optimizer: OptimizerConfig) -> dict[str, object]:
    """The optimizer fields that enter a cell's identity.

    A constant schedule leaves out the schedule's keys, for the reason given in ``_seating``.
    """
    fields = asdict(optimizer)
    if optimizer.schedule == "constant":
        for name in _OF_SCHEDULES:
            del fields[name]
    return fields


@cache
def _model_fields(model: ModelConfig) -> dict[str, object]:
    """All but what has the usual value and came later, for the reason given in ``_seating``."""
    return {
        name: value
        for name, value in asdict(model).items()
        if name not in _LATER or value != ModelConfig.__dataclass_fields__[name].default
    }


def _round(spec: "SweepSpec", cells: Sequence[Cell], repeat: int) -> Iterable[Cell]:
    """Orders cells by group and world size. A shuffled round shuffles these blocks and the cells in each."""
    by_block = sorted(cells, key=_block)
    blocks = [list(block) for _, block in groupby(by_block, key=_block)]
    if spec.order == "shuffled":
        dice = random.Random(f"{spec.seed}:{repeat}")
        dice.shuffle(blocks)
        for block in blocks:
            dice.shuffle(block)
    return (cell for block in blocks for cell in block)


def _block(cell: Cell) -> tuple[str, int]:
    return (cell.group, cell.recipe.world_size)
