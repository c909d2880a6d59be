"""What a long run says while it goes on: one line per event, as ``ray job submit`` streams it."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from checkpointing.saves import Note
from jobs.training.events import Ended, Evaluated, Progress, Resumption, Told, Warned

_PROGRESS_EVERY_S = 2.0


class RunDisplay:
    """``quiet`` keeps standard output free for a program's JSON; ``silent`` says nothing at all."""

    def __init__(self, run: str, *, quiet: bool, silent: bool) -> None:
        self._run = run
        self._out = sys.stderr if quiet else sys.stdout
        self._is_silent = silent
        self._start: Resumption | None = None
        self._end: Ended | None = None
        self._saves: list[Note] = []
        self._told: dict[str, Any] = {}
        self._last_progress_s = 0.0
        self._tell: Callable[[Mapping[str, Any]], None] = _tell_nobody

    def on_progress(self, tell: Callable[[Mapping[str, Any]], None]) -> None:
        if not self._is_silent:
            self._tell = tell

    @property
    def is_durable(self) -> bool:
        return self._end is not None and self._end.problem is None

    def hear(self, told: Told) -> None:
        match told:
            case Resumption():
                self._start = told
                self._say_start(told)
            case Progress():
                self._told = asdict(told)
                self._tell(self._told)
                if time.monotonic() - self._last_progress_s >= _PROGRESS_EVERY_S:
                    self._last_progress_s = time.monotonic()
                    self._say(_progress(told))
            case Note():
                self._saves.append(told)
                self._say(_save(told))
            case Evaluated():
                self._say(f"step {told.step}: {_value('val_loss', told.val_loss)}")
            case Warned():
                self._say(f"warning: {told.text}")
            case Ended():
                self._end = told
                if self._did_a_step(told):
                    self._tell({**self._told, "step": told.step, "loss": told.loss})

    def summarise(self, pointer: str | None) -> None:
        if self._end is None:
            self._say("the workers ended without a word of it; running it again goes on")
        elif self._end.problem:
            self._say(
                f"all {self._end.step} steps are done, but {self._end.problem}; running it again goes on"
            )
        else:
            loss = f", {_value('loss', self._end.loss)}" if self._did_a_step(self._end) else ""
            self._say(f"finished at step {self._end.step}{loss}: {self._end.generation}")
        if pointer:
            self._say(f"Ray's checkpoint points at {pointer}")

    def facts(self) -> dict[str, Any]:
        """For programs, beside the run's status."""
        return {
            "resumed_from": self._start.generation if self._start else None,
            "resumed_step": self._start.step if self._start else None,
            "why": list(self._start.trail) if self._start else [],
            "problem": self._end.problem if self._end else "the workers ended early",
            "saves": [asdict(saved) for saved in self._saves],
        }

    def _did_a_step(self, end: Ended) -> bool:
        """Else what earlier attempts told of it is the newest there is."""
        return self._start is None or end.step > self._start.step

    def _say_start(self, start: Resumption) -> None:
        for line in start.trail:
            self._say(line)
        self._say(f"goes on after step {start.step}" if start.generation else "begins at step 0")

    def _say(self, text: str) -> None:
        if not self._is_silent:
            print(f"{self._run}: {text}", file=self._out, flush=True)


def _progress(told: Progress) -> str:
    loss = _value("loss", told.loss)
    line = f"step {told.step}/{told.num_steps}  {loss}  {told.tokens_per_s:,.0f} tokens/s"
    if told.durable_s is None:
        line += "  nothing durable yet"
    else:
        line += f"  durable: step {told.durable_step}, {time.time() - told.durable_s:.0f} s ago"
    if told.num_failed_saves:
        line += f"  {told.num_failed_saves} saves failed"
    return line


def _value(name: str, value: float | None) -> str:
    return f"{name} not finite" if value is None else f"{name} {value:.4f}"


def _save(saved: Note) -> str:
    what = f"save of step {saved.step} to the {saved.place}"
    if saved.problem:
        return f"{what} failed, training goes on: {saved.problem}"
    size = f"{saved.num_bytes / 1e6:,.1f} MB of rank 0"
    return f"{what}: {size}, blocked for {saved.blocked_s:.3f} s, done in {saved.took_s:.2f} s"


def _tell_nobody(_status: Mapping[str, Any]) -> None:
    return None
