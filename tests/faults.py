"""The vocabulary of failure: stores that lose power at a call of your choice."""

import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from checkpointing.stores.contract import Buffer, Store

Answer = TypeVar("Answer")


class PowerCut(BaseException):
    """The machine is gone. No ``except Exception`` of the code under test survives it."""


class FaultyStore:
    """``inner``, until the power fails at call number ``cut_at`` (the first is 1); ``None`` never fails.

    The call that is cut did not happen, or with ``after`` it happened and nobody was told. From then on
    every call raises ``PowerCut`` and reaches nothing, as the calls of a dead machine do. ``calls`` names
    every call that reached the machine while it had power, the cut one included: ``"put runs/r/a"``. A
    ``list`` is one call, made when it is called and not when it is walked.
    """

    def __init__(self, inner: Store, *, cut_at: int | None = None, after: bool = False) -> None:
        self.inner = inner
        self.url = inner.url
        self.calls: list[str] = []
        self._cut_at = cut_at
        self._after = after
        self._lock = threading.Lock()
        self._has_power = True

    def probe(self) -> None:
        self._call("probe", self.inner.probe)

    def put(self, name: str, data: Buffer) -> None:
        self._call(f"put {name}", lambda: self.inner.put(name, data))

    def create(self, name: str, data: Buffer) -> None:
        self._call(f"create {name}", lambda: self.inner.create(name, data))

    def get(self, name: str) -> bytes:
        return self._call(f"get {name}", lambda: self.inner.get(name))

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        return self._call(f"get_range {name}", lambda: self.inner.get_range(name, start, into))

    def size(self, name: str) -> int:
        return self._call(f"size {name}", lambda: self.inner.size(name))

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        return iter(self._call(f"list {prefix}", lambda: [*self.inner.list(prefix, after=after)]))

    def contents(self) -> Iterator[str]:
        return iter(self._call("contents", lambda: [*self.inner.contents()]))

    def delete(self, name: str) -> None:
        self._call(f"delete {name}", lambda: self.inner.delete(name))

    def _call(self, what: str, do: Callable[[], Answer]) -> Answer:
        """The lock lets one call at a time through, so that none lands behind the cut."""
        with self._lock:
            if not self._has_power:
                raise PowerCut(f"no power for {what}")
            self.calls.append(what)
            self._has_power = len(self.calls) != self._cut_at
            if self._has_power:
                return do()
            if self._after:
                do()
            landed = "after" if self._after else "before"
            raise PowerCut(f"at call {len(self.calls)}, {what}, {landed} it landed")
