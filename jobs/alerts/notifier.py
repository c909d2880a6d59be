"""The notifier: prints a line for each alarm, records it in the store, and runs the user's alert command.

A thread of its own writes records and runs commands. So neither a store that is away nor a command that hangs
blocks the driver. A failure is printed and costs the training nothing.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Self

from jobs.alerts.command import Caller, facts_of
from jobs.alerts.rules import Alarm, Alarms, Ringing
from jobs.alerts.slow_hosts import LinksTried
from jobs.execution.causes import Cause
from jobs.execution.messages import Heartbeat
from jobs.run_progress.incident_outbox import IncidentOutbox
from jobs.training.task.events import RunEvent
from jobs.training.task.task import Task
from reporting.recording.attempts import Incident
from reporting.results.redaction import without_credentials

_MOST_WAITING = 16
_END_TIMEOUT_S = 10.0


class Notifier:
    """The notifier of one driver. Used as a context; its end gives alarms under way a moment, no more.

    ``say`` prints a line. ``run`` and ``store`` are what an alarm is about. ``newest_term`` is the attempt
    before this driver's first one: alarms until then are reported as that attempt's, and leave no record.
    """

    def __init__(
        self,
        alarms: Alarms,
        ringing: Ringing | None,
        outbox: IncidentOutbox,
        say: Callable[[str], None],
        *,
        run: str,
        store: str,
        newest_term: int,
    ) -> None:
        self._alarms = alarms
        self._caller = None if ringing is None else Caller(ringing, say)
        self._outbox = outbox
        self._say = say
        self._run = run
        self._store = store
        self._newest_term = newest_term
        self._task: Task | None = None
        self._waiting: queue.Queue[tuple[Task | None, Alarm, float] | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._work, name="longhaul-alerts", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(_END_TIMEOUT_S)
        if self._caller is not None:
            self._caller.end()

    def begins(self, task: Task) -> None:
        """From here on alarms belong to this attempt."""
        self._task = task
        self._alarms.begins()

    def hear(self, message: RunEvent | Heartbeat | LinksTried) -> None:
        self._ring(self._alarms.hear(message, time.monotonic()))

    def failed(self, cause: Cause, reason: str) -> None:
        """An attempt failed. What workers report by ending becomes an alarm here: a bad loss, corruption."""
        self._alarms.failed(time.monotonic())
        if cause == "invalid loss":
            self._ring(self._alarms.invalid_loss(without_credentials(reason), time.monotonic()))
        if cause == "corruption":
            self._ring(self._alarms.corruption(without_credentials(reason), time.monotonic()))

    def look(self) -> None:
        """Looks for alarms that time alone raises. Call it often while the driver waits for something."""
        self._ring(self._alarms.look(time.monotonic()))

    def given_up(self, reason: str) -> None:
        self._ring(self._alarms.given_up(without_credentials(reason), time.monotonic()))

    def _ring(self, alarms: Sequence[Alarm]) -> None:
        for alarm in alarms:
            self._say(f"alarm: {alarm.kind}: {alarm.text}")
            if alarm.is_over:
                continue
            try:
                self._waiting.put_nowait((self._task, alarm, time.time()))
            except queue.Full:
                self._say("alarm: the last ones are still under way, so this one is only said")

    def _work(self) -> None:
        while (found := self._waiting.get()) is not None:
            try:
                self._carry_out(*found)
            except Exception as error:
                # The next alarm must still be carried out.
                self._say(f"alarm: it could not be carried out: {error}")

    def _carry_out(self, task: Task | None, alarm: Alarm, now_s: float) -> None:
        """Runs the command first and writes the record last: the store may be away and block its writer for a
        while.
        """
        if self._caller is not None:
            term = self._newest_term if task is None else task.term
            about = facts_of(alarm, run=self._run, store=self._store, attempt=term, at_s=now_s)
            self._caller.call(about)
        if task is not None:
            incident = Incident(kind="alarm", step=alarm.step, text=f"{alarm.kind}: {alarm.text}")
            self._outbox.leave(task.as_recorded(), incident, now_s=now_s)
