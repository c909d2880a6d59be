"""A store that is only read, and of which no object and no listing is larger than expected.

Whoever may write to the store may put anything there. A watcher must survive that, and must not load a
bucket's prefix of millions of names.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import NoReturn

from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Buffer, Store, StoreError
from reporting.recording.attempts import DRIVER
from reporting.recording.parts import part_name

MOST_NAMES = 200_000
_MOST_PARTS = 20_000
_MOST_BYTES = 4_000_000
_MOST_PART_BYTES = 16_000_000
_MOST_KEPT_BYTES = 128_000_000


class BoundedStore:
    """Shows rank 0's parts and the driver's alone: they describe a run, and other ranks may be ten thousand.

    Parts are never replaced, so each is read once as long as there is room for it.
    """

    def __init__(self, store: Store, *, most_names: int = MOST_NAMES) -> None:
        self.url = store.url
        self._store = store
        self._most_names = most_names
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def probe(self) -> NoReturn:
        raise _read_only()

    def put(self, _name: str, _data: Buffer) -> NoReturn:
        raise _read_only()

    def create(self, _name: str, _data: Buffer) -> NoReturn:
        raise _read_only()

    def delete(self, _name: str) -> NoReturn:
        raise _read_only()

    def get(self, name: str) -> bytes:
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name]
        is_part = part_name(name) is not None
        most = _MOST_PART_BYTES if is_part else _MOST_BYTES
        try:
            data = get_bounded(self._store, name, most_bytes=most)
        except TooLarge as error:
            raise StoreError(f"store: {name} {error}") from None
        if is_part:
            self._keep(name, data)
        return data

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        if part_name(name) is None:
            return self._store.get_range(name, start, into)
        found = self.get(name)[start : start + len(into)]
        into[: len(found)] = found
        return len(found)

    def size(self, name: str) -> int:
        return self._store.size(name)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        num_parts = 0
        for number, name in enumerate(self._store.list(prefix, after=after)):
            if number >= self._most_names:
                raise StoreError(f"store: {prefix} has more than {self._most_names:,} objects")
            found = part_name(name)
            if found is None:
                yield name
            elif found.rank in (0, DRIVER):
                num_parts += 1
                if num_parts > _MOST_PARTS:
                    raise StoreError(f"store: {prefix} has more than {_MOST_PARTS:,} parts of rank 0")
                yield name

    def contents(self) -> Iterator[str]:
        return islice(self._store.contents(), self._most_names)

    def _keep(self, name: str, data: bytes) -> None:
        with self._lock:
            self._kept_bytes += len(data) - len(self._kept.get(name, b""))
            self._kept[name] = data
            while self._kept_bytes > _MOST_KEPT_BYTES:
                _, dropped = self._kept.popitem(last=False)
                self._kept_bytes -= len(dropped)


def _read_only() -> StoreError:
    return StoreError("store: whoever watches writes nothing")
