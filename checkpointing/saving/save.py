"""What a save is, and what becomes of it. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from checkpointing.format.manifest import Cut, FilePart
from checkpointing.log.history import Generation


class SaveFailed(Exception):
    """This save is dropped, the next one may work."""


class Mailbox(Protocol):
    """Small messages between the ranks of one attempt. Each is taken once, and no name is used twice."""

    def post(self, name: str, value: bytes, *, to: int) -> None: ...

    def take(self, name: str, timeout_s: float, *, sender: int) -> bytes | None:
        """Waits for it; None if it doesn't come in time. What the rank ``sender`` has not written is none."""


class SaveMemory(Protocol):
    """Memory that holds one rank's file."""

    @property
    def data(self) -> memoryview: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """One rank's share of a cut. ``part`` is without digests until they are computed in the background."""

    cut: Cut
    part: FilePart
    room: SaveMemory
    to_disk: bool
    to_store: bool
    blocked_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveNote:
    """What became of a save at one place, "disk" or "store". ``problem`` is None where it went well."""

    step: int
    generation: str
    place: str
    num_bytes: int
    blocked_s: float
    took_s: float
    problem: str | None = None


Tell = Callable[[SaveNote], None]


@dataclass(slots=True, kw_only=True)
class Tally:
    """How saving is going, as one rank sees it. Written by the background, read by the training.

    ``durable_name``, ``durable_step`` and ``durable_s`` (when) are the newest commit's, which rank 0 knows.
    """

    num_committed: int = 0
    num_failed: int = 0
    num_skipped: int = 0
    durable_name: str | None = None
    durable_step: int | None = None
    durable_s: float | None = None
    is_fenced: bool = False
    _before: tuple[str | None, int | None, float | None] = (None, None, None)

    def durable(self, generation: Generation) -> None:
        self._before = (self.durable_name, self.durable_step, self.durable_s)
        self.durable_name = generation.name
        self.durable_step = generation.step
        self.durable_s = generation.committed_s

    def damaged(self) -> None:
        """The newest commit is not what was saved: the one before it is the newest that is durable."""
        self.durable_name, self.durable_step, self.durable_s = self._before
