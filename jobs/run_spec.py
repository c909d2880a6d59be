"""RunSpec: one long training; a YAML file (see ``spec_file``)."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_serializer, model_validator

from checkpointing.cadence import Cadence
from checkpointing.retention import Retention
from jobs.alarms import Bounds, Ringing, Wanted
from jobs.elastic import Batch, Patience, refusal, sizes_between
from jobs.recovery import Policy
from jobs.spec_file import (
    Count,
    ModelName,
    Name,
    Optimizer,
    PrecisionName,
    SpecFile,
    StrategyName,
    Strict,
    VariableName,
    VariableValue,
)
from jobs.training.job import Recipe
from jobs.training.models.presets import preset
from jobs.training.spikes import SpikeBound
from jobs.training.task import Recording, Saving, WandbProject
from reporting.redaction import without_credentials

Every = Annotated[int, Field(ge=0)]
Span = Annotated[float, Field(gt=0)]


class NearTokens(Strict):
    """Each node's own disk. ``dir`` null: tokens in object storage are read where they lie."""

    dir: Annotated[str, Field(min_length=1)] | None = None
    gib: Span = 50.0


class Data(Strict):
    """``samples`` make an epoch of synthetic data; ``tokens`` at ``path`` are as many as they are.

    ``tokenizer`` is what they must have been packed with: its file, its digest, or its name.
    """

    kind: Literal["synthetic", "tokens"] = "synthetic"
    samples: Count = 4096
    path: Annotated[str, Field(min_length=1)] | None = None
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    local: NearTokens = NearTokens()

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        if self.kind == "tokens" and self.path is None:
            raise ValueError("tokens need a path, such as {kind: tokens, path: tokens/books}")
        if self.kind == "tokens" and "samples" in self.model_fields_set:
            raise ValueError("samples: of tokens all are used; leave it out, or use kind: synthetic")
        if self.kind == "synthetic" and (self.path or self.tokenizer):
            raise ValueError("synthetic data has no path and no tokenizer; expected kind: tokens with them")
        return self


class NearPlace(Strict):
    """Each node's own disk. ``dir`` null: only the store is used."""

    dir: Annotated[str, Field(min_length=1)] | None = None
    every: Every = 1
    keep: Annotated[int, Field(ge=2)] = 2


class StorePlace(Strict):
    every: Every = 1


class Keeping(Strict):
    """What the store keeps besides the latest and its backup; rules add up."""

    last: Every = 10
    epochs: bool = True
    best: Every = 1
    metric: Annotated[str, Field(min_length=1)] = "val_loss"
    mode: Literal["min", "max"] = "min"
    every_s: Span | None = None
    every_steps: Count | None = None
    every_epochs: Count | None = None

    def policy(self) -> Retention:
        return Retention(**self.model_dump())


class Checkpoint(Strict):
    """``every_steps`` replaces ``every_s``."""

    every_s: Span | None = 60.0
    every_steps: Count | None = None
    on_busy: Literal["skip", "wait"] = "skip"
    deadline_s: Span = 600.0
    local: NearPlace = NearPlace()
    store: StorePlace = StorePlace()
    retention: Keeping = Keeping()


class Evaluation(Strict):
    """Every so many steps the loss on held-out samples; 0 is never."""

    every_steps: Every = 0
    samples: Count = 64


class Wandb(Strict):
    """Weights & Biases; its own variables say who is logged in, and ``WANDB_MODE`` whether it is online."""

    project: Name
    entity: Name | None = None


class Record(Strict):
    """Parquet parts in the store every ``flush_s``, which is what a crash can lose of them."""

    flush_s: Span = 10.0
    tensorboard: bool = True
    wandb: Wandb | None = None

    def policy(self) -> Recording:
        wandb = WandbProject(**self.wandb.model_dump()) if self.wandb else None
        return Recording(flush_s=self.flush_s, tensorboard=self.tensorboard, wandb=wandb)


