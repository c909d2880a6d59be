"""Chooses a training, or a comparison of strategies, that runs on a group and fits into its memory. Pure.

The choice is small: a first spec shows that everything works, and its reader changes it afterwards.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from cluster.accelerators import accelerator
from cluster.inventory import Inventory, Request, WorkerGroup
from cluster.placement import Placed, place
from jobs.sweeps.plan import MemoryFit, memory_fit
from jobs.training.task.job import OptimizerConfig, Precision, Recipe, Strategy
from jobs.training.task.presets import PRESETS
from jobs.training.task.settings import Checkpointing

_ON_CPU = ("llama-tiny",)
_ON_DEVICES = ("llama-3.2-1b", "qwen-2.5-0.5b", "llama-tiny")
# A device whose memory nobody knows gets what nearly every card holds.
_ON_UNKNOWN = ("qwen-2.5-0.5b",)
# More processes than this on a machine's cores show nothing new.
_MOST_CPU_RANKS = 4
_MOST_RANKS = 8
_SEQ_LENS = (2048, 512, 64)
_MICRO_BATCHES = (8, 4, 2, 1)
# Of the memory that is there. The forecast may be wrong by more than the rest, seldom.
_SHARE_TO_USE = 0.8
_COMPARED: tuple[Strategy, ...] = ("ddp", "fsdp", "zero2", "zero3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A training that fits. ``fit`` says how tightly, with an unknown limit where memory is not known."""

    group: WorkerGroup
    recipe: Recipe
    fit: MemoryFit


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A comparison in which each cell fits. All cells share ``recipe`` but for strategy and world size.

    ``fit`` is that of the cell that needs most.
    """

    groups: tuple[WorkerGroup, ...]
    recipe: Recipe
    strategies: tuple[Strategy, ...]
    world_sizes: tuple[int, ...]
    fit: MemoryFit


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingFits:
    reason: str


def largest(inventory: Inventory) -> WorkerGroup | None:
    """The group with the most devices; those of an accelerator come before cores."""
    usable = [group for group in inventory.groups if group.num_devices]
    return max(usable, key=lambda group: (not _is_on_cpu(group), group.num_devices), default=None)


def choose_run(inventory: Inventory, group: WorkerGroup, model: str | None = None) -> Chosen | NothingFits:
    tried: list[MemoryFit] = []
    for recipe in _recipes(group, model):
        fit = _fit(recipe, inventory, group)
        if fit is not None and _is_roomy(fit):
            return Chosen(group=group, recipe=recipe, fit=fit)
        tried += [fit] if fit is not None else []
    return _nothing(group, tried)


def choose_sweep(
    inventory: Inventory, groups: Sequence[WorkerGroup], model: str | None = None
) -> Compared | NothingFits:
    """The first recipe of the smallest group that fits under two strategies or more in all groups."""
    smallest = min(groups, key=lambda group: (not _is_on_cpu(group), group.num_devices))
    tried: list[MemoryFit] = []
    for recipe in _recipes(smallest, model):
        sizes = tuple(sorted({1, recipe.world_size}))
        for world_sizes in dict.fromkeys((sizes, sizes[-1:])):
            fits = {
                strategy: _all_fit(recipe, strategy, world_sizes, inventory, groups) for strategy in _COMPARED
            }
            good = [strategy for strategy, fit in fits.items() if fit is not None and _is_roomy(fit)]
            tried += [fit for fit in fits.values() if fit is not None]
            if len(good) > 1:
                worst = max((fits[one] for one in good), key=_need)
                assert worst is not None
                return Compared(
                    groups=tuple(groups),
                    recipe=recipe,
                    strategies=tuple(good),
                    world_sizes=world_sizes,
                    fit=worst,
                )
    return _nothing(smallest, tried)


def _all_fit(
    recipe: Recipe,
    strategy: Strategy,
    world_sizes: Sequence[int],
    inventory: Inventory,
    groups: Sequence[WorkerGroup],
) -> MemoryFit | None:
    """The tightest fit of all cells; None if one can't be placed."""
    cells = [
        _fit(_with(recipe, strategy, size), inventory, group) for group, size in product(groups, world_sizes)
    ]
    return None if None in cells else max(cells, key=_need)


def _with(recipe: Recipe, strategy: Strategy, world_size: int) -> Recipe:
    return replace(recipe, strategy=strategy, world_size=world_size)


def _recipes(group: WorkerGroup, model: str | None) -> Iterator[Recipe]:
    """What to try, best first."""
    on_cpu = _is_on_cpu(group)
    is_known = on_cpu or accelerator(group.device) is not None
    usual = _ON_CPU if on_cpu else _ON_DEVICES if is_known else _ON_UNKNOWN
    most = min(_MOST_CPU_RANKS if on_cpu else _MOST_RANKS, max(node.num_devices for node in group.nodes))
    precision: Precision = "fp32" if on_cpu or _lacks_bf16(group) else "bf16"
    settings: tuple[Checkpointing, ...] = ("none", "full") if is_known and not on_cpu else ("full",)
    for name in (model,) if model else usual:
        config = PRESETS[name]
        seq_lens = [64] if on_cpu else [length for length in _SEQ_LENS if length <= config.max_seq_len]
        batches = (1,) if on_cpu or not is_known else _MICRO_BATCHES
        for size, seq_len, checkpointing, micro_batch in product(
            range(most, 0, -1), seq_lens, settings, batches
        ):
            strategy: Strategy = "ddp" if size == 1 or on_cpu else "fsdp"
            yield Recipe(
                model=config,
                strategy=strategy,
                world_size=size,
                seq_len=seq_len,
                micro_batch=micro_batch,
                grad_accum=1,
                precision=precision,
                activation_checkpointing="none" if on_cpu else checkpointing,
                seed=0,
                optimizer=OptimizerConfig(),
            )


def _fit(recipe: Recipe, inventory: Inventory, group: WorkerGroup) -> MemoryFit | None:
    (answer,) = place([Request(group=group.name, num_workers=recipe.world_size)], inventory)
    return memory_fit(recipe, group, answer) if isinstance(answer, Placed) else None


def _is_roomy(fit: MemoryFit) -> bool:
    return fit.limit_bytes is None or fit.predicted.total <= _SHARE_TO_USE * fit.limit_bytes


def _need(fit: MemoryFit | None) -> float:
    """The share of its memory that a rank needs; of unknown memory, none."""
    if fit is None or not fit.limit_bytes:
        return 0.0
    return fit.predicted.total / fit.limit_bytes


def _nothing(group: WorkerGroup, tried: Sequence[MemoryFit]) -> NothingFits:
    least = min(tried, key=lambda fit: fit.predicted.total, default=None)
    if least is None or least.limit_bytes is None:
        return NothingFits(reason=f"no training can be placed on group {group.name!r}")
    return NothingFits(
        reason=f"nothing fits on group {group.name!r}: the smallest training needs "
        f"{least.predicted.total / 1e9:.2f} GB per worker, and {least.limit_bytes / 1e9:.2f} GB are there"
    )


def _lacks_bf16(group: WorkerGroup) -> bool:
    """True for a known device without bf16, such as a V100."""
    chip = accelerator(group.device)
    return chip is not None and chip.vendor == "nvidia" and chip.bf16_tflops is None


def _is_on_cpu(group: WorkerGroup) -> bool:
    return group.vendor == "cpu" or group.simulated
