"""A store that does whatever the documents of S3, GCS and Azure allow, when a seed says so.

What it refuses, loses or delays is what a client of such a store may see behind the contract: 409 and 412
that say nothing about who won, 429 and 503 for a while (``Retry-After``), answers that get lost before and
after the effect, writes that land after later ones, bodies that break off, listings page by page that are no
snapshot, and deletes that are denied. A panic of the library and bits that flip on their way in come on top.
What none of the documents allows it does not do: an object is whole or not there, a read sees the newest
write, one of many creates wins.
"""

import random
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from checkpointing.stores.contract import (
    Buffer,
    Conflict,
    Denied,
    Store,
    StoreError,
    Unavailable,
    Undecided,
    check_name,
)

Answer = TypeVar("Answer")
Write = Callable[[Store], None]
# One of so many calls has a write land that is on its way.
_LANDS_ONCE_IN = 8


class Unanswered(Unavailable):
    """The connection breaks instead of an answer."""


class Panic(BaseException):
    """A panic of the library, which is no ``Exception``."""


@dataclass(slots=True)
class Clock:
    """Sleeping moves it and takes no time."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, wait_s: float) -> None:
        self.now_s += wait_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Each share is one of all calls to which it can happen, but ``denied``, which is one of all names.

    - ``refused``: 409, 412, 429, 503 or no answer, without effect.
    - ``unanswered``: a write has its effect, and is answered like that: its own answer got lost, or a
      repetition by the library finds the name taken by itself.
    - ``late``: a write is not answered, and has its effect after later calls, or never.
    - ``torn``: a body breaks off half way.
    - ``closed``: from this call on all below its folder are answered 503 for up to ``closed_s``.
    - ``denied``: the object must not be deleted by anybody.
    - ``flipped``: a bit of what a ``put`` writes flips on its way in.
    - ``page``: the names in one page of a listing. ``slow_s``: what a call takes at most.
    """

    refused: float = 0.0
    unanswered: float = 0.0
    late: float = 0.0
    torn: float = 0.0
    closed: float = 0.0
    closed_s: float = 60.0
    denied: float = 0.0
    panics: float = 0.0
    flipped: float = 0.0
    page: int = 1000
    slow_s: float = 0.0


# What a store that answers in the end may do: whoever waits for it keeps the contract.
MILD = Weather(refused=0.1, unanswered=0.1, torn=0.1, closed=0.01, page=50, slow_s=2.0)


@dataclass(slots=True, kw_only=True)
class Sky:
    """What all clients of the store ``base`` have in common. ``note`` is told each thing that happens.

    ``flipped`` names the objects that were once written with a bit that had flipped.
    """

    base: Store
    rng: random.Random
    weather: Weather
    clock: Clock
    note: Callable[[str], None] = lambda what: None
    flipped: set[str] = field(default_factory=set)
    _on_their_way: list[Write] = field(default_factory=list)
    _closed_to_s: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, name: str) -> None:
        """Before each call: time passes, what is on its way may land, and the name's folder may be closed."""
        folder = name.rpartition("/")[0]
        with self._lock:
            self.clock.sleep(self.rng.random() * self.weather.slow_s)
            if self._on_their_way and self.rng.randrange(_LANDS_ONCE_IN) == 0:
                self._land(self._on_their_way.pop(self.rng.randrange(len(self._on_their_way))))
            if self.happens(self.weather.closed):
                self.close(folder, self.rng.random() * self.weather.closed_s)
            if self.clock() < self._closed_to_s.get(folder, 0.0):
                self.note("503")
                raise Unavailable("store: 503 SlowDown, Retry-After")
            if self.happens(self.weather.panics):
                self.note("panic before the call")
                raise Panic("called `Option::unwrap()` on a `None` value")

    def close(self, folder: str, wait_s: float) -> None:
        """All below the folder is answered 503 for so long."""
        self._closed_to_s[folder] = self.clock() + wait_s

    def happens(self, share: float) -> bool:
        return share > 0 and self.rng.random() < share

    def is_denied(self, name: str) -> bool:
        return zlib.crc32(name.encode()) / 2**32 < self.weather.denied

    def flip(self, name: str, data: bytes) -> bytes:
        self.note(f"a bit of {name} flips")
        self.flipped.add(name)
        at = self.rng.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    def send(self, write: Write) -> None:
        self._on_their_way.append(write)

    def settle(self) -> None:
        """Of what is still on its way, some lands now, and the rest never does. Then the weather is good."""
        for write in self._on_their_way:
            if self.rng.random() < 0.5:
                self._land(write)
        self._on_their_way.clear()
        self._closed_to_s.clear()
        self.weather = Weather()

    def _land(self, write: Write) -> None:
        self.note("a write lands late")
        with suppress(StoreError):
            write(self.base)


