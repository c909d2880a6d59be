"""Prints how a long run goes: a line per event, and every few seconds a status line.

In a terminal the status line is redrawn in place. Elsewhere each status is a new line, as ``ray job submit``
streams it.
"""

import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Self, TextIO

from checkpointing.saving.save import SaveNote
from jobs.run_progress.run_state import GOING_ON, LastStep, RunState, Stage
from jobs.training.task.events import (
    Checked,
    Ended,
    Evaluated,
    Progress,
    Replayed,
    Resumption,
    RunEvent,
    Warned,
)
from reporting.results.redaction import without_credentials

_RENEWED_EVERY_S = 1.0
_LINE_EVERY_S = 5.0
# Without news the status line only shows that the driver is still there.
_SAME_LINE_EVERY_S = 60.0
_WRITE_TIMEOUT_S = 2.0
# Only the newest saves; a run of weeks has tens of thousands.
_MOST_SAVES = 1_000
_BEGINS = "begins at step 0"


class RunDisplay:
    """The display of one run. ``quiet`` keeps standard output free for JSON; ``silent`` prints nothing.

    As a context it also renews the status line while nothing is heard, from a thread of its own.
    """

    def __init__(
        self,
        run: str,
        *,
        quiet: bool,
        silent: bool,
        has_loss: Callable[[], bool] = lambda: True,
        ticks: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._is_silent = silent
        self._ticks = ticks
        self._clock = clock
        self._lines = _Lines(run, sys.stderr if quiet else sys.stdout, clock)
        self._state = RunState(ticks(), has_loss)
        self._start: Resumption | None = None
        self._end: Ended | None = None
        self._saves: deque[SaveNote] = deque(maxlen=_MOST_SAVES)
        self._is_news = False
        self._shown_s = float("-inf")
        self._told: tuple[Callable[[Mapping[str, Any]], None], ...] = ()
        self._lock = threading.RLock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, name="status line", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> None:
        """Records an exception as the run's end, unless an end was recorded before."""
        self._done.set()
        self._thread.join()
        self._lines.clear()
        if error is not None and self._state.stage in GOING_ON:
            is_failure = isinstance(error, Exception)
            why = without_credentials(str(error)).partition("\n")[0] if is_failure else None
            self.ends("failed" if is_failure else "interrupted", why)

    def on_progress(self, *tell: Callable[[Mapping[str, Any]], None]) -> None:
        """Each of ``tell`` gets every record of the run, at least once a second."""
        if not self._is_silent:
            self._told = tell

    @property
    def is_durable(self) -> bool:
        return self._end is not None and self._end.problem is None

    def last_step(self) -> LastStep | None:
        """The newest step of the attempt that runs or ran last."""
        with self._lock:
            return self._state.last_step(self._ticks())

    def begins(self, attempt: int, group: str | None = None) -> None:
        """``attempt`` is the attempt's term in the run's log, and ``group`` where it runs, if known."""
        with self._lock:
            self._start = self._end = None
            self._state.begins(attempt, self._ticks(), group)
            self._changed()

    def waits(self, for_s: float, why: str) -> None:
        """The next attempt comes in ``for_s`` seconds."""
        with self._lock:
            self._state.waits(for_s, why, self._ticks())
            self._changed()
            self._say(self._state.line(self._ticks()))

    def ends(self, stage: Stage, why: str | None = None) -> None:
        """How the run was left. The status file says the same."""
        with self._lock:
            self._state.ends(stage, self._ticks(), why)
            self._changed()

    def note(self, text: str) -> None:
        """Prints a line that belongs to no run event."""
        self._say(text)

    def hear(self, told: RunEvent) -> None:
        with self._lock:
            self._state.hear(told, self._ticks(), self._clock())
            self._is_news = True
            self._say_event(told)
            if isinstance(told, Progress):
                self.renew()
            if isinstance(told, Progress) or (isinstance(told, Ended) and self._did_a_step(told)):
                self._tell()

    def renew(self) -> None:
        """Prints the status line, if its time has come."""
        with self._lock:
            waited_s = self._ticks() - self._shown_s
            is_over = self._state.stage not in GOING_ON
            if self._is_silent or is_over or waited_s < self._interval_s() or self._has_just_begun():
                return
            self._shown_s, self._is_news = self._ticks(), False
            self._lines.renew(self._state.line(self._ticks()))

    def summarise(self, pointer: str | None, again: str = "the same command") -> None:
        """Prints how the run ended, on the last line. ``again`` is the command that resumes a run that was
        stopped.
        """
        if pointer:
            self._say(f"Ray Train's own result names {pointer}, for programs that read it")
        if self._end is None:
            self._say("the workers ended without a word of it; running it again goes on")
        elif self._end.stop_request is None and self._end.problem is None:
            has_loss = self._did_a_step(self._end) and self._state.has_loss()
            loss = f", {_value('loss', self._end.loss)}" if has_loss else ""
            kept = self._end.generation or "nothing was saved"
            self._say(f"finished at step {self._end.step}{loss}: {kept}")
        if self._end and self._end.problem:
            done = "ended as asked" if self._end.stop_request else f"all {self._end.step} steps are done"
            newest = self._end.generation
            kept = f"the newest checkpoint is {newest}" if newest else "there is no checkpoint"
            self._say(f"{done}, but {self._end.problem}; {kept}; running it again goes on")
        elif self._end and self._end.stop_request:
            saved = f" ({self._end.generation})" if self._end.generation else ", with nothing to save"
            self._say(f"stopped at step {self._end.step}{saved}, resume with `{again}`")

    def facts(self) -> dict[str, Any]:
        """Facts for programs, in addition to the run's status."""
        return {
            "resumed_from": self._start.generation if self._start else None,
            "resumed_step": self._start.step if self._start else None,
            "why": list(self._start.trail) if self._start else [],
            "problem": self._end.problem if self._end else "the workers ended early",
            "stopped": self._end.stop_request.why if self._end and self._end.stop_request else None,
            "saves": [asdict(saved) for saved in self._saves],
        }

    def _work(self) -> None:
        while not self._done.wait(_RENEWED_EVERY_S):
            with self._lock:
                self.renew()
                self._tell()

    def _interval_s(self) -> float:
        if self._lines.is_terminal:
            return _RENEWED_EVERY_S
        return _LINE_EVERY_S if self._is_news else _SAME_LINE_EVERY_S

    def _has_just_begun(self) -> bool:
        """Whether an attempt has only just begun, so that a line that stays would say nothing."""
        is_young = self._state.lasted_s(self._ticks()) < _LINE_EVERY_S
        return self._state.stage == "starting" and is_young and not self._lines.is_terminal

    def _changed(self) -> None:
        self._is_news = True
        self._tell()

    def _tell(self) -> None:
        record = self._record()
        for tell in self._told:
            tell(record)

    def _record(self) -> dict[str, Any]:
        record = self._state.record(self._ticks(), self._clock())
        return {**record, "step": self._end.step, "loss": self._end.loss} if self._end else record

    def _did_a_step(self, end: Ended) -> bool:
        """Whether this attempt did a step. If not, what earlier attempts reported is the newest."""
        return self._start is None or end.step > self._start.step

    def _say_event(self, told: RunEvent) -> None:
        match told:
            case Resumption():
                self._start = told
                self._say_start(told)
            case SaveNote():
                self._saves.append(told)
                self._say(_save(told))
                if told.finding:
                    self._say(f"warning: {told.finding}")
            case Evaluated():
                self._say(f"step {told.step}: {_value('val_loss', told.val_loss)}")
            case Replayed():
                self._say(told.text if told.agrees else f"warning: {told.text}")
            case Checked() if told.is_first:
                self._say(f"step {told.step}: {told.num_ranks} ranks compute alike")
            case Warned():
                self._say(f"warning: {told.text}")
            case Ended():
                self._end = told

    def _say_start(self, start: Resumption) -> None:
        for line in start.trail:
            if start.generation or not line.endswith(_BEGINS):
                self._say(line)
        self._say(f"goes on after step {start.step}" if start.generation else _BEGINS)

    def _say(self, text: str) -> None:
        if not self._is_silent:
            with self._lock:
                self._lines.say(text)


class _Lines:
    """Lines that stay and, in a terminal, one line below them that is redrawn. The output may be closed at
    any time. Each line begins with the time of day, by this machine's clock and time zone.
    """

    def __init__(self, run: str, out: TextIO, clock: Callable[[], float]) -> None:
        self._run = run
        self._clock = clock
        self._out = out
        self._renewed = ""
        self._writing: threading.Thread | None = None
        self.is_terminal = out.isatty()

    def say(self, text: str) -> None:
        renewed = self._renewed
        self.clear()
        self._write(f"{self._beginning()}{text}\n")
        if renewed:
            self._draw(renewed)

    def renew(self, text: str) -> None:
        if self.is_terminal:
            self._draw(f"{self._beginning()}{text}")
        else:
            self.say(text)

    def _beginning(self) -> str:
        return f"{time.strftime('%H:%M:%S', time.localtime(self._clock()))} {self._run}: "

    def clear(self) -> None:
        if self._renewed:
            self._write("\r\x1b[K")
            self._renewed = ""

    def _draw(self, line: str) -> None:
        # A line that wraps could not be erased.
        most = shutil.get_terminal_size().columns - 1
        self._renewed = line
        self._write(f"\r\x1b[K{line[:most]}")

    def _write(self, text: str) -> None:
        """Waits a moment for a reader that takes nothing, such as a pager or a terminal whose connection
        hangs. Then lines are dropped until it reads on: the run must not wait for it.
        """
        if self._writing and self._writing.is_alive():
            return
        self._writing = threading.Thread(target=self._put, args=(text,), name="lines", daemon=True)
        self._writing.start()
        self._writing.join(_WRITE_TIMEOUT_S)

    def _put(self, text: str) -> None:
        # A terminal that was closed, or a pipe whose reader ended, must not end the training.
        with suppress(OSError):
            try:
                data = text.encode(self._out.encoding or "utf-8", self._out.errors or "strict")
            except UnicodeEncodeError:
                data = text.encode("ascii", "backslashreplace")
            if (descriptor := _descriptor(self._out)) is None:
                self._out.write(data.decode(self._out.encoding or "utf-8"))
                self._out.flush()
                return
            # Not through the stream: Python flushes it at the end, and would wait for what waits here.
            while data:
                data = data[os.write(descriptor, data) :]


def _descriptor(out: TextIO) -> int | None:
    try:
        return out.fileno()
    except OSError:
        return None


def _value(name: str, value: float | None) -> str:
    return f"{name} not finite" if value is None else f"{name} {value:.4f}"


def _save(saved: SaveNote) -> str:
    if saved.problem:
        return f"{saved.what} failed, training goes on: {saved.problem}"
    size = f"{saved.num_bytes / 1e6:,.1f} MB of rank 0"
    return f"{saved.what}: {size}, blocked for {saved.blocked_s:.3f} s, done in {saved.took_s:.2f} s"
