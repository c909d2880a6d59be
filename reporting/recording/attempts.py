"""These types are what the attempts of a long run record about themselves. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Literal, SupportsFloat

IncidentKind = Literal[
    "start", "restore", "save", "skipped save", "failed save", "failure", "interruption", "warning",
    "dropped records", "stop", "restart", "give up", "alarm", "end", "replay",
]  # fmt: skip
DRIVER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAttempt:
    """Every part says this about its attempt. ``start_step`` is None until it is known.

    ``parent_term`` is the term of the attempt whose checkpoint this one resumed. It is None if the attempt
    started at step 0 or from another run's checkpoint. ``leased_s`` is when the driver got the run's lease,
    by its own clock. ``simulated`` as in the rows of a sweep. ``loss_digest`` is None if nobody knows with
    what the losses could be compared. ``attention_kernel`` is None until it is known which one runs. Parts
    of older versions say nothing of the last four.
    """

    run: str
    term: int
    leased_s: float
    group: str
    vendor: str
    model: str
    strategy: str
    world_size: int
    num_steps: int
    tokens_per_step: int
    start_step: int | None = None
    parent_term: int | None = None
    simulated: bool = False
    micro_batch: int | None = None
    loss_digest: str | None = None
    attention_kernel: str | None = None


class LossOverRanks:
    """A step's mean loss over all ranks, which is known some steps later. As a number it is NaN if it never
    was.
    """

    def __init__(self) -> None:
        self.is_known = False
        self._mean = nan

    def __float__(self) -> float:
        return self._mean

    def know(self, mean: float | None) -> None:
        """Sets the mean; None if nobody can tell it any more."""
        self._mean = nan if mean is None else mean
        self.is_known = True


class LossesBySource:
    """A step's mean loss over all ranks for each of the ``names``, which is known some steps later."""

    def __init__(self, names: Sequence[str]) -> None:
        self.is_known = False
        self.text: str | None = None
        self._names = names

    def know(self, sums: Sequence[float] | None) -> None:
        """Sets for each source in turn the sum of its losses and its number of tokens; None if nobody can
        tell them any more.
        """
        self.is_known = True
        if sums:
            pairs = zip(self._names, sums[::2], sums[1::2], strict=True)
            means = {
                name: round(total / count, 6) for name, total, count in pairs if count and isfinite(total)
            }
            self.text = json.dumps(means)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One finished step, as the training reports it. ``loss`` and ``grad_norm`` may still be on a device.

    ``tokens`` counts this rank's tokens only. A ``LossOverRanks`` may become known after the step. So may
    ``source_losses``, of a run on several sources.
    """

    step: int
    position: int
    epoch: int
    tokens: int
    loss: SupportsFloat | None
    grad_norm: SupportsFloat | None = None
    learning_rate: float | None = None
    val_loss: float | None = None
    source_losses: LossesBySource | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something that gets a line of its own in the timeline. Fields that don't apply are None. The fields are
    the columns of ``incidents``, in their order.

    A driver's ``failure`` has the newest ``step`` that the driver heard of, and the ``seconds`` since then.
    Its ``restart`` has the seconds until the next attempt. A ``stop`` has the step that was saved for the
    stop request.
    """

    kind: IncidentKind
    step: int | None = None
    seconds: float | None = None
    blocked_s: float | None = None
    num_bytes: int | None = None
    place: str | None = None
    generation: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """A sample is what a device reported when last looked at. Values that it doesn't report are None.

    The fields are the columns of ``samples``, in their order.
    """

    device: str
    utilization_pct: float | None = None
    power_watts: float | None = None
    clock_mhz: float | None = None
    temperature_c: float | None = None
    memory_bytes: int | None = None
    energy_joules: float | None = None
    power_cap_watts: float | None = None
    memory_clock_mhz: float | None = None
    memory_used_bytes: int | None = None
    throttle_reasons: str | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
