"""Which rank is slow by itself, and at what. Pure.

Ranks wait for each other in a step, so the time of a step names nobody. What each rank takes for the same
small work does: a product shows its device, a copy its host's memory and the way from there to its device.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Literal

from jobs.execution.messages import Heartbeat

_NUM_TIMES, _FEWEST_TIMES = 9, 5

Work = Literal["product", "copy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """``ratio``: its usual time over the median of the others'."""

    rank: int
    node: str
    work: Work
    ratio: float

    def told(self) -> str:
        who = f"rank {self.rank} on {self.node}" if self.node else f"rank {self.rank}"
        what = "product" if self.work == "product" else "copy from host memory"
        return f"{who} takes {self.ratio:.2f} times as long as the others for the same {what}"

    def facts(self) -> Mapping[str, float | int | str]:
        node = {"node": self.node} if self.node else {}
        return {"rank": self.rank, "ratio": self.ratio, "work": self.work, **node}


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksTimed:
    """What the last times show. ``slow`` is the slowest rank, if it is slow; ``is_clear``: no rank is."""

    slow: SlowRank | None
    is_clear: bool


class RankSpeeds:
    """``share``: a rank is slow that takes longer than the others by this share."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._works: dict[Work, _Times] = {"product": _Times(), "copy": _Times()}
        self._nodes: dict[int, str] = {}
        # The rank that was slow last, and at what.
        self._named: tuple[int, Work] | None = None

    @property
    def num_ranks(self) -> int:
        """How many can be compared."""
        return max(len(times.usual) for times in self._works.values())

    def hear(self, beat: Heartbeat) -> bool:
        """Whether there is something new to judge."""
        self._nodes[beat.rank] = beat.node
        told: Mapping[Work, float] = {"product": beat.pace_s, "copy": beat.copy_s}
        heard = [self._works[work].hear(beat.rank, took_s) for work, took_s in told.items()]
        return any(heard)

    def judge(self) -> RanksTimed:
        slowest = [self._slowest(work) for work, times in self._works.items() if len(times.usual) > 1]
        worst = max(slowest, key=lambda one: one.ratio, default=None)
        if worst is None:
            return RanksTimed(slow=None, is_clear=True)
        if worst.ratio > 1 + self._share:
            self._named = worst.rank, worst.work
            return RanksTimed(slow=worst, is_clear=False)
        return RanksTimed(slow=None, is_clear=worst.ratio < self._clearly and self._is_named_fast())

    @property
    def _clearly(self) -> float:
        """Below so many times the others' time nobody is slow any more."""
        return 1 + self._share / 2

    def _slowest(self, work: Work) -> SlowRank:
        usual = self._works[work].usual
        rank = max(usual, key=lambda rank: usual[rank])
        ratio = usual[rank] / median(own for other, own in usual.items() if other != rank)
        return SlowRank(rank=rank, node=self._nodes[rank], work=work, ratio=ratio)

    def _is_named_fast(self) -> bool:
        """Between two throttles of its CPU a rank is as fast as the others: perhaps at most looks."""
        if self._named is None:
            return True
        rank, work = self._named
        times = self._works[work]
        others = median(own for other, own in times.usual.items() if other != rank)
        return mean(times.newest[rank]) < self._clearly * others


@dataclass(slots=True)
class _Times:
    """Of one kind of work: by rank, the newest times and their median."""

    newest: dict[int, deque[float]] = field(default_factory=dict)
    usual: dict[int, float] = field(default_factory=dict)

    def hear(self, rank: int, took_s: float) -> bool:
        """Whether the median is a new one. A time that is told again counts once."""
        newest = self.newest.setdefault(rank, deque(maxlen=_NUM_TIMES))
        if took_s <= 0 or (newest and newest[-1] == took_s):
            return False
        newest.append(took_s)
        if len(newest) < _FEWEST_TIMES:
            return False
        self.usual[rank] = median(newest)
        return True
