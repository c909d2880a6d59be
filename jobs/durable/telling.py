"""What a run tells: lines on the terminal, the status that ``longhaul status`` reads, and its records."""

import time
from contextlib import ExitStack

from checkpointing.saving.save import SaveNote, Tally
from jobs.durable.records import OwnRecord, Values
from jobs.run_progress.run_view import RunDisplay
from jobs.run_progress.status_file import StatusFile
from jobs.spec_schema.own_loop import OwnLoop
from jobs.training.state.restoring import ResumePoint
from jobs.training.task.events import Ended, Progress, Resumption, Warned, finite_or_none
from jobs.training.task.stop_request import StopRequest

_REPORT_EVERY_S = 1.0


class Teller:
    """One rank's. Ranks but the first print nothing and write no status; all of them keep records."""

    def __init__(
        self, spec: OwnLoop, term: int, status: StatusFile, record: OwnRecord, *, is_rank_0: bool
    ) -> None:
        self._term = term
        self._is_rank_0 = is_rank_0
        self._tokens_per_step = spec.tokens_per_step
        self._has_loss = False
        self._display = RunDisplay(
            spec.name, quiet=True, silent=not is_rank_0, has_loss=lambda: self._has_loss
        )
        self._status = status
        self._record = record
        self._contexts = ExitStack()
        self._num_steps = 0
        self._told_s, self._told_step = time.monotonic(), 0
        self._last_loss: float | None = None

    def open(self) -> None:
        self._contexts.enter_context(self._status)
        self._contexts.push(self._display.__exit__)
        self._display.__enter__()
        self._display.on_progress(self._status.tell)
        self._display.begins(self._term)
        self.phase("restore")

    def phase(self, name: str) -> None:
        """What time counts for from now on."""
        self._record.phase(name)

    def note(self, text: str) -> None:
        self._display.note(text)

    def restored(self, start: ResumePoint, seconds: float) -> None:
        self._record.restored(start, seconds)
        if start.warning and self._is_rank_0:
            self._display.hear(Warned(text=start.warning))
        self._display.hear(Resumption(step=start.step, generation=start.generation, trail=start.trail))

    def begin(self, start: ResumePoint, num_steps: int) -> None:
        self._record.begin(start, num_steps)
        self._num_steps = num_steps
        self._told_s, self._told_step = time.monotonic(), start.step

    def step(self, step: int, values: Values) -> None:
        self._has_loss = self._has_loss or values.get("loss") is not None
        self._record.step(step, values)

    def progress(self, step: int, values: Values, tally: Tally) -> None:
        """Tells the step once a second: reading its loss waits for the device."""
        now = time.monotonic()
        if not self._is_rank_0 or now - self._told_s < _REPORT_EVERY_S:
            return
        if (loss := values.get("loss")) is not None:
            self._last_loss = float(loss)
        tokens = (step - self._told_step) * self._tokens_per_step
        self._display.hear(
            Progress(
                step=step,
                num_steps=self._num_steps,
                loss=None if self._last_loss is None else finite_or_none(self._last_loss),
                tokens_per_s=tokens / (now - self._told_s) if tokens else None,
                durable_step=tally.durable_step,
                durable_s=tally.durable_s,
                num_failed_saves=tally.num_failed,
                num_skipped_saves=tally.num_skipped,
            )
        )
        self._told_s, self._told_step = now, step

    def save(self, note: SaveNote) -> None:
        """Called by the writer's threads."""
        self._record.save(note)
        if self._is_rank_0 or note.problem:
            self._display.hear(note)

    def end(
        self,
        step: int,
        loss: float | None,
        generation: str | None,
        problem: str | None,
        stop_request: StopRequest | None,
    ) -> None:
        """``loss`` is that of the last step; None if it is not known."""
        loss = self._last_loss if loss is None else loss
        self._display.hear(
            Ended(
                step=step,
                loss=None if loss is None else finite_or_none(loss),
                generation=generation,
                problem=problem,
                stop_request=stop_request,
            )
        )
        self._display.summarise(None, "the same script")

    def close(self, step: int, error: BaseException | None, *, is_done: bool) -> None:
        self._record.close(step, error, is_done=is_done)
        self._contexts.__exit__(type(error) if error else None, error, None)
