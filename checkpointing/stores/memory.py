"""The store contract in a dictionary, for tests and trials. Its objects are gone with the process."""

import threading
from collections.abc import Iterator

from checkpointing.stores.contract import Buffer, Conflict, Missing, check_name


class MemoryStore:
    def __init__(self) -> None:
        self.url = "memory:"
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def probe(self) -> None:
        return None

    def put(self, name: str, data: Buffer) -> None:
        with self._lock:
            self._objects[check_name(name)] = bytes(data)

    def create(self, name: str, data: Buffer) -> None:
        with self._lock:
            if check_name(name) in self._objects:
                raise Conflict(f"store: {name} exists already")
            self._objects[name] = bytes(data)

    def get(self, name: str) -> bytes:
        try:
            return self._objects[check_name(name)]
        except KeyError as error:
            raise Missing(f"store: {name} does not exist") from error

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        found = self.get(name)[start : start + len(into)]
        into[: len(found)] = found
        return len(found)

    def size(self, name: str) -> int:
        return len(self.get(name))

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        folder = check_name(prefix) + "/"
        with self._lock:
            names = list(self._objects)
        yield from (name for name in names if name.startswith(folder) and name > after)

    def contents(self) -> Iterator[str]:
        with self._lock:
            names = list(self._objects)
        yield from names

    def delete(self, name: str) -> None:
        with self._lock:
            self._objects.pop(check_name(name), None)