class HostileStore:
    """One client's way to ``inner``, under a sky that others share. Its calls are those of one thread at a
    time where a seed is to give the same again.
    """

    def __init__(self, inner: Store, sky: Sky) -> None:
        self.url = inner.url
        self._inner = inner
        self._sky = sky

    def probe(self) -> None:
        self._inner.probe()

    def put(self, name: str, data: Buffer) -> None:
        sent = bytes(data)
        if sent and self._sky.happens(self._sky.weather.flipped):
            self._inner.put(name, self._sky.flip(name, sent))
            return
        self.write(name, lambda store: store.put(name, sent), Undecided)

    def create(self, name: str, data: Buffer) -> None:
        sent = bytes(data)
        self.write(name, lambda store: store.create(name, sent), Conflict)

    def delete(self, name: str) -> None:
        if self._sky.is_denied(check_name(name)):
            self._sky.note("denied")
            raise Denied("store: 403 AccessDenied")
        self.write(name, lambda store: store.delete(name), Undecided)

    def get(self, name: str) -> bytes:
        self.before_a_read(name)
        return self._inner.get(name)

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        self.before_a_read(name)
        count = self._inner.get_range(name, start, into)
        if self._sky.happens(self._sky.weather.torn):
            into[count // 2 : count] = bytes(count - count // 2)
            self._fail("the body breaks off")
        return count

    def size(self, name: str) -> int:
        self.before_a_read(name)
        return self._inner.size(name)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        return iter(self._pages(f"{prefix}/", lambda: self._inner.list(prefix, after=after)))

    def contents(self) -> Iterator[str]:
        return iter(self._pages("/", self._inner.contents))

    def before_a_read(self, name: str) -> None:
        """Raises what this read is answered instead."""
        self._sky.begin(name)
        if self._sky.happens(self._sky.weather.refused):
            self._refuse(Undecided)

    def write(self, name: str, write: Write, taken: type[StoreError]) -> None:
        """Does ``write``, now, later or never, and raises what it is answered if that is no success.

        ``taken`` is what the library makes of an answer that the name is taken.
        """
        sky = self._sky
        sky.begin(name)
        if sky.happens(sky.weather.refused):
            self._refuse(taken)
        if sky.happens(sky.weather.late):
            sky.send(write)
            self._fail("no answer, and on its way")
        write(self._inner)
        if sky.happens(sky.weather.unanswered):
            self._refuse(taken, "but done")
        if sky.happens(sky.weather.panics):
            sky.note("panic after the call")
            raise Panic("called `Result::unwrap()` on an `Err` value")

    def _pages(self, folder: str, names: Callable[[], Iterator[str]]) -> Sequence[str]:
        """Between two pages names may come and go; those behind the marker are seen, others are not."""
        found: list[str] = []
        page, rest = self._sky.weather.page, True
        while rest:
            self.before_a_read(folder)
            behind = sorted(name for name in names() if not found or name > found[-1])
            found += behind[:page]
            rest = len(behind) > page
        return found

    def _refuse(self, taken: type[StoreError], effect: str = "not done") -> None:
        error, answer = self._sky.rng.choice(
            (
                (taken, "409 or 412"),
                (Undecided, "409 OperationAborted"),
                (Unavailable, "429"),
                (Unavailable, "503"),
                (Unanswered, "no answer"),
            )
        )
        self._sky.note(f"{answer}, {effect}")
        raise error(f"store: {answer}")

    def _fail(self, what: str) -> None:
        self._sky.note(what)
        raise Unanswered(f"store: {what}")
