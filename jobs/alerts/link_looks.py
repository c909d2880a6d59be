"""Has the links between a run's hosts tried now and then, in a thread of its own: no driver waits for it."""

import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Self

from jobs.alerts.slow_hosts import HostLinks, LinksTried
from jobs.execution.messages import Heartbeat, WayRate

# A look that is no longer wanted ends sooner, unless the cluster does not answer.
_END_TIMEOUT_S = 10.0

_Look = tuple[HostLinks, Sequence[str], Sequence[WayRate] | None, float]


class LinkLooks:
    """``share`` is that of ``HostLinks``; with None nothing is tried. ``rates`` tries the links between these
    hosts, within a time of its own, and gives up once the look is not wanted any more; None if it can't.
    ``tell`` is called by whoever calls ``hear``. Used as a context; its end ends a look under way.
    """

    def __init__(
        self,
        share: float | None,
        rates: Callable[[Sequence[str], Callable[[], bool]], Sequence[WayRate] | None],
        tell: Callable[[LinksTried], None],
        *,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._share = share
        self._rates = rates
        self._tell = tell
        self._ticks = ticks
        self._links: HostLinks | None = None
        self._thread: Thread | None = None
        self._over: SimpleQueue[_Look] = SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._links = None
        if self._thread is not None:
            self._thread.join(_END_TIMEOUT_S)

    def begins(self, world_size: int) -> None:
        """A new attempt, which may run elsewhere."""
        self._links = None if self._share is None else HostLinks(self._share, world_size)

    def hear(self, beat: Heartbeat) -> None:
        if self._links is None:
            return
        now = self._ticks()
        self._note(now)
        self._links.hear(beat, now)
        if self._thread is None and (hosts := self._links.due(now)):
            look = [self._links, hosts]
            self._thread = Thread(target=self._look, args=look, name="link-looks", daemon=True)
            self._thread.start()

    def _note(self, now: float) -> None:
        try:
            links, hosts, rates, took_s = self._over.get_nowait()
        except Empty:
            return
        self._thread = None
        # Of an attempt that is over nothing is told.
        if links is self._links and (tried := links.tried(hosts, rates, took_s, now)):
            self._tell(tried)

    def _look(self, links: HostLinks, hosts: Sequence[str]) -> None:
        began, rates = self._ticks(), None
        try:
            rates = self._rates(hosts, lambda: links is self._links)
        finally:
            self._over.put((links, hosts, rates, self._ticks() - began))
