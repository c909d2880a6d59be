"""What an attempt of a long run tells while it works: plain data. Needs neither torch nor ray.

A loss is None where it is not finite, since JSON has no word for that.
"""

from dataclasses import dataclass
from math import isfinite

from checkpointing.saving.save import SaveNote
from jobs.training.task.stop_request import StopRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """Where the attempt begins and why: ``step`` steps were done before. ``trail`` is for people."""

    step: int
    generation: str | None
    trail: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """``durable_s`` is when the newest commit was made; None before the first."""

    step: int
    num_steps: int
    loss: float | None
    tokens_per_s: float
    durable_step: int | None
    durable_s: float | None
    num_failed_saves: int
    num_skipped_saves: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """``val_loss`` is over held-out samples, after ``step`` steps."""

    step: int
    val_loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """Something to know that does not stop the training."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """All steps are done, or it was wished to end here. ``problem`` says why the end could not be saved; None
    if it is durable. ``loss`` is that of the last step, if this attempt did one.
    """

    step: int
    loss: float | None
    generation: str | None
    problem: str | None = None
    wish: StopRequest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """It was wished to end before it had loaded anything: there was nothing to save, and nothing is lost."""

    wish: StopRequest


# A note is of rank 0's share of a save.
RunEvent = Resumption | Progress | Evaluated | SaveNote | Warned | Ended | Withdrawn


def finite(value: float) -> float | None:
    return value if isfinite(value) else None
