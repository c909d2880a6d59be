"""Records a training loop of the user's own, in the tables that ``longhaul status`` and reports read."""

import time
from collections.abc import Mapping
from typing import SupportsFloat

import torch

from checkpointing.saving.save import SaveNote
from checkpointing.stores.contract import Store
from cluster.inventory import Vendor
from jobs.training.loop import incidents
from jobs.training.state.restoring import ResumePoint
from jobs.training.task.context import Context
from reporting.recording.attempts import Incident, RecordedAttempt, Step
from reporting.recording.outbox import Outbox
from reporting.recording.recorder import Recorder

Values = Mapping[str, SupportsFloat | None]
_KIND = "own loop"
_FLUSH_S = 10.0
_CLOSE_TIMEOUT_S = 10.0


class OwnRecord:
    """One rank's record of an attempt. Rank 0 records what the run does; others their time and failures."""

    def __init__(self, run: str, term: int, tokens_per_step: int, context: Context, store: Store) -> None:
        self._is_rank_0 = context.rank == 0
        self._world_size = context.world_size
        self._tokens = tokens_per_step // context.world_size
        attempt = RecordedAttempt(
            run=run,
            term=term,
            leased_s=time.time(),
            group="local",
            vendor=_vendor(context.device),
            model=_KIND,
            strategy=_KIND,
            world_size=context.world_size,
            num_steps=0,
            tokens_per_step=tokens_per_step,
        )
        self._recorder = Recorder(attempt, context.rank, Outbox(store, context.rank), flush_s=_FLUSH_S)
        self._recorder.start()
        if self._is_rank_0:
            self._recorder.incident(incidents.started(context.world_size))

    def phase(self, name: str) -> None:
        self._recorder.phase(name)

    def restored(self, start: ResumePoint, seconds: float) -> None:
        if start.warning:
            self._recorder.incident(Incident(kind="warning", step=start.step, text=start.warning))
        if self._is_rank_0 and start.generation:
            self._recorder.incident(incidents.restored(start, seconds))
        self.phase("start")

    def begin(self, start: ResumePoint, num_steps: int) -> None:
        self._recorder.begin_at(start.step, start.term, num_steps=num_steps)

    def step(self, step: int, values: Values) -> None:
        epoch = values.get("epoch")
        rate = values.get("learning_rate")
        self._recorder.step(
            Step(
                step=step,
                position=step,
                epoch=1 if epoch is None else int(float(epoch)),
                tokens=self._tokens,
                loss=values.get("loss"),
                grad_norm=values.get("grad_norm"),
                learning_rate=None if rate is None else float(rate),
                val_loss=_float(values.get("val_loss")) if self._is_rank_0 else None,
            )
        )

    def save(self, note: SaveNote) -> None:
        """Records a save; called by the writer's threads."""
        if note.finding:
            self._recorder.incident(Incident(kind="warning", step=note.step, text=note.finding))
        if self._is_rank_0 or note.problem:
            self._recorder.incident(incidents.saved(note))

    def close(self, step: int, error: BaseException | None, *, is_done: bool) -> None:
        """Says how the attempt ended, and writes all to the store; waits at most 10 s for that."""
        if error is not None:
            self._recorder.incident(incidents.broken_off(error, step))
        elif self._is_rank_0:
            self._recorder.incident(Incident(kind="end" if is_done else "stop", step=step))
        self._recorder.close(_CLOSE_TIMEOUT_S)


def _vendor(device: torch.device) -> Vendor:
    if device.type != "cuda":
        return "cpu"
    return "amd" if torch.version.hip else "nvidia"


def _float(value: SupportsFloat | None) -> float | None:
    return None if value is None else float(value)
