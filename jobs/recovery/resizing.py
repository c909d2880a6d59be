"""Chooses the world size of each of a driver's attempts, by ``elastic`` and by the room there is."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from jobs.recovery.world_size import (
    Outlook,
    ResizeWaits,
    SizedStart,
    Wait,
    began,
    choose,
    look_for_more,
    ranks,
)
from jobs.training.task.events import RunEvent
from jobs.training.task.stop_request import StopRequest

# How many more ranks fit now, on nodes other than these; None if unknown.
ClusterRoom = Callable[[Sequence[str]], int | None]

_LOOK_EVERY_S = 2.0
_ASK_EVERY_S = 0.5
# The devices of an ended attempt take a moment to become free: a run must not shrink because of itself.
_SETTLE_S = 5.0
# Enough for processes to start and import.
_LEAST_SCHEDULE_TIMEOUT_S = 60.0


class Resizing:
    """The world sizes of one driver's attempts. A run with a single size never waits, asks or prints here.

    ``say`` prints for people. ``pause`` waits, or returns early with a stop request.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        patience: ResizeWaits,
        room: ClusterRoom,
        say: Callable[[str], None],
        *,
        ticks: Callable[[], float] = time.monotonic,
        pause: Callable[[float], StopRequest | None] = time.sleep,
    ) -> None:
        self._sizes = sizes
        self._patience = replace(patience, wait_for_spare_s=max(patience.wait_for_spare_s, _SETTLE_S))
        self._room = room
        self._say = say
        self._ticks = ticks
        self._pause = pause
        self._outlook = Outlook(wanted=sizes[-1])
        self._without: Sequence[str] = ()
        self._runs = False
        self._stop_request: StopRequest | None = None
        self._looked_s = float("-inf")
        self._seen = 0
        # The size that could not be placed, and the room there was then.
        self._misfit: tuple[int, int] | None = None

    def next_size(self, without: Sequence[str]) -> int | StopRequest:
        """The size of the next attempt, which is to run on nodes other than ``without``.

        Waits for a spare where the rules say so; a stop request ends the wait.
        """
        self._without, self._runs, self._stop_request = without, False, None
        if len(self._sizes) == 1:
            return self._sizes[0]
        wanted, is_said = self._outlook.wanted, False
        while isinstance(answer := self._choose(), Wait):
            if not is_said:
                self._say(_waiting(answer))
                is_said = True
            if stop_request := self._pause(_ASK_EVERY_S):
                return stop_request
        if answer.world_size != wanted:
            self._say(f"goes on with {ranks(answer.world_size)} instead of {wanted}")
        return answer.world_size

    def schedule_timeout_s(self, most_s: float) -> float:
        """How long the size that was chosen last may wait to be placed, at most ``most_s``.

        While there are smaller sizes to try, it waits no longer than for a spare, or a minute. The room may
        be that of a dead node that is still listed.
        """
        if self.is_at_smallest:
            return most_s
        return min(most_s, max(self._patience.wait_for_spare_s, _LEAST_SCHEDULE_TIMEOUT_S))

    @property
    def smallest(self) -> int:
        return self._sizes[0]

    @property
    def is_at_smallest(self) -> bool:
        """Whether the size that was chosen last is the smallest one."""
        return self._outlook.wanted == self._sizes[0]

    def had_no_place(self) -> None:
        """The size that was chosen last could not be placed: the free devices are spread. Until the room
        changes, only smaller sizes are tried.
        """
        self._misfit = self._outlook.wanted, self._seen

    def hear(self, event: RunEvent) -> None:
        """Any run event means that the attempt's ranks run, so devices that are free now are free beside
        them.
        """
        if not self._runs:
            self._runs, self._outlook = True, began(self._outlook)

    def stop_request(self) -> StopRequest | None:
        """A request to move on, once there is room for the running attempt to grow. Asks the cluster every
        few seconds.
        """
        if self._runs and self._stop_request is None:
            larger = self._look(beside=self._outlook.wanted)
            if larger is not None:
                self._stop_request = StopRequest(aim="move on", why=f"there is room for {ranks(larger)}")
        return self._stop_request

    def look_between(self) -> None:
        """Looks between two attempts whether there is room to grow: the next one does so if there was for
        long enough.
        """
        self._look(beside=0)

    def _choose(self) -> SizedStart | Wait:
        answer, self._outlook = choose(
            self._sizes,
            self._outlook,
            room=self._usable(self._room(self._without)) or 0,
            now_s=self._ticks(),
            patience=self._patience,
        )
        return answer

    def _look(self, *, beside: int) -> int | None:
        """A larger size to move on to, ``beside`` so many ranks that run. Asks every few seconds at most."""
        if self._outlook.wanted == self._sizes[-1] or self._ticks() - self._looked_s < _LOOK_EVERY_S:
            return None
        self._looked_s = self._ticks()
        free = self._room(self._without)
        larger, self._outlook = look_for_more(
            self._sizes,
            self._outlook,
            room=self._usable(None if free is None else free + beside),
            now_s=self._ticks(),
            patience=self._patience,
        )
        return larger

    def _usable(self, room: int | None) -> int | None:
        if room is None:
            return None
        self._seen = room
        if self._misfit is None or room != self._misfit[1]:
            self._misfit = None
            return room
        return min(room, self._misfit[0] - 1)


def _waiting(wait: Wait) -> str:
    room = f"room for {wait.room} of {ranks(wait.wanted)}"
    return f"{room}: waits up to {wait.for_s:.0f} s for a spare node, then goes on with fewer"
