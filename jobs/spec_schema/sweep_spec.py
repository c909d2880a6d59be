"""SweepSpec, read from a YAML file (see ``file``), lists models, strategies, sizes and groups to compare."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from jobs.commandline.usage_error import nearest
from jobs.spec_schema.file import (
    RUNS,
    SEARCHED,
    SWEEPS,
    AttentionName,
    CheckpointingName,
    CompileName,
    Count,
    CrossEntropyName,
    Fp8Name,
    MicroBatch,
    Name,
    OffloadName,
    Optimizer,
    PrecisionName,
    SettingName,
    Several,
    SpecFile,
    SpecKind,
    StrategyName,
    Strict,
    VariableName,
    VariableValue,
)
from jobs.spec_schema.model import Model
from jobs.training.task.job import OptimizerConfig, Window
from jobs.training.task.presets import PRESETS, ModelConfig

AUTO = "auto"


class Axes(Strict):
    strategy: Several[StrategyName] = ("ddp",)
    world_size: Several[Count] = (1,)
    seq_len: Several[Count] = (64,)
    micro_batch: Several[MicroBatch] = (1,)
    precision: Several[PrecisionName] = ("fp32",)
    activation_checkpointing: Several[CheckpointingName] = ("none",)
    cross_entropy: Several[CrossEntropyName] = ("whole",)
    compile: Several[CompileName] = ("none",)
    attention: Several[AttentionName] = ("auto",)
    fp8: Several[Fp8Name] = ("none",)
    shard_within: Several[Count | None] = (None,)
    offload: Several[OffloadName] = ("none",)


class SweepLimits(Strict):
    """Limits of every wait. ``memory_gb_per_worker`` bounds a CPU worker's memory (1 GB = 1e9 bytes)."""

    schedule_timeout_s: Annotated[float, Field(gt=0)] = 300.0
    cell_timeout_s: Annotated[float, Field(gt=0)] = 3600.0
    hang_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    memory_gb_per_worker: Annotated[float, Field(gt=0)] | None = None
    try_anyway: bool = False


class Override(Strict):
    """The settings that one group gets differently."""

    environment: dict[VariableName, VariableValue] = Field(default_factory=dict)


class Selection(Strict):
    """A part of the grid. An axis left out stands for all its values."""

    group: Several[Name] | None = None
    model: Several[Name] | None = None
    strategy: Several[StrategyName] | None = None
    world_size: Several[Count] | None = None
    seq_len: Several[Count] | None = None
    micro_batch: Several[MicroBatch] | None = None
    precision: Several[PrecisionName] | None = None
    activation_checkpointing: Several[CheckpointingName] | None = None
    cross_entropy: Several[CrossEntropyName] | None = None
    compile: Several[CompileName] | None = None
    attention: Several[AttentionName] | None = None
    fp8: Several[Fp8Name] | None = None
    shard_within: Several[Count | None] | None = None
    offload: Several[OffloadName] | None = None


class Best(Strict):
    """What ``--best`` may choose. The axes that are not named ask for an answer to each of their values."""

    over: Several[SettingName] = SEARCHED


