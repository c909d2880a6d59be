"""Whether the losses of a training have gone wrong: not finite, or far above what they were. Pure."""

from collections import deque
from dataclasses import dataclass
from math import isfinite
from statistics import median

# A normal distribution's standard deviation per median distance from the median.
_SIGMA = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeBound:
    """A loss is too high above ``ratio`` times the recent median and ``sigmas`` robust deviations over it.

    A loss is compared with the last ``num_recent`` losses, and nothing is said before ``fewest`` were seen;
    None is half of ``num_recent``. Only ``in_a_row`` losses too high one after another are a spike: a single
    odd batch is none.
    """

    sigmas: float = 10.0
    ratio: float = 1.5
    num_recent: int = 40
    in_a_row: int = 3
    fewest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """``loss`` where at most ``bound`` was expected."""

    loss: float
    bound: float


class Spikes:
    """The only judge of losses: ranks' guards and the driver's alarms ask it, each with a bound of its own.

    The same losses give the same answers, so ranks that see them agree. ``is_high`` is about the last loss,
    ``usual`` is the median of those before it, 0 before enough were seen.
    """

    def __init__(self, bound: SpikeBound) -> None:
        self.is_high = False
        self.usual = 0.0
        self._bound = bound
        self._recent: deque[float] = deque(maxlen=bound.num_recent)
        self._num_high = 0

    def see(self, loss: float) -> Spike | None:
        """``loss`` is finite. What is too high is not held against what comes after it."""
        bound = self._highest()
        self.is_high = loss > bound
        if not self.is_high:
            self._recent.append(loss)
            self._num_high = 0
            return None
        self._num_high += 1
        return Spike(loss=loss, bound=bound) if self._num_high >= self._bound.in_a_row else None

    def _highest(self) -> float:
        fewest = self._bound.fewest
        if len(self._recent) < (max(2, self._bound.num_recent // 2) if fewest is None else fewest):
            return float("inf")
        self.usual = middle = median(self._recent)
        deviation = _SIGMA * median(abs(loss - middle) for loss in self._recent)
        return max(self._bound.ratio * middle, middle + self._bound.sigmas * deviation)


def is_bad(*values: float) -> bool:
    return not all(map(isfinite, values))
