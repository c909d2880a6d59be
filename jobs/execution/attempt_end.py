"""How an attempt that ended in order ended: done, stopped, withdrawn before it began, or to move on. Pure."""

from collections.abc import Callable, Sequence

from jobs.execution.messages import Beat
from jobs.execution.outcomes import AttemptFailed, StopWished
from jobs.training.task.events import Ended, Told, Withdrawn
from jobs.training.task.measurement import Failure
from jobs.training.task.stop_request import Wish


class LastWord:
    """Hands on what an attempt tells, and remembers what it was wished."""

    def __init__(self, hear: Callable[[Told | Beat], None]) -> None:
        self._hear = hear
        self._told: Ended | Withdrawn | None = None

    def hear(self, told: Told | Beat) -> None:
        if isinstance(told, Ended | Withdrawn):
            self._told = told
        self._hear(told)

    def judge(self) -> None:
        """Raises unless all steps are done, or the run stopped and has said where."""
        match self._told:
            case Ended(wish=Wish(aim="move on") as wish):
                raise moved_on(wish)
            case Withdrawn(wish=wish):
                withdraw(wish)


def withdraw(wish: Wish, nodes: Sequence[str] = ()) -> None:
    """Raises what a wish means to an attempt that has nothing to save."""
    raise StopWished(wish) if wish.aim == "stop" else moved_on(wish, nodes)


def moved_on(wish: Wish, nodes: Sequence[str] = ()) -> AttemptFailed:
    """Nobody's fault, and nothing is lost: the next attempt goes on from what this one saved."""
    return AttemptFailed(Failure(status="crash", reason=wish.why), "preempted", nodes)
