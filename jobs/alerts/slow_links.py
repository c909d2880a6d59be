"""Which host's link to the store holds up saves: how fast ranks upload their shares of one save. Pure.

Ranks are compared within a save alone, so a store that is slow or away for all of them names nobody. Nor does
one save: whatever is tried again once looks slow.
"""

from dataclasses import dataclass
from itertools import islice
from statistics import median_low

from jobs.execution.messages import Heartbeat

# A save that waits for less is not worth a word.
_LATE_S = 2.0
# So late a share says it by itself, also while it is under way.
_VERY_LATE_S = 30.0
_NUM_SAVES = 2
_MOST_COMPARED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    node: str
    bytes_per_s: float
    usual_bytes_per_s: float
    is_very_late: bool

    def told(self) -> str:
        own, others = (f"{rate / 1e6:,.2f} MB/s" for rate in (self.bytes_per_s, self.usual_bytes_per_s))
        return f"{self.node} uploads at {own}, other hosts at {others}: saves wait for its link to the store"


class UploadRates:
    """``share``: of the others' median rate, below which a host is slow."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._world_size = 0
        # The ranks that others are compared with, and their nodes.
        self._compared: dict[int, str] = {}
        # The rates of those that are done with the newest save, and how long each took.
        self._step = -1
        self._done: dict[int, tuple[float, float]] = {}
        self._judged: dict[int, int] = {}
        # By node, what its last saves showed, by step.
        self._saves: dict[str, dict[int, SlowLink | None]] = {}
        self._slow: dict[str, SlowLink] = {}

    def hear(self, beat: Heartbeat) -> None:
        """A rank whose node nobody knows is left out."""
        upload = beat.upload
        if upload is None or not beat.node or self._judged.get(beat.rank) == upload.step:
            return
        if not upload.bytes_per_s > 0:
            return
        if self._is_compared_with(beat.rank):
            self._compared[beat.rank] = beat.node
        if upload.is_done:
            if upload.step > self._step:
                self._step, self._done = upload.step, {}
            if upload.step == self._step:
                self._done[beat.rank] = (upload.bytes_per_s, upload.took_s)
        elif upload.took_s <= _VERY_LATE_S:
            return
        others = self._others(beat.node) if upload.step == self._step else []
        if not others:
            return
        usual, usual_s = map(median_low, zip(*others, strict=True))
        # A small share takes as long as a request does. No save waits for it while others are under way.
        late_s = upload.took_s - max(upload.num_bytes / usual, usual_s)
        is_slow = late_s > _LATE_S and upload.bytes_per_s < self._share * usual
        if upload.is_done or (is_slow and late_s > _VERY_LATE_S):
            self._judged[beat.rank] = upload.step
            slow = SlowLink(
                node=beat.node,
                bytes_per_s=upload.bytes_per_s,
                usual_bytes_per_s=usual,
                is_very_late=late_s > _VERY_LATE_S,
            )
            self._note(beat.node, upload.step, slow if is_slow else None)

    def slowest(self) -> SlowLink | None:
        """The slowest of the hosts that were slow in the last saves."""
        return min(self._slow.values(), key=lambda one: one.bytes_per_s, default=None)

    def _is_compared_with(self, rank: int) -> bool:
        """Of very many ranks, a few hundred are enough."""
        self._world_size = max(self._world_size, rank + 1)
        return rank % (self._world_size // _MOST_COMPARED + 1) == 0

    def _others(self, node: str) -> list[tuple[float, float]]:
        """The rates and times of ranks on other nodes; none before half of them are done."""
        others = [rank for rank, other in self._compared.items() if other != node]
        uploads = [self._done[rank] for rank in others if rank in self._done]
        return uploads if 2 * len(uploads) >= len(others) else []

    def _note(self, node: str, step: int, slow: SlowLink | None) -> None:
        """Of a node's ranks the slowest counts: some have little to upload."""
        saves = self._saves.setdefault(node, {})
        before = saves.get(step)
        if slow is None or (before is not None and before.bytes_per_s < slow.bytes_per_s):
            slow = before
        saves[step] = slow
        for old in [*islice(saves, max(0, len(saves) - _NUM_SAVES))]:
            del saves[old]
        self._slow.pop(node, None)
        if now := _slow_now([*saves.values()]):
            self._slow[node] = now


def _slow_now(saves: list[SlowLink | None]) -> SlowLink | None:
    newest = saves[-1]
    if newest is None or newest.is_very_late:
        return newest
    return newest if len(saves) == _NUM_SAVES and all(saves) else None
