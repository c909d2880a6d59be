"""RunSpec describes one long training. It is read from a YAML file (see ``file``)."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from jobs.alerts.rules import Wanted
from jobs.recovery.world_size import DividedBatch, ResizeWaits, refusal, sizes_between
from jobs.spec_schema.combinations import impossible
from jobs.spec_schema.file import (
    RUNS,
    SWEEPS,
    AttentionName,
    CheckpointingName,
    CompileName,
    Count,
    CrossEntropyName,
    Fp8Name,
    Name,
    OffloadName,
    Optimizer,
    PrecisionName,
    SpecFile,
    SpecKind,
    StrategyName,
    VariableName,
    VariableValue,
)
from jobs.spec_schema.model import Model
from jobs.spec_schema.run_checkpoints import Checkpoint, RecordSettings
from jobs.spec_schema.run_data import Data, EvaluationSettings
from jobs.spec_schema.run_recovery import (
    AlarmSettings,
    Groups,
    LossGuard,
    OnFinish,
    RecoverySettings,
    RunLimits,
    WorldSize,
)
from jobs.training.data.shard_cache import folder_conflict
from jobs.training.task.job import OptimizerConfig, Recipe
from jobs.training.task.task import Recording, Saving
from reporting.results.settings import settings_of


class RunSpec(SpecFile):
    of: ClassVar[SpecKind] = RUNS
    other: ClassVar[SpecKind] = SWEEPS
    example: ClassVar[str] = "steps=40"

    name: Name
    store: Annotated[str, Field(min_length=1)] = "results"
    model: Model
    strategy: StrategyName = "ddp"
    world_size: WorldSize = WorldSize(min=1, max=1)
    elastic: ResizeWaits = ResizeWaits()
    group: Groups = ("local",)
    spread: bool = False
    precision: PrecisionName = "fp32"
    activation_checkpointing: CheckpointingName = "none"
    cross_entropy: CrossEntropyName = "whole"
    compile: CompileName = "none"
    attention: AttentionName = "auto"
    fp8: Fp8Name = "none"
    shard_within: Count | None = None
    offload: OffloadName = "none"
    deterministic: bool = False
    seq_len: Count = 64
    micro_batch: Count = 1
    grad_accum: Count = 1
    steps: Count | None = None
    epochs: Count | None = None
    weights: Annotated[str, Field(min_length=1)] | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    mode: Literal["train", "benchmark"] = "train"
    data: Data = Data()
    optimizer: Optimizer = OptimizerConfig()
    checkpoint: Checkpoint = Checkpoint()
    eval: EvaluationSettings = EvaluationSettings()
    guard: LossGuard = LossGuard()
    on_finish: OnFinish = OnFinish()
    record: RecordSettings = RecordSettings()
    recovery: RecoverySettings = RecoverySettings()
    alarms: AlarmSettings = AlarmSettings()
    limits: RunLimits = RunLimits()
    environment: dict[VariableName, VariableValue] = Field(default_factory=dict)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The world sizes at which the run may train, ascending. A step has the same samples at each."""
        return sizes_between(self.world_size.min, self.world_size.max, self._batch)

    @property
    def _batch(self) -> DividedBatch:
        return DividedBatch(
            sequences=self.world_size.max * self.micro_batch * self.grad_accum,
            micro_batch=self.micro_batch,
            eval_samples=self.eval.samples if self.eval.every_steps else 0,
        )

    def num_steps(self, num_samples: int) -> int:
        """The number of steps of the run. ``num_samples`` make an epoch; a last partial step is dropped."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return self.epochs * num_samples // self._batch.sequences

    def recipe(self, world_size: int | None = None, *, num_steps: int | None = None) -> Recipe:
        """The recipe at one of the ``sizes``, by default the largest.

        ``num_steps`` is the length of the whole training. A schedule without its own end stops there.
        """
        size = world_size or self.world_size.max
        return Recipe(
            model=self.model.config,
            strategy=self.strategy,
            world_size=size,
            seq_len=self.seq_len,
            micro_batch=self.micro_batch,
            grad_accum=self._batch.grad_accum(size),
            precision=self.precision,
            seed=self.seed,
            optimizer=self.optimizer.ending_at(num_steps),
            **settings_of(self),
        )

    @property
    def is_kept(self) -> bool:
        """False in benchmark mode, where nothing is written: no save, no record, no log."""
        return self.mode != "benchmark"

    def recording(self) -> Recording:
        return self.record.policy() if self.is_kept else Recording(tensorboard=False)

    def saving(self) -> Saving | None:
        return self.checkpoint.saving() if self.is_kept else None

    def wanted(self) -> Wanted:
        """How often a new generation must become durable in the store."""
        return self.checkpoint.wanted() if self.is_kept else Wanted(every_s=None, every_steps=None)

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.steps is None and self.epochs is None:
            raise ValueError("steps: is missing; say how long to train, by steps: N or by epochs: N")
        if self.steps is not None and self.epochs is not None:
            raise ValueError("epochs: and steps exclude each other; give one (--set steps= takes it away)")
        if reason := refusal(self.world_size.min, self.world_size.max, self._batch):
            raise ValueError(reason)
        if self.eval.path is not None and self.data.kind == "synthetic":
            raise ValueError("eval.path: is for tokens; leave it out, or use data: {kind: tokens}")
        cache, saves = self.data.local.dir, self.checkpoint.local.dir
        if cache and saves and (reason := folder_conflict(cache, saves)):
            raise ValueError(reason)
        for found in impossible(self.recipe(), self.sizes) if self.model.shape else ():
            raise ValueError(f"{found.key}: {found.reason}")
        return self
