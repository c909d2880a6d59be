"""How a run goes on: at which world sizes, after which failures, what rings, how long it waits; its end."""

from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import Field, model_serializer, model_validator

from jobs.alerts.rules import Bounds, Ringing
from jobs.recovery.policy import Policy
from jobs.spec_schema.file import Count, Span, Strict
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySettings(Policy):
    """The policy, and beside it ``spares``: workers that have loaded everything by the time one fails.

    ``max_attempts: 1`` never tries again.
    """

    spares: bool = True


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


# No slots: of two bases with slots Python makes no class.
@dataclass(frozen=True, kw_only=True)
class _AlarmCommand:
    """``Ringing`` as a user writes it: beside the bounds, and null where nobody is to be called."""

    command: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)] | None = None
    timeout_s: Span = 30.0

    def __post_init__(self) -> None:
        if any(without_credentials(word) != word for word in self.command or ()):
            raise ValueError(
                "command: holds an address with credentials, which all on the machine can read; put it in "
                "a variable of the driver's environment, which the command inherits"
            )

    def ringing(self) -> Ringing | None:
        return None if self.command is None else Ringing(command=self.command, timeout_s=self.timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmSettings(Bounds, _AlarmCommand):
    """The bounds, of which null never raises that alarm, and the command that is run for each alarm."""


class RunLimits(Strict):
    """``hang_timeout_s`` is the least time without a step, or a sign of a rank, that ends an attempt."""

    schedule_timeout_s: Span = 300.0
    hang_timeout_s: Span = 30.0