class SweepSpec(SpecFile):
    of: ClassVar[SpecKind] = SWEEPS
    other: ClassVar[SpecKind] = RUNS
    example: ClassVar[str] = "measure.steps=20"

    name: Name
    store: Annotated[str, Field(min_length=1)] = "results"
    groups: Several[Name] = (AUTO,)
    models: Several[Model]
    axes: Axes = Axes()
    grad_accum: Count = 1
    global_batch: Count | None = None
    best: Best = Best()
    measure: Window = Window()
    deterministic: bool = False
    repeats: Count = 5
    order: Literal["shuffled", "interleaved"] = "shuffled"
    seed: Annotated[int, Field(ge=0)] = 0
    tier: Literal["A", "B"] | None = None
    optimizer: Optimizer = OptimizerConfig()
    limits: SweepLimits = SweepLimits()
    isolation: Literal["group", "run"] = "group"
    share_nodes: bool = False
    spread: bool = False
    logging: Literal["results", "full"] = "results"
    include: tuple[Selection, ...] = ()
    exclude: tuple[Selection, ...] = ()
    overrides: dict[Name, Override] = Field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        """The spec as JSON's data, from which it can be loaded again."""
        return self.model_dump(mode="json", exclude={"grad_accum" if self.global_batch else "global_batch"})

    def group_names(self, found: Sequence[str]) -> Sequence[str]:
        """The groups to measure on. ``auto`` stands for all groups in ``found``."""
        return found if AUTO in self.groups else self.groups

    @property
    def selections(self) -> tuple[Selection, ...]:
        """The parts of the grid whose union is the sweep, before exclusions."""
        return (Selection(), *self.include)

    def values(self, selection: Selection) -> dict[str, Sequence[Any]]:
        """The values of the axes that a part of the grid names. Models stand there with their shapes."""
        values = {axis: values for axis, values in selection if values is not None}
        if selection.model is not None:
            values["model"] = [config for name in selection.model for config in self._configs(name)]
        return values

    def _configs(self, name: str) -> list[ModelConfig]:
        """The models that ``name`` stands for: a full name, or the part of it before the digest."""
        full = [model.config for model in self.models if model.config.name == name]
        short = [model.config for model in self.models if model.name == name]
        return full or short or ([PRESETS[name]] if name in PRESETS else [])

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        for model in self.models:
            if model.shape is None:
                raise ValueError(f"models: {model.missing}")
        for axis, values in [
            ("models", [model.config.name for model in self.models]),
            ("groups", self.groups),
            *((f"axes.{axis}", values) for axis, values in self.axes),
        ]:
            if len(set(values)) < len(values):
                raise ValueError(f"{axis}: {list(values)} names a value twice; name each once")
        self._check_models()
        if AUTO in self.groups and len(self.groups) > 1:
            raise ValueError("groups: 'auto' stands for all groups; name it alone")
        if AUTO not in self.groups:
            self._check_groups()
        self._check_batch()
        if self.optimizer.schedule != "constant" and self.optimizer.decay_steps is None:
            raise ValueError(
                "optimizer.decay_steps: is missing; a sweep's cells have no last step for a "
                "schedule to end at"
            )
        return self

    def _check_models(self) -> None:
        for place, selections in (("include", self.include), ("exclude", self.exclude)):
            for name in (name for selection in selections for name in selection.model or ()):
                if not self._configs(name):
                    known = list(dict.fromkeys([*(model.name for model in self.models), *PRESETS]))
                    raise ValueError(
                        f"{place}.model: {name!r} is not a model ({', '.join(known)}){nearest(name, known)}"
                    )

    def _check_batch(self) -> None:
        if self.global_batch is not None and "grad_accum" in self.model_fields_set:
            raise ValueError(
                f"global_batch: {self.global_batch} sequences per step already say what grad_accum is for "
                "each micro-batch; leave grad_accum out"
            )
        asked = [self.axes.micro_batch, *(selection.micro_batch or () for selection in self.include)]
        if self.global_batch is None and any("max" in sizes for sizes in asked):
            raise ValueError(
                "global_batch: is missing; micro_batch max needs the number of sequences per step over all "
                "devices, such as global_batch: 64, so that another micro-batch is no other training"
            )

    def _check_groups(self) -> None:
        included = [name for selection in self.include for name in selection.group or ()]
        known = list(dict.fromkeys([*self.groups, *included]))
        excluded = [("exclude.group", name) for selection in self.exclude for name in selection.group or ()]
        for place, name in [*(("overrides", name) for name in self.overrides), *excluded]:
            if name not in known:
                raise ValueError(
                    f"{place}: {name!r} is no group of this sweep ({', '.join(known)}){nearest(name, known)}"
                )
