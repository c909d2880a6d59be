"""What an alarm sets off: a line, a record in the store, and the user's command if there is one.

Records and commands are a thread's of its own, so that neither a store that is away nor a command that hangs
holds the driver up. What fails is said, and costs the training nothing.
"""

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Self

from jobs.alarms import Alarm, Alarms, Ringing
from jobs.recovery import Cause
from jobs.sessions import Beat
from jobs.training.events import Told
from jobs.training.task import Task
from jobs.words import Words
from reporting.attempts import Incident
from reporting.redaction import without_credentials

_MOST_WAITING = 16
_END_TIMEOUT_S = 10.0
_MOST_SAID = 200


class Bell:
    """Used as a context; its end gives what is under way a moment, no more. ``say`` prints a line."""

    def __init__(
        self, alarms: Alarms, ringing: Ringing | None, words: Words, say: Callable[[str], None]
    ) -> None:
        self._alarms = alarms
        self._ringing = ringing
        self._words = words
        self._say = say
        self._task: Task | None = None
        self._waiting: queue.Queue[tuple[Task, Alarm, float] | None] = queue.Queue(_MOST_WAITING)
        self._running: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._work, name="bell", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(_END_TIMEOUT_S)
        if self._running is not None:
            _kill(self._running)

    def begins(self, task: Task) -> None:
        """Its alarms are this attempt's from here on."""
        self._task = task
        self._alarms.begins()

    def hear(self, told: Told | Beat) -> None:
        self._ring(self._alarms.hear(told, time.monotonic()))

    def failed(self, cause: Cause, reason: str) -> None:
        """An attempt did. Of a loss that went wrong its workers know first, and tell it by ending."""
        self._alarms.failed(time.monotonic())
        if cause == "invalid loss":
            self._ring(self._alarms.invalid_loss(without_credentials(reason), time.monotonic()))

    def look(self) -> None:
        """Often, while the driver waits for something."""
        self._ring(self._alarms.look(time.monotonic()))

    def given_up(self, reason: str) -> None:
        self._ring(self._alarms.given_up(without_credentials(reason), time.monotonic()))

    def _ring(self, alarms: Sequence[Alarm]) -> None:
        for alarm in alarms:
            self._say(f"alarm: {alarm.kind}: {alarm.text}")
            if self._task is None or alarm.is_over:
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
                # Such as a text that no variable can hold. The next alarm must still be carried out.
                self._say(f"alarm: it could not be carried out: {error}")

    def _carry_out(self, task: Task, alarm: Alarm, now_s: float) -> None:
        """The store may be what is wrong, and holds up whoever writes to it for a while: it comes last."""
        if self._ringing is not None:
            self._call(self._ringing, facts_of(task, alarm, now_s))
        incident = Incident(kind="alarm", step=alarm.step, text=f"{alarm.kind}: {alarm.text}")
        self._words.leave(task.described(), incident, now_s=now_s)

    def _call(self, ringing: Ringing, facts: Mapping[str, Any]) -> None:
        try:
            self._running = subprocess.Popen(
                list(ringing.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**os.environ, **_variables(facts)},
                # Ctrl-C is for the training, and a command that hangs is ended with all that it started.
                start_new_session=True,
            )
            _, told = self._running.communicate(json.dumps(facts), timeout=ringing.timeout_s)
            if self._running.returncode != 0:
                self._say(f"alarm: its command ended with {self._running.returncode}{_last_line(told)}")
        except OSError as error:
            self._say(f"alarm: its command can't be run: {error.strerror}")
        except subprocess.TimeoutExpired:
            _kill(self._running)
            self._say(f"alarm: its command was ended after {ringing.timeout_s:g} s")
        finally:
            self._running = None


def facts_of(task: Task, alarm: Alarm, now_s: float) -> dict[str, Any]:
    """What a command reads on its standard input, as JSON."""
    about = {name: value for name, value in asdict(alarm).items() if name != "is_over"}
    store = without_credentials(task.store)
    return {"run": task.run, "store": store, "attempt": task.term, "at_s": now_s, **about}


def _variables(facts: Mapping[str, Any]) -> dict[str, str]:
    names = ("run", "store", "attempt", "step", "kind", "text")
    return {f"LONGHAUL_ALARM_{name.upper()}": str(facts[name]) for name in names}


def _last_line(told: str) -> str:
    lines = without_credentials(told).strip().splitlines()
    return f": {lines[-1][:_MOST_SAID]}" if lines else ""


def _kill(process: "subprocess.Popen[str] | None") -> None:
    if process is not None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
