"""Passes a run's gauges on every few seconds, in a thread of its own. What goes wrong there costs no step."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

from jobs.gauges.metrics import Reading
from jobs.gauges.run_gauges import RunGauges

_EVERY_S = 5.0
_END_TIMEOUT_S = 2.0
_log = logging.getLogger(__name__)


class Emitter:
    """Used as a context. ``publish`` may raise and may hang; the first error is logged."""

    def __init__(
        self,
        gauges: RunGauges,
        publish: Callable[[Sequence[Reading]], None],
        *,
        every_s: float = _EVERY_S,
    ) -> None:
        self._gauges = gauges
        self._publish = publish
        self._every_s = every_s
        self._has_failed = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, name="gauges", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """The last values get a moment, no more."""
        self._done.set()
        self._thread.join(_END_TIMEOUT_S)

    def _work(self) -> None:
        while not self._done.wait(self._every_s):
            self._emit()
        self._emit()

    def _emit(self) -> None:
        try:
            self._publish(self._gauges.readings(time.monotonic(), time.time()))
        except Exception as error:
            if not self._has_failed:
                _log.warning("metrics for Prometheus: %s: %s", type(error).__name__, error)
            self._has_failed = True
