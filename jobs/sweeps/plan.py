"""Plans each cell on its group: placement, FLOPs, predicted memory and time. Pure.

``Plan.refused`` is known before anything starts. It names cells that can't be placed or can't fit in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

from cluster.accelerators import accelerator
from cluster.inventory import Inventory, Mode, Node, Request, WorkerGroup
from cluster.placement import Placed, Refused, place
from jobs.commandline.usage_error import SpecError, nearest
from jobs.spec_schema.combinations import impossible
from jobs.sweeps.grid import Cell
from jobs.sweeps.memory_forecast import MemoryPrediction, offloaded_bytes, predict_memory
from jobs.training.task.job import Recipe
from jobs.training.task.measurement import Failure
from jobs.training.task.search.largest_batch import BatchSearch, divisors
from reporting.results.formulas import flops_per_token, recomputed_flops_per_token

if TYPE_CHECKING:  # as in jobs.sweeps.grid
    from jobs.spec_schema.sweep_spec import SweepLimits

# The speed that a laptop core and a well-fed accelerator reach. Used only for the time forecast, which is
# printed with a tilde and enters no result.
_CPU_CORE_FLOPS = 20e9
_REACHED_SHARE_OF_PEAK = 0.4
_RUN_OVERHEAD_S = 3.0
# The largest error of the memory prediction, which its test enforces. A cell that may fit is started.
PREDICTION_ERROR = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is known of a cell before it starts. ``predicted_s`` is None for a device of unknown speed.

    If the cell asks for the largest micro-batch, ``recipe`` has the one that the forecast expects to fit, and
    ``search`` has those that may fit.

    ``host_memory_bytes`` is what the cell offloads to the memory of the node that has most of its workers;
    None if it offloads nothing from a device, or is not placed.
    """

    cell: Cell
    recipe: Recipe
    search: BatchSearch | None
    group: WorkerGroup | None
    answer: Placed | Refused
    flops_per_token: float
    recomputed_flops_per_token: float
    predicted_memory_bytes: int
    memory_limit_bytes: int | None
    host_memory_bytes: int | None
    predicted_s: float | None
    refused: Failure | None

    @property
    def is_simulated(self) -> bool:
        """Whether CPUs stand in for the group's devices, or for the recipe's fp8."""
        group, recipe = self.group, self.cell.recipe
        return group is not None and (group.simulated or recipe.is_emulated(group.vendor))

    @property
    def memory_budget_bytes(self) -> int | None:
        """The bytes that a worker may allocate, or None on an accelerator, which limits its memory itself."""
        return self.memory_limit_bytes if _is_on_cpu(self.group) else None

    def predicted_bytes_of(self, recipe: Recipe) -> int:
        return predict_memory(recipe, on_cpu=_is_on_cpu(self.group)).total


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFit:
    """The memory that a rank needs, beside what it has; None where that is not known."""

    predicted: MemoryPrediction
    limit_bytes: int | None

    @property
    def is_within(self) -> bool:
        """Whether the forecast itself fits. Its error is not added; what is not known counts as fitting."""
        return self.limit_bytes is None or self.predicted.total <= self.limit_bytes


def memory_fit(
    recipe: Recipe, group: WorkerGroup, answer: Placed | Refused, *, in_parts: bool = False
) -> MemoryFit:
    """``in_parts``: see ``predict_memory``."""
    return MemoryFit(
        predicted=predict_memory(recipe, on_cpu=_is_on_cpu(group), in_parts=in_parts),
        limit_bytes=_memory_limit(group, answer, None),
    )


def seconds_per_step(recipe: Recipe, group: WorkerGroup) -> float | None:
    """A guess, for plans alone; None for a device of unknown speed."""
    speed = _reachable_flops(recipe, group)
    return None if speed is None else _step_s(recipe, speed)


def replanned(plan: Plan, cell: Cell) -> Plan:
    """The plan of a cell that differs from the plan's own only in its window."""
    return replace(plan, cell=cell, predicted_s=_predicted_s(cell, plan.group))


