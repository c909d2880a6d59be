"""The job of measuring one cell: plain data that is sent to every rank of a worker group. Needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, assert_never

from cluster.accelerators import PeakDtype
from cluster.inventory import Vendor
from jobs.training.task.presets import ModelConfig
from jobs.training.task.search.largest_batch import BatchSearch
from jobs.training.task.settings import Settings

Strategy = Literal["ddp", "fsdp", "zero1", "zero2", "zero3"]
Precision = Literal["fp32", "bf16"]
Schedule = Literal["constant", "linear", "cosine"]


def split_copies(shard_within: int | None, nodes: Sequence[str]) -> str | None:
    """Says which ranks share one copy of the state from several nodes; None if there are none such.

    ``nodes`` are those of all ranks, rank 0 first.
    """
    if shard_within is None:
        return None
    for first in range(0, len(nodes), shard_within):
        num_nodes = len(set(nodes[first : first + shard_within]))
        if num_nodes > 1:
            return (
                f"shard_within: the {shard_within} ranks from {first} on share one copy of the state, on "
                f"{num_nodes} nodes, so all that they gather crosses the network; expected a number that "
                "divides the ranks of each node"
            )
    return None


# The kernels for fp8 take matrices whose sizes are multiples of this.
FP8_MULTIPLE = 16
# A chunk's fp32 logits take at most this: so many that its matrix products are still efficient ones.
MOST_CHUNK_BYTES = 256 * 2**20


def tokens_per_chunk(vocabulary: int) -> int:
    """Of how many tokens a chunked cross-entropy holds the logits at once."""
    return max(1, MOST_CHUNK_BYTES // (4 * vocabulary))


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW with a linear warm-up to ``lr`` over ``warmup_steps``; gradients clipped to ``clip_norm``.

    ``schedule`` sets the learning rate after the warm-up, see ``schedules``. ``decay_steps`` counts all
    updates, also those of the warm-up. The metadata are the bounds for a spec's values.
    """

    lr: float = field(default=3e-4, metadata={"gt": 0})
    beta1: float = field(default=0.9, metadata={"ge": 0, "lt": 1})
    beta2: float = field(default=0.95, metadata={"ge": 0, "lt": 1})
    eps: float = field(default=1e-8, metadata={"gt": 0})
    weight_decay: float = field(default=0.1, metadata={"ge": 0})
    warmup_steps: int = field(default=10, metadata={"ge": 0})
    clip_norm: float = field(default=1.0, metadata={"gt": 0})
    schedule: Schedule = "constant"
    min_lr_ratio: float = field(default=0.0, metadata={"ge": 0, "le": 1})
    decay_steps: int | None = field(default=None, metadata={"ge": 1})

    def ending_at(self, num_steps: int | None) -> "OptimizerConfig":
        """Sets ``decay_steps`` to ``num_steps``, the whole training, if a falling schedule leaves it open."""
        if self.schedule == "constant" or self.decay_steps is not None:
            return self
        return replace(self, decay_steps=num_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Settings):
    """All that determines the arithmetic of a training on ``world_size`` ranks."""

    model: ModelConfig
    strategy: Strategy
    world_size: int
    seq_len: int
    micro_batch: int
    grad_accum: int
    precision: Precision
    seed: int
    optimizer: OptimizerConfig

    @property
    def sequences_per_step(self) -> int:
        return self.world_size * self.micro_batch * self.grad_accum

    @property
    def ranks_per_copy(self) -> int:
        """How many ranks, neighbours of each other, hold one whole optimizer state together."""
        match self.strategy:
            case "ddp":
                return 1
            case "fsdp":
                return self.shard_within or self.world_size
            case "zero1" | "zero2" | "zero3":
                return self.world_size
            case unknown:
                assert_never(unknown)

    @property
    def num_copies(self) -> int:
        """How many optimizer states all ranks hold, which are equal."""
        return self.world_size // self.ranks_per_copy

    @property
    def tokens_per_step(self) -> int:
        return self.sequences_per_step * self.seq_len

    def in_micro_batches_of(self, size: int) -> "Recipe":
        """The same step in micro-batches of ``size`` sequences, which must divide those of a rank."""
        return replace(self, micro_batch=size, grad_accum=self.micro_batch * self.grad_accum // size)

    @property
    def product_dtype(self) -> PeakDtype:
        """The dtype in which the blocks multiply, whose peak the speed is compared with."""
        return self.precision if self.fp8 == "none" else "fp8"

    def is_emulated(self, vendor: Vendor | None) -> bool:
        """Whether CPUs stand in for what the recipe computes with."""
        return self.fp8 != "none" and vendor == "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How a recipe is measured: ``steps`` steps after at least ``warmup`` steps.

    ``max_s`` shortens the window, to at least one step. After it ``profile_steps`` more steps are profiled;
    many steps of a large model would fill a rank's memory. The metadata are the bounds for a spec's values.
    """

    steps: int = field(default=100, metadata={"ge": 1})
    warmup: int = field(default=10, metadata={"ge": 0, "le": 50})
    sync: Literal["window", "step"] = "window"
    max_s: float | None = field(default=None, metadata={"gt": 0})
    cooldown_s: float = field(default=0.0, metadata={"ge": 0})
    profile_steps: int = field(default=0, metadata={"ge": 0, "le": 10})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of one cell, as a worker sees it.

    ``memory_budget_bytes`` limits how much the process may allocate above its idle state (CPU only).
    With a ``search``, the largest micro-batch that fits is found first, and then measured.
    """

    run_id: str
    recipe: Recipe
    window: Window
    vendor: Vendor
    simulated: bool = False
    may_mix_devices: bool = False
    memory_budget_bytes: int | None = None
    search: BatchSearch | None = None


def mask_row(seq_len: int) -> int:
    """How many numbers apart the rows of a mask lie: torch's efficient kernel wants a multiple of 8."""
    return -(-seq_len // 8) * 8
