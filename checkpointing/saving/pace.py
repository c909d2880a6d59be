"""How long a sender of copies rests, so that the training beside it keeps its speed. Pure."""

from collections import deque
from collections.abc import Callable
from statistics import median

# Of the time that a piece took. The most leaves the way free for half of the time.
MOST_REST, _LEAST_REST = 1.0, 1 / 16
# Steps differ by so much by themselves.
_SLOWER = 1.05
_NUM_USUAL = 9


class Pace:
    """Rests as long as a piece took. It rests half as long after each step that sending does not slow, and
    twice as long after each one that it does.

    ``last_step`` says which step the training has done, and how long that took.
    """

    def __init__(self, last_step: Callable[[], tuple[int, float]]) -> None:
        self._last_step = last_step
        self._usual: deque[float] = deque(maxlen=_NUM_USUAL)
        self._step = -1
        self._rest = MOST_REST

    def begin(self) -> None:
        """Call it before each copy is sent: nothing was sent in the last step."""
        self._step, took_s = self._last_step()
        self._usual.append(took_s)

    def rest_s(self, took_s: float) -> float:
        """Returns how long to rest after a piece that took so long."""
        step, step_s = self._last_step()
        if step != self._step:
            self._step = step
            if step_s > _SLOWER * median(self._usual):
                self._rest = min(MOST_REST, max(self._rest * 2, _LEAST_REST))
            else:
                self._rest = self._rest / 2 if self._rest > _LEAST_REST else 0.0
        return took_s * self._rest