class WorldSize(Strict):
    """``world_size: N``, or between ``min`` and ``max`` ranks. Where both are the same it is stored as N."""

    min: Count
    max: Count

    @model_validator(mode="before")
    @classmethod
    def _as_range(cls, value: object) -> object:
        if isinstance(value, dict) and {"min", "max"} <= value.keys():
            return value
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return {"min": value, "max": value}
        raise ValueError(f"found {value!r}, expected a number of ranks, or both of {{min: 1, max: 4}}")

    @model_validator(mode="after")
    def _is_range(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}; expected them the other way round")
        return self

    @model_serializer
    def _as_stored(self) -> int | dict[str, Any]:
        return self.min if self.min == self.max else {"min": self.min, "max": self.max}


class Elastic(Strict):
    """Where ``world_size`` is a range: how long a run waits for a spare before it goes on with fewer ranks,
    and how long there must have been room for more before it stops at a checkpoint to grow.
    """

    wait_for_spare_s: Annotated[float, Field(ge=0)] = 60.0
    grow_after_s: Annotated[float, Field(ge=0)] = 300.0

    def patience(self) -> Patience:
        return Patience(**self.model_dump())


class Recovery(Strict):
    """How many failures in a row without a newer checkpoint are borne, by their kind; see ``recovery``.

    ``max_attempts`` bounds those of all kinds together; ``max_attempts: 1`` never tries again.
    """

    max_attempts: Count | None = None
    losses: Count = 10
    hangs: Count = 3
    errors: Count = 3
    step_backs: Every = 3
    patience_s: Span = 6 * 3600.0
    pause_s: Annotated[float, Field(ge=0)] = 1.0
    most_pause_s: Span = 600.0

    def policy(self) -> Policy:
        return Policy(**self.model_dump())


class OnFinish(Strict):
    """``export`` is a folder for the finished model as plain files, made where the driver runs."""

    export: Annotated[str, Field(min_length=1)] | None = None


class LossGuard(Strict):
    """A loss that is not finite ends an attempt, and so does one that stays above ``spike_ratio`` times its
    recent median and far outside its noise; null: only the former.
    """

    spike_ratio: Annotated[float, Field(gt=1)] | None = 1.5

    def bound(self) -> SpikeBound | None:
        return None if self.spike_ratio is None else SpikeBound(ratio=self.spike_ratio)


class AlarmSettings(Strict):
    """See ``alarms.Bounds``; null never raises that one. ``command`` is run for each, without a shell."""

    command: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)] | None = None
    timeout_s: Span = 30.0
    min_interval_s: Annotated[float, Field(ge=0)] = 300.0
    loss_spike: Annotated[float, Field(gt=1)] | None = 2.0
    throughput_drop: Annotated[float, Field(gt=0, lt=1)] | None = 0.3
    straggler: Annotated[float, Field(gt=0)] | None = 0.5
    stale_checkpoint: Annotated[float, Field(ge=1)] | None = 3.0
    utilization_pct: Annotated[float, Field(gt=0, lt=100)] | None = 30.0

    @model_validator(mode="after")
    def _keeps_secrets(self) -> Self:
        if any(without_credentials(word) != word for word in self.command or ()):
            raise ValueError(
                "command: holds an address with credentials, which all on the machine can read; put it in "
                "a variable of the driver's environment, which the command inherits"
            )
        return self

    def bounds(self) -> Bounds:
        return Bounds(**self.model_dump(exclude={"command", "timeout_s"}))

    def ringing(self) -> Ringing | None:
        return None if self.command is None else Ringing(command=self.command, timeout_s=self.timeout_s)


class RunLimits(Strict):
    """``hang_timeout_s`` is the least time without a step, or a sign of a rank, that ends an attempt."""

    schedule_timeout_s: Span = 300.0
    hang_timeout_s: Span = 30.0


