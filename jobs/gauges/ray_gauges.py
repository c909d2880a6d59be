"""Gives readings to Ray, whose nodes offer them to Prometheus."""

import sys
from collections.abc import Sequence
from typing import Any

from jobs.gauges.metrics import Metric, Reading


class RayGauges:
    """The gauges of one run in this process. Without a Ray that this process uses, nothing happens."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._gauges: dict[str, Any] = {}

    def publish(self, readings: Sequence[Reading]) -> None:
        # A driver without Ray must not load it for this.
        if "ray" not in sys.modules:
            return
        import ray

        if ray.is_initialized():
            for reading in readings:
                self._set(reading)

    def _set(self, reading: Reading) -> None:
        label = reading.metric.label
        tags = {"run": self._run} | ({label: reading.kind} if label else {})
        self._gauge(reading.metric).set(float(reading.value), tags=tags)

    def _gauge(self, metric: Metric) -> Any:
        from ray.util.metrics import Gauge

        if metric.name not in self._gauges:
            labels = ("run", metric.label) if metric.label else ("run",)
            self._gauges[metric.name] = Gauge(metric.name, description=metric.about, tag_keys=labels)
        return self._gauges[metric.name]
