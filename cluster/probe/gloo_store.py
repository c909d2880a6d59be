"""The store that gloo's words go through, each with a MAC.

gloo copies its peers' addresses out of the store as they lay in another rank's memory, and takes the lengths
that stand there. Whoever changes one ends the process with a memory error, or makes it write where he likes.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from cluster.probe.roll_call import stranger_wrote
from cluster.run_key import Refused, read, sign

# gloo's word of a rank has some hundred bytes for each of its peers.
_MOST_BYTES = 2**23
# Of a store that is made in Python, torch keeps no more than its own half, and asks it for each new group.
_kept: list["GlooStore"] = []


class GlooStore(dist.Store):  # type: ignore[name-defined,misc]  # torch does not list it
    """torch calls it for each group, also for those that are made later. Raises ``Unmet``, which blames
    nobody, where somebody without the key wrote. Numbers that ranks count carry no MAC. ``inner`` is torch's
    own store, and ``place`` says where it is.
    """

    def __init__(self, inner: Any, key: bytes, place: str) -> None:
        super().__init__()
        self._inner = inner
        self._key = key
        self._place = place
        _kept[:] = [self]

    def set(self, name: str, value: bytes | str) -> None:
        # A text comes from torch's own barrier, see TORCH_DIST_INIT_BARRIER.
        content = value.encode() if isinstance(value, str) else value
        self._inner.set(name, sign(self._key, _subject(name), content))

    def get(self, name: str) -> bytes:
        try:
            return read(self._key, _subject(name), self._inner.get(name), _MOST_BYTES)
        except Refused:
            raise stranger_wrote(self._place) from None

    def wait(self, names: Sequence[str], *timeout: timedelta) -> None:
        self._inner.wait(names, *timeout)

    def add(self, name: str, amount: int) -> int:
        return int(self._inner.add(name, amount))

    def set_timeout(self, timeout: timedelta) -> None:
        self._inner.set_timeout(timeout)


def _subject(name: str) -> tuple[str, str]:
    return ("gloo", name)
