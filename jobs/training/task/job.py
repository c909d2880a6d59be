"""What one worker group is asked to measure: plain data that travels to every rank. Needs no torch."""

from dataclasses import dataclass
from typing import Literal

from cluster.inventory import Vendor
from jobs.training.task.presets import ModelConfig

Strategy = Literal["ddp", "fsdp", "zero1", "zero2", "zero3"]
Precision = Literal["fp32", "bf16"]
Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW with a linear warm-up to ``lr`` over ``warmup_steps``; gradients clipped to ``clip_norm``.

    What comes after the warm-up is ``schedule``'s, see ``schedules``; ``decay_steps`` counts all updates.
    """

    lr: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    warmup_steps: int = 10
    clip_norm: float = 1.0
    schedule: Schedule = "constant"
    min_lr_ratio: float = 0.0
    decay_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that determines the arithmetic of a training on ``world_size`` ranks."""

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
    def tokens_per_step(self) -> int:
        return self.sequences_per_step * self.seq_len


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How a recipe is measured. ``max_s`` ends the window early, after at least one step."""

    steps: int
    warmup: int
    sync: Literal["window", "step"] = "window"
    max_s: float | None = None
    cooldown_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of one cell, as a worker sees it.

    ``memory_budget_bytes`` bounds what the process may allocate above its idle state (CPU only).
    """

    run_id: str
    recipe: Recipe
    window: Window
    vendor: Vendor
    simulated: bool = False
    may_mix_devices: bool = False
    memory_budget_bytes: int | None = None
