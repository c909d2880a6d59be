"""A save and its outcome. Pure."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from checkpointing.format.manifest import Cut, FilePart
from checkpointing.log.history import Generation


class SaveFailed(Exception):
    """This save is dropped; the next one may work."""


class Mailbox(Protocol):
    """Carries small messages between the ranks of one attempt. Each is taken once, and no name is used
    twice.
    """

    def post(self, name: str, value: bytes, *, to: int) -> None: ...

    def take(self, name: str, timeout_s: float, *, sender: int) -> bytes | None:
        """Waits for the message that rank ``sender`` wrote; None if it does not come within ``timeout_s``.
        A message written by another rank is ignored.
        """

    def discard(self, name: str) -> bool:
        """Deletes the message, whoever wrote it. Returns whether one was there. Never raises."""


class SaveMemory(Protocol):
    """Memory that holds one rank's file. ``data`` waits for what is still being copied into it, and raises
    if that failed.
    """

    @property
    def data(self) -> memoryview: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """One rank's share of a cut. ``part`` has no digests until they are computed in the background.

    ``waited_s`` tells how long the training has waited since the cut for what was still being copied.
    """

    cut: Cut
    part: FilePart
    room: SaveMemory
    to_disk: bool
    to_store: bool
    blocked_s: float
    to_memory: bool = False
    waited_s: Callable[[], float] = lambda: 0.0


class KeptInMemory(Protocol):
    """Where the hosts keep the newest shares in memory."""

    def keep(self, save: Save) -> str | None:
        """Keeps this rank's share outside of this process. Returns what is wrong although it is there."""

    def exchange(self, save: Save | None) -> str | None:
        """Brings what was kept to other hosts, and keeps what they bring. Every rank calls it once for each
        save in memory, with None where its own could not be kept.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveNote:
    """The outcome of a save at one ``place``, "memory", "disk" or "store". ``problem`` is None if the save
    succeeded. ``finding`` is what is wrong although it succeeded, such as a deletion that the store refuses.
    """

    step: int
    generation: str
    place: str
    num_bytes: int
    blocked_s: float
    took_s: float
    problem: str | None = None
    finding: str | None = None

    @property
    def what(self) -> str:
        place = "memory" if self.place == "memory" else f"the {self.place}"
        return f"save of step {self.step} to {place}"


Tell = Callable[[SaveNote], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """How a rank's share of the save of ``step`` goes to the store. Until it ``is_done``, ``took_s`` is how
    long that has taken so far.
    """

    step: int
    num_bytes: int
    took_s: float
    is_done: bool

    @property
    def bytes_per_s(self) -> float:
        """The rate; until it is done, the highest that it may still have."""
        return self.num_bytes / max(self.took_s, 1e-9)


@dataclass(slots=True, kw_only=True)
class Tally:
    """The state of saving as one rank sees it. The background threads write it and the training reads it.

    ``durable_name``, ``durable_step`` and ``durable_s`` (the time) describe the newest commit; only rank 0
    knows them.
    """

    num_committed: int = 0
    num_failed: int = 0
    num_skipped: int = 0
    durable_name: str | None = None
    durable_step: int | None = None
    durable_s: float | None = None
    is_fenced: bool = False
    _upload: tuple[int, int, float, float | None] | None = None
    _before: tuple[str | None, int | None, float | None] = (None, None, None)

    def durable(self, generation: Generation) -> None:
        self._before = (self.durable_name, self.durable_step, self.durable_s)
        self.durable_name = generation.name
        self.durable_step = generation.step
        self.durable_s = generation.committed_s

    @contextmanager
    def uploading(self, step: int, num_bytes: int, ticks: Callable[[], float]) -> Iterator[None]:
        """Inside, this rank's share is uploaded. An upload that fails says nothing of the link."""
        began = ticks()
        self._upload = step, num_bytes, began, None
        try:
            yield
        except BaseException:
            self._upload = None
            raise
        self._upload = step, num_bytes, began, ticks()

    def upload(self, now: float) -> Upload | None:
        """This rank's newest upload; None before the first, and after one that failed."""
        if self._upload is None:
            return None
        step, num_bytes, began, ended = self._upload
        took_s = (now if ended is None else ended) - began
        return Upload(step=step, num_bytes=num_bytes, took_s=took_s, is_done=ended is not None)

    def damaged(self) -> None:
        """Records that the newest commit is not what was saved, so the one before it is the newest durable
        one.
        """
        self.durable_name, self.durable_step, self.durable_s = self._before
