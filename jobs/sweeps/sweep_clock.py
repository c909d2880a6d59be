"""How far a sweep is and how long it may still take. Pure; the time is an argument.

Before the first run has ended there is only a guess, which is said to be one. Afterwards the remaining time
follows from the runs that have ended; the start of Ray does not count as one of them.
"""

from dataclasses import dataclass

# The start of Ray and of the first workers, on two cores.
_START_S = 12.0


@dataclass(slots=True, kw_only=True)
class SweepClock:
    """``guess_s`` is for all runs together, None where a device's speed is unknown.

    A search for the best setting may take more runs than the ``total`` that it expects.
    """

    total: int
    guess_s: float | None
    began_s: float
    done: int = 0
    _first_s: float | None = None
    _last_s: float = 0.0

    def started(self, now: float) -> None:
        if self._first_s is None:
            self._first_s = now

    def finished(self, now: float) -> None:
        self.done += 1
        self._last_s = now

    def text(self, now: float) -> str:
        """At most 60 characters, as long as the sweep takes less than a week."""
        total = max(self.total, self.done)
        return f"{self.done}/{total} runs, {_span(now - self.began_s)} elapsed, {self._remaining(now)}"

    def _remaining(self, now: float) -> str:
        if not self.done:
            return self._guessed(now)
        first_s = self.began_s if self._first_s is None else self._first_s
        each_s = (self._last_s - first_s) / self.done
        left_s = each_s * max(0, self.total - self.done) - (now - self._last_s)
        return f"{_span(max(0.0, left_s))} remaining"

    def _guessed(self, now: float) -> str:
        if self.guess_s is None:
            return "? remaining"
        left_s = self.guess_s + _START_S - (now - self.began_s)
        return f"~{_span(left_s)} remaining (a guess)" if left_s > 0 else "slower than guessed"


def _span(seconds: float) -> str:
    minutes, left_s = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{left_s:02}"
