"""Scalars are the curves that people watch while a run trains, made from one flush at a time. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from reporting.recording.attempts import RecordedAttempt

_PER_STEP = {
    "loss": "train/loss",
    "val_loss": "train/val_loss",
    "grad_norm": "train/grad_norm",
    "learning_rate": "train/learning_rate",
}
_PER_SAMPLE = {
    "utilization_pct": "device/utilization_pct",
    "power_watts": "device/power_watts",
    "memory_bytes": "device/memory_bytes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedWindow:
    """The rows that one rank recorded between two flushes, by table. ``is_last`` marks the recorder's final
    flush.
    """

    attempt: RecordedAttempt
    rows: Mapping[str, Sequence[dict[str, Any]]] = field(default_factory=dict)
    is_last: bool = False

    def of(self, table: str) -> Sequence[dict[str, Any]]:
        return self.rows.get(table, ())

    def and_then(self, later: "RecordedWindow") -> "RecordedWindow":
        tables = dict.fromkeys([*self.rows, *later.rows])
        return replace(later, rows={table: [*self.of(table), *later.of(table)] for table in tables})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """One point of a curve. ``at_s`` is in seconds since 1970."""

    tag: str
    step: int
    at_s: float
    value: float


class Scalars:
    """Turns one rank's windows, given in order, into scalars. Rates per second need the end of the window
    before.
    """

    def __init__(self) -> None:
        self._ended_s: float | None = None
        self._durable_s: float | None = None

    def of(self, window: RecordedWindow) -> list[Scalar]:
        for incident in window.of("incidents"):
            if incident["kind"] == "save" and incident["place"] == "store":
                self._durable_s = incident["happened_s"]
        steps = window.of("steps")
        if not steps:
            return []
        found = [
            Scalar(tag=tag, step=row["step"], at_s=row["ended_s"], value=row[name])
            for row in steps
            for name, tag in _PER_STEP.items()
            if row[name] is not None
        ]
        step, at_s = steps[-1]["step"], steps[-1]["ended_s"]
        now = {"train/tokens_per_s": self._tokens_per_s(window.attempt, steps), **self._state(window, at_s)}
        return found + [
            Scalar(tag=tag, step=step, at_s=at_s, value=value)
            for tag, value in now.items()
            if value is not None
        ]

    def _tokens_per_s(self, attempt: RecordedAttempt, steps: Sequence[dict[str, Any]]) -> float | None:
        """Returns the rate over all ranks, by wall-clock time."""
        since_s = steps[0]["ended_s"] - steps[0]["step_s"] if self._ended_s is None else self._ended_s
        self._ended_s = steps[-1]["ended_s"]
        seconds = self._ended_s - since_s
        return attempt.tokens_per_step * len(steps) / seconds if seconds > 0 else None

    def _state(self, window: RecordedWindow, at_s: float) -> dict[str, float | None]:
        newest = window.of("samples")[-1:]
        found = {tag: row[name] for row in newest for name, tag in _PER_SAMPLE.items()}
        age_s = None if self._durable_s is None else max(0.0, at_s - self._durable_s)
        return {**found, "checkpoint/age_s": age_s}