class RunSpec(SpecFile):
    kind: ClassVar[str] = "run"
    example: ClassVar[str] = "steps=40"

    name: Name
    store: Annotated[str, Field(min_length=1)] = "results"
    model: ModelName
    strategy: StrategyName = "ddp"
    world_size: WorldSize = WorldSize(min=1, max=1)
    elastic: Elastic = Elastic()
    group: Name = "local"
    spread: bool = False
    precision: PrecisionName = "fp32"
    seq_len: Count = 64
    micro_batch: Count = 1
    grad_accum: Count = 1
    steps: Count | None = None
    epochs: Count | None = None
    weights: Annotated[str, Field(min_length=1)] | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    mode: Literal["train", "benchmark"] = "train"
    data: Data = Data()
    optimizer: Optimizer = Optimizer()
    checkpoint: Checkpoint = Checkpoint()
    eval: Evaluation = Evaluation()
    guard: LossGuard = LossGuard()
    on_finish: OnFinish = OnFinish()
    record: Record = Record()
    recovery: Recovery = Recovery()
    alarms: AlarmSettings = AlarmSettings()
    limits: RunLimits = RunLimits()
    environment: dict[VariableName, VariableValue] = Field(default_factory=dict)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The world sizes that it may run at, ascending; at each a step has the same samples."""
        return sizes_between(self.world_size.min, self.world_size.max, self._batch)

    @property
    def _batch(self) -> Batch:
        return Batch(
            sequences=self.world_size.max * self.micro_batch * self.grad_accum,
            micro_batch=self.micro_batch,
            eval_samples=self.eval.samples if self.eval.every_steps else 0,
        )

    def num_steps(self, num_samples: int) -> int:
        """Where so many samples make an epoch: of ``epochs`` the steps that are whole."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return self.epochs * num_samples // self._batch.sequences

    def recipe(self, world_size: int | None = None, *, num_steps: int | None = None) -> Recipe:
        """At one of its ``sizes``, by default the largest. ``num_steps`` are those of the whole training, at
        which a schedule ends that says nothing of it.
        """
        size = world_size or self.world_size.max
        return Recipe(
            model=preset(self.model),
            strategy=self.strategy,
            world_size=size,
            seq_len=self.seq_len,
            micro_batch=self.micro_batch,
            grad_accum=self._batch.grad_accum(size),
            precision=self.precision,
            seed=self.seed,
            optimizer=self.optimizer.config(num_steps=num_steps),
        )

    @property
    def is_kept(self) -> bool:
        """Else nothing of it is written anywhere: no save, no record, no log."""
        return self.mode != "benchmark"

    def recording(self) -> Recording:
        return self.record.policy() if self.is_kept else Recording(tensorboard=False)

    def saving(self) -> Saving | None:
        if not self.is_kept:
            return None
        checkpoint, local = self.checkpoint, self.checkpoint.local
        return Saving(
            cadence=Cadence(
                every_s=checkpoint.every_s,
                every_steps=checkpoint.every_steps,
                disk_every=local.every if local.dir else 0,
                store_every=checkpoint.store.every,
                on_busy=checkpoint.on_busy,
            ),
            retention=checkpoint.retention.policy(),
            disk=local.dir,
            disk_keep=local.keep,
            deadline_s=checkpoint.deadline_s,
        )

    def wanted(self) -> Wanted:
        """How often something is to be newly durable in the store."""
        saving = self.saving()
        if saving is None:
            return Wanted(every_s=None, every_steps=None)
        every_s, every_steps, times = (
            saving.cadence.every_s, saving.cadence.every_steps, saving.cadence.store_every,
        )  # fmt: skip
        return Wanted(
            every_s=None if every_s is None else every_s * times,
            every_steps=None if every_steps is None else every_steps * times,
        )

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.steps is None and self.epochs is None:
            raise ValueError("steps: is missing; say how long to train, by steps: N or by epochs: N")
        if self.steps is not None and self.epochs is not None:
            raise ValueError("epochs: and steps exclude each other; give one (--set steps= takes it away)")
        if reason := refusal(self.world_size.min, self.world_size.max, self._batch):
            raise ValueError(reason)
        longest = preset(self.model).max_seq_len
        if self.seq_len > longest:
            raise ValueError(f"seq_len: {self.seq_len} is longer than {self.model} can take ({longest})")
        return self
