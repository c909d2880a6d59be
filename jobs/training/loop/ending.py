"""Ends an attempt in order: saves its last state, and notes in the run's log how it ended."""

from contextlib import suppress

from checkpointing.generations.repository import Repository
from checkpointing.log.history import Finish, Resumed, Stopped
from checkpointing.stores.contract import StoreError
from checkpointing.stores.transfers import Stalled, TransferProgress, finish
from jobs.training.loop.control import Control
from jobs.training.state.saving import Saver
from jobs.training.task.position import StepPoint
from jobs.training.task.stop_request import StopRequest


def save_the_end(saver: Saver, control: Control, point: StepPoint) -> str | None:
    """Waits for saves on their way, then saves once more unless ``point`` is durable already.

    Every rank calls it. On rank 0 the result says why ``point`` is not durable; None if it is.
    """
    saver.wait()
    if control.from_rank_0(saver.tally.durable_step != point.step):
        saver.cut(point, saver.final_order)
        saver.wait()
    is_durable = saver.tally.durable_step == point.step
    return None if is_durable else f"step {point.step} could not be saved to the store"


def note_resumed(repository: Repository, generation: str, *, term: int, timeout_s: float = 5.0) -> None:
    """Notes in the run's log that the loaded generation is no poison.

    Call it once a step was finished after loading, or if a stop request came before that. A store that is
    away delays the training by at most ``timeout_s``; the note is still written once the store is back.
    """
    with suppress(StoreError, Stalled):
        finish(lambda: repository.append(Resumed(name=generation), term=term), TransferProgress(timeout_s))


def note_end(repository: Repository, step: int, stop_request: StopRequest | None, *, term: int) -> str | None:
    """Notes a finish or a stop in the run's log; returns the store's error, if any.

    An attempt that moves on notes nothing: the log continues with the next attempt.
    """
    try:
        if stop_request is None:
            repository.append(Finish(step=step), term=term)
        elif stop_request.aim == "stop":
            repository.append(Stopped(step=step, why=stop_request.why), term=term)
    except StoreError as error:
        return str(error)
    return None
