"""The store that gloo's words go through, each with a MAC, and a group over gloo beside one over NCCL.

gloo copies its peers' addresses out of the store as they lay in another rank's memory, and takes the lengths
that stand there. Whoever changes one ends the process with a memory error, or makes it write where he likes.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from cluster.gate.packet_filter import close_ports
from cluster.probe.roll_call import stranger_wrote
from cluster.run_key import Refused, read, sign

# Words of this rank: gloo's one where it listens, and torch's own barrier's.
_MOST_KEPT = 4
# Of a store that is made in Python, torch keeps no more than its own half, and asks it for each new group.
_kept: list["GlooStore"] = []
# How many groups each default group has beside it: of two, one must not read the other's words.
_numbers: WeakKeyDictionary[dist.ProcessGroup, Iterator[int]] = WeakKeyDictionary()
# Who drops a group waits for its threads, and they perhaps for a rank that is gone.
_open: set["GlooGroup"] = set()


class GlooStore(dist.Store):  # type: ignore[name-defined,misc]  # torch does not list it
    """torch calls it for each group, also for those that are made later. Raises ``Unmet``, which blames
    nobody, where somebody without the key wrote. Numbers that ranks count carry no MAC. ``inner`` is torch's
    own store, and ``place`` says where it is.
    """

    def __init__(self, inner: Any, key: bytes, place: str) -> None:
        super().__init__()
        self._inner = inner
        self._key = key
        self.place = place
        self._told: deque[bytes] = deque(maxlen=_MOST_KEPT)

    def set(self, name: str, value: bytes | str) -> None:
        # A text comes from torch's own barrier, see TORCH_DIST_INIT_BARRIER.
        content = value.encode() if isinstance(value, str) else value
        self._told.append(content)
        self._inner.set(name, sign(self._key, _subject(name), content))

    def get(self, name: str) -> bytes:
        try:
            return read(self._key, _subject(name), self._inner.get(name))
        except Refused:
            raise stranger_wrote(self.place) from None

    def wait(self, names: Sequence[str], *timeout: timedelta) -> None:
        self._inner.wait(names, *timeout)

    def add(self, name: str, amount: int) -> int:
        return int(self._inner.add(name, amount))

    def set_timeout(self, timeout: timedelta) -> None:
        self._inner.set_timeout(timeout)

    def close_ports(self) -> None:
        """Called once this rank's groups are connected."""
        close_ports(b"".join(self._told))


def for_default_group(inner: Any, key: bytes, place: str) -> GlooStore:
    """Returns a store that lives as long as the default group, as which a process has one at a time."""
    _kept[:] = [GlooStore(inner, key, place)]
    return _kept[0]


def close_ports_of_default_group() -> None:
    for store in _kept:
        store.close_ports()


class GlooGroup(dist.ProcessGroupGloo):
    """The ranks of the default group once more, over gloo, beside whatever connects that one. Every rank
    makes it, and closes it once nobody waits in it.

    Its words carry a MAC with ``key``. The store of the default group need not: what asks it in C++ threads,
    as NCCL does, must not wait for Python. Raises ``Unmet`` as ``GlooStore`` does.
    """

    def __init__(self, key: bytes, timeout_s: float) -> None:
        world = dist.group.WORLD
        assert world is not None
        inner = world.get_group_store()
        # torch keeps no more than its own half of it, and asks it later if TORCH_GLOO_LAZY_INIT is set.
        self._store = GlooStore(inner, key, _place_of(inner))
        named = PrefixStore(f"beside/{next(_numbers.setdefault(world, count()))}", self._store)
        super().__init__(named, world.rank(), world.size(), timedelta(seconds=timeout_s))
        self._store.close_ports()
        _open.add(self)

    def close(self) -> None:
        _open.discard(self)


def _place_of(store: Any) -> str:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if isinstance(store, GlooStore):
        return store.place
    # A file's has none, and no strangers either.
    return f"{store.host}:{store.port}" if hasattr(store, "port") else "this machine"


def _subject(name: str) -> tuple[str, str]:
    return ("gloo", name)
