"""A store in memory that counts requests and bytes, and lists as a bucket does: in order, by prefix."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from checkpointing.stores.contract import Buffer
from checkpointing.stores.memory import MemoryStore

_NAMES_A_PAGE = 1000


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.num_requests = self.num_bytes = 0
        # Also names that were deleted: to take one out would take as long as there are names.
        self._sorted: list[str] = []

    def put(self, name: str, data: Buffer) -> None:
        self._count(len(data))
        super().put(name, data)
        self._note(name)

    def create(self, name: str, data: Buffer) -> None:
        self._count(len(data))
        super().create(name, data)
        self._note(name)

    def get(self, name: str) -> bytes:
        found = super().get(name)
        self._count(len(found))
        return found

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        found = super().get(name)[start : start + len(into)]
        self._count(len(found))
        into[: len(found)] = found
        return len(found)

    def size(self, name: str) -> int:
        self._count(0)
        return len(super().get(name))

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        names, first = self._sorted, f"{prefix}/"
        begin = max(bisect_left(names, first), bisect_right(names, after))
        found = [name for name in names[begin : bisect_left(names, f"{prefix}0")] if name in self._objects]
        for number, name in enumerate(found or [""]):
            if number % _NAMES_A_PAGE == 0:
                self._count(0)
            if name:
                self.num_bytes += len(name)
                yield name

    def delete(self, name: str) -> None:
        self._count(0)
        super().delete(name)

    def _note(self, name: str) -> None:
        place = bisect_left(self._sorted, name)
        if self._sorted[place : place + 1] != [name]:
            self._sorted.insert(place, name)

    def _count(self, num_bytes: int) -> None:
        self.num_requests += 1
        self.num_bytes += num_bytes
