"""How an attempt ends in order: where it stands is saved, and the run's log says what became of it."""

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
    """Waits for what is on its way, and saves once more unless the point is durable by then.

    Every rank calls it. On rank 0, why it is not durable; None if it is.
    """
    saver.wait()
    if control.from_rank_0(saver.tally.durable_step != point.step):
        saver.cut(point, saver.final_order)
        saver.wait()
    is_durable = saver.tally.durable_step == point.step
    return None if is_durable else f"step {point.step} could not be saved to the store"


def note_resumed(repository: Repository, generation: str, *, term: int, timeout_s: float = 5.0) -> None:
    """A step was finished after loading, or none was wanted: the generation is no poison.

    A store that is away holds nobody up for longer than ``timeout_s``; it still hears of it once it is back.
    """
    with suppress(StoreError, Stalled):
        finish(lambda: repository.append(Resumed(name=generation), term=term), TransferProgress(timeout_s))


def note_end(repository: Repository, step: int, wish: StopRequest | None, *, term: int) -> str | None:
    """One that moves on has not stopped: its log says nothing until the next attempt begins."""
    try:
        if wish is None:
            repository.append(Finish(step=step), term=term)
        elif wish.aim == "stop":
            repository.append(Stopped(step=step, why=wish.why), term=term)
    except StoreError as error:
        return str(error)
    return None
