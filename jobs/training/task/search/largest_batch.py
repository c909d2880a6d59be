"""Searches for the largest micro-batch that fits in memory: what was tried, and what is next. Pure.

Whoever knows more goes on from the same value: the rank that tried, a new worker group, the next start.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSearch:
    """The search for the largest of ``candidates``, which ascend and divide ``sequences``.

    ``sequences`` are those of one rank in one step, so a micro-batch also says how many of them a step has.
    ``guess`` is tried first. ``fitted`` and ``failed`` are the answers so far. ``trying`` is in memory now.
    """

    sequences: int
    candidates: tuple[int, ...]
    guess: int
    fitted: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    trying: int | None = None

    @property
    def num_trials(self) -> int:
        return len(self.fitted) + len(self.failed)

    @property
    def most_trials(self) -> int:
        """``log2`` of the number of candidates, rounded down, and two."""
        return len(self.candidates).bit_length() + 1

    @property
    def smallest_failed(self) -> int | None:
        return min(self.failed, default=None)

    @property
    def largest(self) -> int | None:
        """The largest that fitted. What ran out of memory later, as it was measured, does not fit."""
        most = self.smallest_failed
        return max((size for size in self.fitted if most is None or size < most), default=None)

    @property
    def next_trial(self) -> int | None:
        """What to try next; None if ``largest`` is the answer, or that nothing fits.

        A trial is worth one bit. So a wish (the guess, twice the largest, half of the smallest that failed)
        is granted only where the trials that are left can tell all the answers that it leaves.
        """
        low, high = self._bounds()
        if high - low < 2:
            return None
        reach = 1 << max(0, self.most_trials - self.num_trials - 1)
        earliest, latest = max(low + 1, high - reach), min(high - 1, low + reach)
        if earliest > latest:
            return self.candidates[(low + high) // 2]
        return self.candidates[min(max(self._wish(low, high), earliest), latest)]

    @property
    def goes_on(self) -> bool:
        """Whether there is something to try or to measure: false if nothing fits."""
        return self.next_trial is not None or self.largest is not None

    def now_trying(self, size: int) -> Self:
        return replace(self, trying=size)

    def fits(self) -> Self:
        """The search after what it is trying had room."""
        assert self.trying is not None
        return replace(self, fitted=(*self.fitted, self.trying), trying=None)

    def ran_out(self) -> Self:
        """The search after what it was trying, if anything, ran out of memory."""
        if self.trying is None:
            return self
        return replace(self, failed=(*self.failed, self.trying), trying=None)

    def _bounds(self) -> tuple[int, int]:
        """The places of the largest that fitted (-1 if none) and of the smallest that failed."""
        largest, smallest = self.largest, self.smallest_failed
        low = -1 if largest is None else bisect_right(self.candidates, largest) - 1
        high = len(self.candidates) if smallest is None else bisect_left(self.candidates, smallest)
        return low, high

    def _wish(self, low: int, high: int) -> int:
        if not self.num_trials:
            return bisect_right(self.candidates, self.guess) - 1
        if high == len(self.candidates):
            return bisect_left(self.candidates, 2 * self.candidates[low])
        if low == -1:
            return bisect_right(self.candidates, self.candidates[high] // 2) - 1
        return (low + high) // 2


def divisors(sequences: int) -> tuple[int, ...]:
    """All numbers that divide ``sequences``, ascending."""
    small = [size for size in range(1, int(sequences**0.5) + 1) if sequences % size == 0]
    return tuple(sorted({*small, *(sequences // size for size in small)}))