def check_groups(names: Sequence[str], inventory: Inventory) -> None:
    """Raises ``SpecError`` for groups that are not there.

    Rows that say so would count as done at the next start, with the group there.
    """
    known = sorted(group.name for group in inventory.groups)
    problems = [
        f"groups: there is no group {name!r} in {inventory.source} (groups: {', '.join(known) or 'none'})"
        f"{nearest(name, known)}"
        for name in dict.fromkeys(names)
        if name not in known
    ]
    if problems:
        raise SpecError(problems)


def plan_all(
    cells: Sequence[Cell], inventory: Inventory, limits: "SweepLimits", mode: Mode = "whole_node"
) -> list[Plan]:
    requests = [Request(group=cell.group, num_workers=cell.recipe.world_size, mode=mode) for cell in cells]
    answers = place(requests, inventory)
    return [
        _plan(cell, inventory.group(cell.group), answer, limits)
        for cell, answer in zip(cells, answers, strict=True)
    ]


def _plan(cell: Cell, group: WorkerGroup | None, answer: Placed | Refused, limits: "SweepLimits") -> Plan:
    limit = _memory_limit(group, answer, limits.memory_gb_per_worker)
    search = _search(cell, group, limit, limits) if cell.question else None
    recipe = cell.recipe.in_micro_batches_of(search.guess) if search else cell.recipe
    predicted = predict_memory(recipe, on_cpu=_is_on_cpu(group)).total
    offloads = _offloads(recipe, group, answer)
    return Plan(
        cell=cell,
        recipe=recipe,
        search=search,
        group=group,
        answer=answer,
        flops_per_token=flops_of(cell.recipe),
        recomputed_flops_per_token=flops_again(cell.recipe),
        predicted_memory_bytes=predicted,
        memory_limit_bytes=limit,
        host_memory_bytes=max((offload.num_bytes for offload in offloads), default=None),
        predicted_s=_predicted_s(cell, group),
        refused=_refusal(answer, predicted, limit, limits) or _host_refusal(offloads, limits),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offload:
    """What a cell's workers on one node offload to its memory."""

    node: Node
    num_bytes: int


def _offloads(recipe: Recipe, group: WorkerGroup | None, answer: Placed | Refused) -> list[_Offload]:
    """On all nodes of the cell; none on CPUs, where it is part of what a worker needs."""
    per_worker = offloaded_bytes(recipe)
    if group is None or isinstance(answer, Refused) or _is_on_cpu(group) or not per_worker:
        return []
    nodes = {node.node_id: node for node in group.nodes}
    return [
        _Offload(node=nodes[share.node_id], num_bytes=share.num_workers * per_worker)
        for share in answer.shares
    ]


def _search(cell: Cell, group: WorkerGroup | None, limit: int | None, limits: "SweepLimits") -> BatchSearch:
    """The search among the divisors of a rank's sequences, from the largest that the forecast lets fit.

    What the forecast excludes is no candidate; of what nothing is known, the smallest is tried first.
    """
    recipe_of = cell.recipe.in_micro_batches_of
    sizes = tuple(size for size in divisors(cell.recipe.grad_accum) if not impossible(recipe_of(size)))
    if limit is None:
        return BatchSearch(sequences=cell.recipe.grad_accum, candidates=sizes, guess=sizes[0])
    on_cpu = _is_on_cpu(group)
    bytes_of = {size: predict_memory(recipe_of(size), on_cpu=on_cpu).total for size in sizes}
    may_fit = [size for size in sizes if limits.try_anyway or not _cannot_fit(bytes_of[size], limit)]
    return BatchSearch(
        sequences=cell.recipe.grad_accum,
        candidates=tuple(may_fit) or sizes[:1],
        guess=max((size for size in may_fit if bytes_of[size] <= limit), default=sizes[0]),
    )


def _is_on_cpu(group: WorkerGroup | None) -> bool:
    return group is not None and (group.vendor == "cpu" or group.simulated)


def _cannot_fit(predicted: int, limit: int) -> bool:
    return predicted > limit * (1 + PREDICTION_ERROR)


def _refusal(
    answer: Placed | Refused, predicted: int, limit: int | None, limits: "SweepLimits"
) -> Failure | None:
    if isinstance(answer, Refused):
        return Failure(status="unschedulable", reason=answer.reason)
    if limit is not None and _cannot_fit(predicted, limit) and not limits.try_anyway:
        return Failure(
            status="oom",
            reason=(
                f"predicted to need {predicted / 1e9:.2f} GB per worker, {limit / 1e9:.2f} GB are there "
                "(--set limits.try_anyway=true starts it all the same)"
            ),
            phase="predicted",
            wanted_bytes=predicted,
        )
    return None


def _host_refusal(offloads: Sequence[_Offload], limits: "SweepLimits") -> Failure | None:
    """Offloaded state alone is counted, and to the byte: so no margin is left for an error."""
    for offload in offloads:
        there = offload.node.memory_bytes
        if there is not None and offload.num_bytes > there and not limits.try_anyway:
            return Failure(
                status="oom",
                reason=(
                    f"offload: optimizer needs {offload.num_bytes / 1e9:.2f} GB of host memory on "
                    f"{offload.node.short_name}, {there / 1e9:.2f} GB are there "
                    "(--set limits.try_anyway=true starts it all the same)"
                ),
                phase="predicted",
                wanted_bytes=offload.num_bytes,
            )
    return None


def _memory_limit(group: WorkerGroup | None, answer: Placed | Refused, most_gb: float | None) -> int | None:
    """``most_gb`` is what the user allows a worker on a CPU."""
    if group is None or isinstance(answer, Refused):
        return None
    if _is_on_cpu(group):
        if most_gb is not None:
            return int(most_gb * 1e9)
        return _fair_share_of_host(group, answer)
    chip = accelerator(group.device)
    return None if chip is None else chip.memory_bytes


def _fair_share_of_host(group: WorkerGroup, placed: Placed) -> int | None:
    """Four fifths of a node's memory over its workers, on the node where that is least."""
    memory = {node.node_id: node.memory_bytes for node in group.nodes}
    shares = [
        int(0.8 * total / share.num_workers)
        for share in placed.shares
        if (total := memory[share.node_id]) is not None
    ]
    return min(shares, default=None)


def flops_of(recipe: Recipe) -> float:
    """The FLOPs per token that MFU counts."""
    model = recipe.model
    return flops_per_token(
        num_matmul_parameters=model.num_matmul_parameters,
        num_layers=model.num_layers,
        attention_size=model.attention_size,
        seq_len=recipe.seq_len,
    )


def flops_again(recipe: Recipe) -> float:
    """The FLOPs per token that are computed again, which HFU counts too.

    Only ``full`` computes products again: each block's but the last, whose output nothing asks for.
    """
    model = recipe.model
    if recipe.activation_checkpointing != "full":
        return 0.0
    last = model.intermediate_size * model.hidden_size
    return recomputed_flops_per_token(
        num_recomputed_parameters=model.num_layers * (model.num_block_parameters - last),
        num_layers=model.num_layers,
        attention_size=model.attention_size,
        seq_len=recipe.seq_len,
    )


def _predicted_s(cell: Cell, group: WorkerGroup | None) -> float | None:
    speed = _reachable_flops(cell.recipe, group)
    if speed is None:
        return None
    window, step_s = cell.window, _step_s(cell.recipe, speed)
    num_steps = window.steps if window.max_s is None else min(window.steps, ceil(window.max_s / step_s))
    return _RUN_OVERHEAD_S + window.cooldown_s + (window.warmup + num_steps + window.profile_steps) * step_s


def _step_s(recipe: Recipe, speed: float) -> float:
    flops = flops_of(recipe) + flops_again(recipe)
    return recipe.tokens_per_step * flops / (recipe.world_size * speed)


def _reachable_flops(recipe: Recipe, group: WorkerGroup | None) -> float | None:
    if group is None:
        return None
    if group.vendor == "cpu" or group.simulated:
        return _CPU_CORE_FLOPS
    chip = accelerator(group.device)
    # Without a published fp32 peak the forecast uses tf32's, the best that fp32 matmuls can reach.
    known = (
        (chip.peak_flops(dtype) for dtype in (recipe.product_dtype, recipe.precision, "tf32")) if chip else ()
    )
    peak = next(filter(None, known), None)
    return peak * _REACHED_SHARE_OF_PEAK if peak else None
