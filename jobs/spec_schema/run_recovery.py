"""The keys about recovery: groups, world sizes, failures, alarms, waiting times, and the end of a run."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    model_serializer,
    model_validator,
)

from cluster.inventory import WorkerGroup
from jobs.alerts.rules import Bounds, Ringing
from jobs.recovery.policy import Policy
from jobs.spec_schema.file import Count, Name, Several, Span, Strict
from jobs.training.task.spikes import SpikeBound
from reporting.results.redaction import without_credentials


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{twice!r} is named twice; expected each group once, the preferred one first")
    return names


def _as_stored(names: tuple[str, ...]) -> str | list[str]:
    return names[0] if len(names) == 1 else list(names)


# ``group: NAME``, or several of them, the preferred one first. A single one is stored as its name.
Groups = Annotated[Several[Name], AfterValidator(_each_once), PlainSerializer(_as_stored)]


class WorldSize(Strict):
    """``world_size: N``, or between ``min`` and ``max`` ranks. If both are equal, N is stored."""

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


def _spares(value: object) -> object:
    if isinstance(value, bool) or value == "devices":
        return value
    raise ValueError(f"found {value!r}, expected true, false or devices")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySettings(Policy):
    """The recovery policy, plus ``spares``: idle processes with everything loaded, ready if a worker fails.

    With True only runs on CPUs have spares, with ``devices`` all runs. ``max_attempts: 1`` means that a run
    is never retried.
    """

    spares: Annotated[bool | Literal["devices"], BeforeValidator(_spares)] = True

    def keeps_spares(self, group: WorkerGroup) -> bool:
        """Whether a run on ``group`` has spares, as far as its spec decides.

        Until ``make gpu`` has shown on a device that forked workers can use it, that has to be asked for.
        """
        is_wanted = self.spares == "devices" or (self.spares and group.vendor == "cpu")
        return is_wanted and self.max_attempts != 1


class OnFinish(Strict):
    """``export`` is a folder for the finished model as plain files. It is created on the driver's machine."""

    export: Annotated[str, Field(min_length=1)] | None = None


class LossGuard(Strict):
    """Ends an attempt if a loss is not finite or spikes, or if ranks do not compute alike.

    A loss spikes if it stays above ``spike_ratio`` times its recent median and far outside its noise. With
    ``spike_ratio`` null only the first check is made. ``check_every_steps`` or ``check_every_s`` compares
    what ranks compute, see ``jobs.training.integrity``; 0 and null mean never.
    """

    spike_ratio: Annotated[float, Field(gt=1)] | None = 1.5
    check_every_steps: Annotated[int, Field(ge=0)] = 0
    check_every_s: Span | None = None

    @model_validator(mode="after")
    def _has_one_cadence(self) -> Self:
        if self.check_every_steps and self.check_every_s is not None:
            raise ValueError("check_every_s and check_every_steps exclude each other; give one")
        return self

    def bound(self) -> SpikeBound | None:
        return None if self.spike_ratio is None else SpikeBound(ratio=self.spike_ratio)


# No slots: Python can't combine two base classes with slots.
@dataclass(frozen=True, kw_only=True)
class _AlarmCommand:
    """The keys of ``Ringing`` in a spec, beside the bounds. With ``command`` null no command is run."""

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
    """The bounds and the command that is run for each alarm. A bound of null switches its alarm off."""


class RunLimits(Strict):
    """``hang_timeout_s`` is the shortest time without a step or a sign of a rank that ends an attempt."""

    schedule_timeout_s: Span = 300.0
    hang_timeout_s: Span = 30.0
