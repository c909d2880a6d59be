"""Finds out what a start of a run would do. It reads the store, and writes nothing there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from checkpointing.generations.choice import choose
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import of_this_life
from cluster.inventory import Inventory, Request, WorkerGroup
from cluster.placement import Placed, place
from jobs.doctor.examination import Forecast
from jobs.doctor.forecast import forecast
from jobs.execution.resources import mode_of
from jobs.runs.data_check.find import Data, num_samples
from jobs.runs.data_check.masks import have_a_mask
from jobs.runs.tasks import Beginning
from jobs.spec_schema.run_spec import RunSpec
from jobs.sweeps.plan import PREDICTION_ERROR, MemoryFit, memory_fit, seconds_per_step


@dataclass(frozen=True, slots=True, kw_only=True)
class SizePlan:
    """One world size at which the run may train, in one of its groups. ``refused`` says why it can't be
    placed; ``fit`` and ``placement`` are None then.
    """

    group: str
    world_size: int
    placement: str | None
    refused: str | None
    fit: MemoryFit | None
    step_s: float | None

    @property
    def is_too_large(self) -> bool:
        """Whether the forecast is beyond the memory by more than its own error."""
        fit = self.fit
        if fit is None or fit.limit_bytes is None:
            return False
        return fit.predicted.total > fit.limit_bytes * (1 + PREDICTION_ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """``sizes`` are in ascending order, those of one group after those of another. ``begins`` says in words
    where the run would go on.

    ``finished_step`` is set if nothing is left to do.
    """

    run: str
    store: str
    source: str
    spec: RunSpec
    num_steps: int
    sizes: tuple[SizePlan, ...]
    begins: str
    begins_at_step: int | None
    finished_step: int | None
    space: Forecast

    @property
    def group(self) -> str:
        """The first group that has a place for the run, or the first of all."""
        placed = (size.group for size in self.sizes if size.placement)
        return next(placed, self.sizes[0].group)

    @property
    def can_be_placed(self) -> bool:
        return any(size.placement for size in self.sizes)

    @property
    def is_too_large(self) -> bool:
        """Whether none of the sizes that can be placed fits into memory."""
        placed = [size for size in self.sizes if size.placement]
        return bool(placed) and all(size.is_too_large for size in placed)


def plan_of(
    spec: RunSpec,
    repository: Repository,
    begins: Beginning,
    inventory: Inventory,
    groups: Sequence[WorkerGroup],
    tokens: Data | None,
) -> RunPlan:
    step, words = _where(repository, begins)
    num_steps = spec.num_steps(num_samples(spec, tokens))
    finished = repository.view.finished_step
    is_finished = (
        finished is not None and finished >= num_steps and not begins.fresh and begins.what == "latest"
    )
    return RunPlan(
        run=repository.run,
        store=repository.store.url,
        source=inventory.source,
        spec=spec,
        num_steps=num_steps,
        sizes=tuple(
            _size(spec, size, inventory, group, num_steps, in_parts=have_a_mask(spec, group, tokens))
            for group in groups
            for size in spec.sizes
        ),
        begins=words,
        begins_at_step=step,
        finished_step=finished if is_finished else None,
        space=replace(forecast(spec, inventory), run=repository.run),
    )


def _goes_on(begins: Beginning) -> bool:
    """Whether the run goes on where it ended, and not elsewhere as somebody asked."""
    return not begins.fresh and begins.what == "latest" and begins.origin is None


def _size(
    spec: RunSpec,
    world_size: int,
    inventory: Inventory,
    group: WorkerGroup,
    num_steps: int,
    *,
    in_parts: bool,
) -> SizePlan:
    mode = mode_of(share_nodes=True, spread=spec.spread)
    (answer,) = place([Request(group=group.name, num_workers=world_size, mode=mode)], inventory)
    recipe = spec.recipe(world_size, num_steps=num_steps)
    is_placed = isinstance(answer, Placed)
    return SizePlan(
        group=group.name,
        world_size=world_size,
        placement=answer.describe() if isinstance(answer, Placed) else None,
        refused=None if isinstance(answer, Placed) else answer.reason,
        fit=memory_fit(recipe, group, answer, in_parts=in_parts) if is_placed else None,
        step_s=seconds_per_step(recipe, group),
    )


def _where(repository: Repository, begins: Beginning) -> tuple[int | None, str]:
    """The step after which the run would go on, if it is known, and that in words."""
    if begins.origin is not None:
        origin = begins.origin
        what = "the newest checkpoint" if origin.what == "latest" else origin.what
        return None, f"from {what} of {origin.run} in {origin.store}"
    view = repository.view
    if begins.fresh:
        kept = len(of_this_life(view))
        return 0, f"at step 0; {kept} earlier checkpoints stay" if kept else "at step 0"
    if begins.what in {one.name for one in repository.unnamed(begins.what)}:
        return None, f"from {begins.what}, which the log does not name"
    decision = choose(view, what=begins.what)
    if decision.chosen is None:
        return 0, "at step 0: there is no checkpoint yet"
    return decision.chosen.step, f"after step {decision.chosen.step}, from {decision.chosen.name}"


def as_data(plan: RunPlan) -> Mapping[str, Any]:
    return {
        "schema_version": 1,
        "run": plan.run,
        "store": plan.store,
        "group": plan.group,
        "num_steps": plan.num_steps,
        "begins": plan.begins,
        "begins_at_step": plan.begins_at_step,
        "finished_step": plan.finished_step,
        "sizes": [
            {
                "group": size.group,
                "world_size": size.world_size,
                "placement": size.placement,
                "refused": size.refused,
                "predicted_memory_bytes": size.fit.predicted.total if size.fit else None,
                "memory_limit_bytes": size.fit.limit_bytes if size.fit else None,
                "predicted_step_s": size.step_s,
            }
            for size in plan.sizes
        ],
        "checkpoint_bytes": plan.space.generation_bytes,
        "most_checkpoints": plan.space.num_kept,
        "local_folder": plan.space.local_folder,
        "local_bytes": plan.space.local_bytes,
    }
