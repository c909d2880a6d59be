"""The events that an attempt of a long run reports while it works: plain data. Needs neither torch nor ray.

A loss that is not finite is None, since JSON has no number for it.
"""

from dataclasses import dataclass
from math import isfinite

from checkpointing.saving.save import SaveNote
from jobs.training.task.stop_request import StopRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """The attempt begins after ``step`` steps. ``trail`` tells people why this generation was chosen."""

    step: int
    generation: str | None
    trail: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The state after ``step`` steps. ``durable_s`` is the newest commit's time; None before the first.

    ``tokens_per_s`` is None if nobody says how many tokens a step has. ``data_wait_share`` is rank 0's share
    of the time since the last report in which it had no samples yet; None if nobody measures that.
    """

    step: int
    num_steps: int
    loss: float | None
    tokens_per_s: float | None
    durable_step: int | None
    durable_s: float | None
    num_failed_saves: int
    num_skipped_saves: int
    data_wait_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """An evaluation after ``step`` steps; ``val_loss`` is the loss on held-out samples."""

    step: int
    val_loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A step was done again after a restore. ``text`` says how its loss compares with the recorded one;
    ``agrees``: by no more than the bound.
    """

    step: int
    text: str
    agrees: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """After ``step`` steps all ``num_ranks`` ranks computed alike. ``is_first``: of the attempt's checks."""

    step: int
    num_ranks: int
    is_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """A warning for people; the training goes on."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The attempt ended because all steps are done or because of ``stop_request``.

    ``problem`` says why the end could not be saved; None if it is durable. ``loss`` is the last step's; None
    if this attempt did no step.
    """

    step: int
    loss: float | None
    generation: str | None
    problem: str | None = None
    stop_request: StopRequest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """A stop request came before the attempt had loaded anything: nothing to save, and nothing is lost."""

    stop_request: StopRequest


# A ``SaveNote`` here is about rank 0's share of a save.
RunEvent = Resumption | Progress | Evaluated | SaveNote | Replayed | Checked | Warned | Ended | Withdrawn


def finite_or_none(value: float) -> float | None:
    return value if isfinite(value) else None
