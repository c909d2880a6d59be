"""How a run goes on: at which world sizes, after which failures, what rings, how long it waits; its end."""

from typing import Annotated, Any, Self

from pydantic import Field, model_serializer, model_validator

from jobs.alerts.rules import Bounds, Ringing
from jobs.recovery.policy import Policy
from jobs.recovery.world_size import Patience
from jobs.spec_schema.file import Count, Every, Span, Strict
from jobs.training.task.spikes import SpikeBound
from reporting.results.redaction import without_credentials


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

    ``max_attempts`` bounds those of all kinds together; ``max_attempts: 1`` never tries again. ``spares`` are
    workers that have loaded everything by then.
    """

    max_attempts: Count | None = None
    losses: Count = 10
    hangs: Count = 3
    errors: Count = 3
    step_backs: Every = 3
    patience_s: Span = 6 * 3600.0
    pause_s: Annotated[float, Field(ge=0)] = 1.0
    most_pause_s: Span = 600.0
    spares: bool = True

    def policy(self) -> Policy:
        return Policy(**self.model_dump(exclude={"spares"}))


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
