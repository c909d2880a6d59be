"""Which host's link to the other hosts holds up steps, and when links are worth a try. Pure.

Ranks wait for each other in a step, so its time names no host. A host is slow if it sends to every other host
that was tried at a fraction of what others send at, or takes from each of them at a fraction of what others
take, twice in a row. Whatever slows down more than half of the hosts names nobody.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_high
from typing import Literal

from jobs.execution.messages import Heartbeat, WayRate

# Of two hosts that are slow with each other nobody knows which one it is.
_FEWEST_HOSTS = 3
# Of more hosts, others are tried at the next look.
_MOST_HOSTS = 64
# The first look, after the first step: processes for the next attempt are loaded sooner.
_FIRST_S = 20.0
# Between looks: while steps are slow or a host seems to be, and otherwise.
_SOON_S, _SELDOM_S = 30.0, 3600.0
# What all looks of an attempt may take: this, and so much of its time.
_FREE_S, _SHARE_OF_TIME = 30.0, 0.001
# Steps are slow if the last few took so many times what those before them did.
_NUM_STEPS, _FEWEST_STEPS, _PRESENT, _SLOWER = 600, 30, 8, 1.3


_Does = Literal["sends to", "takes from"]
# A host, another one, and the bytes/s between them.
_Way = tuple[str, str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowHost:
    node: str
    does: _Does
    bytes_per_s: float
    usual_bytes_per_s: float

    def told(self) -> str:
        own, others = (f"{rate / 1e6:,.2f} MB/s" for rate in (self.bytes_per_s, self.usual_bytes_per_s))
        times = self.usual_bytes_per_s / max(self.bytes_per_s, 1.0)
        return (
            f"{self.node} {self.does} other hosts at {own}, {times:,.0f} times slower than they do ({others})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksTried:
    """What the last looks showed. ``slow`` was so twice in a row; ``is_clear``: no host seems to be slow."""

    slow: SlowHost | None
    is_clear: bool


class HostLinks:
    """The links between the hosts of one attempt on ``world_size`` ranks.

    ``share``: of the others' rate, below which a host is slow.
    """

    def __init__(self, share: float, world_size: int) -> None:
        self._share = share
        self._world_size = world_size
        self._nodes: dict[int, str] = {}
        self._uploading: set[int] = set()
        self._step = 0
        self._steps_s: deque[float] = deque(maxlen=_NUM_STEPS)
        # Whether the present steps are slow; None: not judged yet.
        self._are_slow: bool | None = None
        # When the first step was heard of, and when the last look was over.
        self._began_s: float | None = None
        self._looked_s: float | None = None
        self._last_took_s = self._all_took_s = 0.0
        self._num_tried = 0
        self._suspects: Mapping[str, SlowHost] = {}

    def hear(self, beat: Heartbeat, now: float) -> None:
        """A rank whose node nobody knows keeps the attempt from being looked at."""
        if beat.phase != "window" or not beat.node:
            return
        self._nodes[beat.rank] = beat.node
        is_uploading = beat.upload is not None and not beat.upload.is_done
        (self._uploading.add if is_uploading else self._uploading.discard)(beat.rank)
        if beat.rank == 0 and beat.step > self._step and beat.step_s > 0:
            self._step = beat.step
            self._steps_s.append(beat.step_s)
            self._are_slow = None
            self._began_s = now if self._began_s is None else self._began_s

    @property
    def is_disturbed(self) -> bool:
        """Whether a save is on its way, which takes a link for itself: of one host perhaps."""
        return bool(self._uploading)

    def due(self, now: float) -> Sequence[str]:
        """The hosts to try now, the suspects among them; none if it is not yet time."""
        # Asked at each heartbeat, so what may take long with many ranks comes last.
        is_known = len(self._nodes) == self._world_size
        if self._began_s is None or not is_known or self.is_disturbed or not self._is_time(now):
            return ()
        hosts = sorted({*self._nodes.values()})
        if len(hosts) < _FEWEST_HOSTS:
            return ()
        first = self._num_tried % len(hosts)
        rest = [host for host in (*hosts[first:], *hosts[:first]) if host not in self._suspects]
        return [*(host for host in hosts if host in self._suspects), *rest][:_MOST_HOSTS]

    def tried(
        self, hosts: Sequence[str], rates: Sequence[WayRate] | None, took_s: float, now: float
    ) -> LinksTried | None:
        """Notes a look at these hosts that is over. None if it shows nothing."""
        self._looked_s, self._last_took_s = now, took_s
        self._all_took_s += took_s
        if not rates or self.is_disturbed:
            return None
        self._num_tried += len(hosts)
        before, self._suspects = self._suspects, _slow_ones(rates, self._share)
        named = [slow for host, slow in self._suspects.items() if host in before]
        slowest = min(named, key=lambda slow: slow.bytes_per_s / slow.usual_bytes_per_s, default=None)
        return LinksTried(slow=slowest, is_clear=not self._suspects)

    def _is_time(self, now: float) -> bool:
        assert self._began_s is not None
        if self._looked_s is None:
            return now - self._began_s >= _FIRST_S
        most_s = _FREE_S + _SHARE_OF_TIME * (now - self._began_s)
        wait_s = _SOON_S if self._suspects or self._is_slow() else _SELDOM_S
        return now - self._looked_s >= wait_s and self._all_took_s + self._last_took_s <= most_s

    def _is_slow(self) -> bool:
        if self._are_slow is None:
            steps = list(self._steps_s)
            has_enough = len(steps) >= _FEWEST_STEPS + _PRESENT
            self._are_slow = has_enough and median(steps[-_PRESENT:]) > _SLOWER * median(steps[:-_PRESENT])
        return self._are_slow


def _slow_ones(ways: Sequence[WayRate], share: float) -> dict[str, SlowHost]:
    """A host is as fast as its fastest way: who is the slow end of one is slow with all others too.

    Of its ways those count that lead to a host which is fast with somebody else.
    """
    usual = median_high(way.bytes_per_s for way in ways)
    limit, slow = share * usual, dict[str, SlowHost]()
    outward = [(way.sender, way.receiver, way.bytes_per_s) for way in ways]
    inward = [(way.receiver, way.sender, way.bytes_per_s) for way in ways]
    sides: Sequence[tuple[_Does, list[_Way], list[_Way]]] = (
        ("sends to", outward, inward),
        ("takes from", inward, outward),
    )
    for does, own, reverse in sides:
        others = _best(reverse)
        for host, rate in _best(own).items():
            fast = {other for one, other, _ in own if one == host and others[other] >= limit}
            if rate < limit and len(fast) > 1:
                found = SlowHost(node=host, does=does, bytes_per_s=rate, usual_bytes_per_s=usual)
                slow.setdefault(host, found)
    return slow


def _best(ways: Sequence[_Way]) -> dict[str, float]:
    best: dict[str, float] = {}
    for host, _, rate in ways:
        best[host] = max(rate, best.get(host, 0.0))
    return best
