"""The figures of a snapshot in Prometheus' text format, under the names that they have through Ray.

A figure that is unknown, not finite or no number is left out, as are those that only the driver knows.
"""

from collections.abc import Iterator
from math import isfinite
from typing import Any, get_args

from jobs.gauges.metrics import (
    DATA_WAIT,
    DURABLE_AGE_S,
    LOSS,
    NUM_STEPS,
    PREFIX,
    STAGE,
    STEP,
    STEPS_AT_RISK,
    TOKENS_PER_S,
    Metric,
)
from jobs.run_progress.run_state import Stage
from jobs.watching.snapshot import Snapshot

KIND = "text/plain; version=0.0.4; charset=utf-8"
_STAGES: tuple[str, ...] = (*get_args(Stage), "silent")
_KEYS = {
    STEP: "step",
    NUM_STEPS: "num_steps",
    LOSS: "loss",
    TOKENS_PER_S: "tokens_per_s",
    DATA_WAIT: "data_wait_share",
    DURABLE_AGE_S: "newest_durable_age_s",
    STEPS_AT_RISK: "steps_at_risk",
}
_WHILE_TRAINING = (TOKENS_PER_S, DATA_WAIT)


def exposition(snapshot: Snapshot) -> str:
    """The metrics of a run; none of a sweep, and none before the store has answered."""
    status = snapshot.status.value if snapshot.kind == "run" else None
    return "".join(_lines(snapshot.name, status, snapshot.stage)) if status else ""


def _lines(run: str, status: dict[str, Any], stage: str | None) -> Iterator[str]:
    for metric, key in _KEYS.items():
        # What was reported last is no speed any more, and nobody waits for data.
        value = status.get(key) if stage == "training" or metric not in _WHILE_TRAINING else 0.0
        if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
            yield _head(metric)
            yield f'{PREFIX}{metric.name}{{run="{_quoted(run)}"}} {float(value)!r}\n'
    yield _head(STAGE)
    for name in _STAGES:
        labels = f'run="{_quoted(run)}",{STAGE.label}="{name}"'
        yield f"{PREFIX}{STAGE.name}{{{labels}}} {float(name == stage)!r}\n"


def _head(metric: Metric) -> str:
    return f"# HELP {PREFIX}{metric.name} {metric.about}\n# TYPE {PREFIX}{metric.name} gauge\n"


def _quoted(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
