"""The metrics of a run, each with the label ``run``. Prometheus sees ``PREFIX`` before their names. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

# Ray puts it before the names of all metrics.
PREFIX = "ray_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """``label`` is a label beside ``run``, if there is one."""

    name: str
    about: str
    label: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The value of a metric now; ``kind`` is the value of its label."""

    metric: Metric
    value: float
    kind: str | None = None


STEP = Metric(name="longhaul_step", about="Optimizer steps done")
NUM_STEPS = Metric(name="longhaul_steps_wanted", about="Optimizer steps of the whole run")
LOSS = Metric(name="longhaul_loss", about="Training loss of the newest step, the mean over all ranks")
TOKENS_PER_S = Metric(
    name="longhaul_tokens_per_second", about="Tokens per second over all ranks; 0: none trains"
)
DATA_WAIT = Metric(
    name="longhaul_data_wait_ratio", about="Share of the time that rank 0 waits for samples; 0: none trains"
)
MFU = Metric(
    name="longhaul_mfu_ratio", about="Model FLOPs over the devices' peak; only where the peak is known"
)
STAGE = Metric(name="longhaul_stage", about="1 for the stage that the run is in, else 0", label="stage")
DURABLE_AGE_S = Metric(name="longhaul_durable_age_seconds", about="Age of the newest checkpoint in the store")
STEPS_AT_RISK = Metric(name="longhaul_steps_at_risk", about="Steps that a crash would cost now")
PHASE_S = Metric(
    name="longhaul_phase_seconds",
    about="How this driver's time was spent so far, looked at as rank 0 tells it",
    label="phase",
)
RESTARTS = Metric(
    name="longhaul_restarts", about="Attempts that this driver has seen fail, by cause", label="cause"
)
FAILED_SAVES = Metric(name="longhaul_failed_saves", about="Saves of this attempt that failed")
SLOWEST_RANK = Metric(name="longhaul_slowest_rank", about="The rank that takes longest for the same product")
SLOWEST_RATIO = Metric(
    name="longhaul_slowest_rank_ratio", about="That rank's time for the product over the others' median"
)
WATTS = Metric(name="longhaul_power_watts", about="Power of all devices that tell it, together")

METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        STEP, NUM_STEPS, LOSS, TOKENS_PER_S, DATA_WAIT, MFU, STAGE, DURABLE_AGE_S, STEPS_AT_RISK, PHASE_S,
        RESTARTS, FAILED_SAVES, SLOWEST_RANK, SLOWEST_RATIO, WATTS,
    )
}  # fmt: skip
