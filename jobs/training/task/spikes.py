"""Detects losses that are far above the recent ones. Pure."""

from collections import deque
from dataclasses import dataclass
from statistics import median

# Turns a median distance from the median into a standard deviation, for a normal distribution.
_SIGMA = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeBound:
    """The bound above which a loss is too high.

    A loss is too high if it is above both ``ratio`` times the recent median and ``sigmas`` robust deviations
    over that median. The median is over the last ``num_recent`` losses that were not too high. No loss is too
    high before ``fewest`` losses were seen; None means half of ``num_recent``. Only ``in_a_row`` losses that
    are too high one after another are a spike, so a single odd batch is not.
    """

    sigmas: float = 10.0
    ratio: float = 1.5
    num_recent: int = 40
    in_a_row: int = 3
    fewest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """A ``loss`` above ``bound``, the most that was expected."""

    loss: float
    bound: float


class Spikes:
    """Detects spikes for the ranks' guards and for the driver's alarms, each with a bound of its own.

    The same losses give the same answers, so ranks that see the same losses agree. ``is_high``: the last loss
    was too high. ``recent_median`` is that of the losses before the last one; 0 before enough were seen.
    """

    def __init__(self, bound: SpikeBound) -> None:
        self.is_high = False
        self.recent_median = 0.0
        self._bound = bound
        self._recent: deque[float] = deque(maxlen=bound.num_recent)
        self._num_high = 0

    def add(self, loss: float) -> Spike | None:
        """Takes the next loss, which must be finite. A loss that is too high does not raise later bounds."""
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
        self.recent_median = middle = median(self._recent)
        deviation = _SIGMA * median(abs(loss - middle) for loss in self._recent)
        return max(self._bound.ratio * middle, middle + self._bound.sigmas * deviation)
