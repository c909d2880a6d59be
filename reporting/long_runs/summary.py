"""A summary is what a report knows of one long run. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from reporting.long_runs.recoveries import Recovery
from reporting.long_runs.stretches import Stretch
from reporting.recording.read_data import ReadSource


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRun:
    """A training, summarised from its parts. Step lists hold surviving steps in order, downsampled for
    drawing.

    ``phases`` are seconds per phase of the goodput ledger; ``goodput`` is productive over wall time.
    Incidents are (seconds since the run's first start, kind, text). Traces are (seconds, value); power and
    clock have one trace per device. ``source_losses`` are the mean losses of a mixture's sources over their
    newest steps. ``stretches`` are the turns of groups, in order, and ``group`` is the last one's.
    ``data`` are the tokens that the last driver found, a source each. ``attention_kernel`` is
    the last attempt's, if that is known.
    """

    name: str
    group: str
    vendor: str | None
    model: str
    strategy: str
    world_size: int
    num_steps: int
    num_superseded: int
    tokens_per_sec: float | None
    simulated: bool = False
    attention_kernel: str | None = None
    steps: tuple[int, ...] = ()
    losses: tuple[float | None, ...] = ()
    val_steps: tuple[int, ...] = ()
    val_losses: tuple[float, ...] = ()
    source_losses: Mapping[str, float] = field(default_factory=dict)
    wall_sec: float | None = None
    goodput: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    goodput_trace: tuple[tuple[float, float], ...] = ()
    incidents: tuple[tuple[float, str, str], ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    power_watts: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    clock_mhz: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    data: tuple[ReadSource, ...] = ()
