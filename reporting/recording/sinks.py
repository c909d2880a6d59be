"""Sinks show a run while it trains: as TensorBoard event files in the store, and in Weights & Biases.

Both only mirror the parts, which stay authoritative. If a sink fails, the recorder records a warning and the
training goes on.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar

from checkpointing.stores.contract import Store, check_name
from reporting.recording.scalars import RecordedWindow, Scalar, Scalars

# Objects in a store can't be appended to, so each write makes a new file. The wait until the next write grows
# with the training's age by this share. So a day makes a few thousand files, not one per flush.
_OLDER_BY = 0.01
_LONGEST_WAIT_S = 60.0
# Limits what waits for an unavailable store: encoding more than this would take seconds.
_MOST_WAITING = 10_000
# Limits what waits for a slow service.
_MOST_WINDOWS = 60
_END_TIMEOUT_S = 10.0
_log = logging.getLogger(__name__)


class TensorBoard:
    """Writes scalars as event files below ``runs/<run>/events``, from time to time; readers take them by name
    order.

    An attempt's first file tells TensorBoard to discard the steps that the attempt repeats. Scalars that
    could not be written go into the next file; beyond a limit only the newest are kept.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._scalars = Scalars()
        self._waiting: list[Scalar] = []
        self._began_s: float | None = None
        self._written_s = 0.0
        self._number = 0
        self._has_begun = False

    def __call__(self, window: RecordedWindow) -> None:
        self._waiting = [*self._waiting, *self._scalars.of(window)][-_MOST_WAITING:]
        if self._waiting and (window.is_last or self._is_due(self._waiting[-1].at_s)):
            self._write(window)

    def _write(self, window: RecordedWindow) -> None:
        # The number is also used up by a failed try, because its file may exist all the same.
        self._number += 1
        events = _events(window, self._waiting, begins=not self._has_begun)
        self._store.create(self._name(window, self._waiting[0].at_s), events)
        self._has_begun, self._written_s, self._waiting = True, self._waiting[-1].at_s, []

    def _is_due(self, now_s: float) -> bool:
        if self._began_s is None:
            self._began_s = self._waiting[0].at_s
        return now_s - self._written_s >= min(_LONGEST_WAIT_S, _OLDER_BY * (now_s - self._began_s))

    def _name(self, window: RecordedWindow, at_s: float) -> str:
        attempt = window.attempt
        # TensorBoard finds its files by this word, and reads them in the order of what follows it.
        file = f"events.out.tfevents.{int(at_s):010d}.{attempt.term:05d}-{self._number:06d}"
        return check_name(f"runs/{attempt.run}/events/{file}")


def _events(window: RecordedWindow, scalars: Sequence[Scalar], *, begins: bool) -> bytes:
    with TemporaryDirectory(prefix="longhaul-") as folder:
        writer = EventsWriter(str(Path(folder) / "events"))
        if begins:
            log = SessionLog(status=SessionLog.START)
            begin = (window.attempt.start_step or 0) + 1
            writer.write_event(Event(wall_time=scalars[0].at_s, step=begin, session_log=log))
        for one in scalars:
            summary = scalar(one.tag, one.value)
            writer.write_event(Event(wall_time=one.at_s, step=one.step, summary=summary))
        writer.close()
        (path,) = Path(folder).iterdir()
        return path.read_bytes()


class WeightsAndBiases:
    """Logs all attempts of a run to one run of Weights & Biases. Its library is imported at the first window.

    Its own environment variables apply: the login, ``WANDB_MODE``, and the folder that it writes to first.
    """

    def __init__(self, *, project: str, entity: str | None) -> None:
        self._project = project
        self._entity = entity
        self._scalars = Scalars()
        self._run: Any = None

    def __call__(self, window: RecordedWindow) -> None:
        self._run = self._run or self._begin(window)
        # The step is logged as a column. W&B's own step may never go back, ours does after a restart.
        for step, scalars in groupby(self._scalars.of(window), key=lambda scalar: scalar.step):
            self._run.log({"step": step, **{scalar.tag: scalar.value for scalar in scalars}})
        if window.is_last:
            self._run.finish()

    def _begin(self, window: RecordedWindow) -> Any:
        import wandb

        attempt = window.attempt
        run = wandb.init(
            project=self._project,
            entity=self._entity,
            name=attempt.run,
            id=attempt.run,
            resume="allow",
            config=asdict(attempt),
        )
        run.define_metric("*", step_metric="step")
        return run


class InThread:
    """Runs ``sink`` in a thread of its own, so that a service that doesn't answer delays no part.

    What came while the service took its time comes to the sink as one window. Windows beyond
    ``_MOST_WINDOWS`` are dropped, except the last one. Of the sink's errors only the first is logged.
    """

    def __init__(self, sink: Callable[[RecordedWindow], None]) -> None:
        self._sink = sink
        self._windows: SimpleQueue[RecordedWindow] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=type(sink).__name__, daemon=True)
        self._has_failed = False

    def __call__(self, window: RecordedWindow) -> None:
        if not self._thread.is_alive():
            self._thread.start()
        if self._windows.qsize() < _MOST_WINDOWS or window.is_last:
            self._windows.put(window)
        if window.is_last:
            self._thread.join(_END_TIMEOUT_S)

    def _work(self) -> None:
        while True:
            window = self._windows.get()
            while not self._windows.empty():
                window = window.and_then(self._windows.get())
            try:
                self._sink(window)
            except Exception as error:
                if not self._has_failed:
                    _log.warning("%s: %s", type(self._sink).__name__, error)
                self._has_failed = True
            if window.is_last:
                return
