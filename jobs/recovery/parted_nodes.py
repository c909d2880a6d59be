"""Measures again whether nodes that did not reach each other do so now, so that none is left out for long."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain

from jobs.recovery.policy import FailedAttempt, Pair, left_out, parted_pairs

# After the first time that they were parted; twice as long after each further one: a link may flap.
_FIRST_S = 600.0
# Nodes that do not answer may hold up the driver for some seconds.
_LOOK_EVERY_S = 60.0


@dataclass(slots=True, kw_only=True)
class PartedNodes:
    """``unreached`` tries all ways between nodes, and returns the pairs that do not reach each other; None if
    not all nodes answer. ``mended`` gets the pairs that do, and when by ``clock``, which is that of the
    failed attempts.
    """

    history: Callable[[], Sequence[FailedAttempt]]
    unreached: Callable[[Sequence[str]], Collection[Pair] | None]
    say: Callable[[str], None]
    clock: Callable[[], float]
    mended: dict[Pair, float]
    next_look_s: float = field(default=0.0, init=False)

    def still(self, without: Sequence[str]) -> tuple[str, ...]:
        """The nodes to leave out now, of which these were known, see ``jobs.recovery.policy``."""
        if not without:
            return ()
        now = self.clock()
        if now >= self.next_look_s:
            self.next_look_s = now + _LOOK_EVERY_S
            self._look(now)
        return left_out(self.history(), self.mended)

    def _look(self, now: float) -> None:
        before = left_out(self.history(), self.mended)
        pairs = parted_pairs(self.history(), self.mended)
        due = [pair for pair, times in pairs.items() if now >= max(times) + _FIRST_S * 2 ** (len(times) - 1)]
        unreached = self.unreached(sorted({*chain(*due)})) if due else None
        if unreached is None:
            return
        self.mended |= dict.fromkeys((pair for pair in due if pair not in unreached), now)
        after = left_out(self.history(), self.mended)
        if back := [node for node in before if node not in after]:
            self.say(f"{', '.join(back)}: reached again, and no longer left out")
