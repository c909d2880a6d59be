"""What the attempts of a long run record of themselves, as data. Pure."""

from dataclasses import dataclass
from typing import Literal, SupportsFloat

IncidentKind = Literal[
    "start", "restore", "save", "skipped save", "failed save", "failure", "interruption", "warning",
    "dropped records", "stop", "restart", "give up", "alarm", "end",
]  # fmt: skip
DRIVER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAttempt:
    """Every part carries this about the attempt that it is of; ``start_step`` is None until it is known.

    ``parent_term`` is the attempt whose checkpoint it went on from; None where it began at step 0, or from
    another run's. ``leased_s`` is when the driver took the run over, by its own clock.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One finished step, as the training knows it. ``loss`` and ``grad_norm`` may still be on a device.

    ``tokens`` are this rank's own.
    """

    step: int
    position: int
    epoch: int
    tokens: int
    loss: SupportsFloat | None
    grad_norm: SupportsFloat | None = None
    learning_rate: float | None = None
    val_loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something that is worth a line of its own; what doesn't apply is None.

    A driver's ``failure`` has the newest ``step`` it heard of, and ``seconds`` since then; its ``restart``
    the seconds until the next attempt; ``stop`` has the step that was saved on request.
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
    """What a device said of itself when last looked at; None is what it doesn't tell.

    Its fields are the columns of ``samples``, in their order.
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
