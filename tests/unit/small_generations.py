"""Small generations whose bytes follow from their names, so that a loaded one proves itself right."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Condition
from typing import Any

from checkpointing.format.digests import digests
from checkpointing.format.loading import GenerationPlace, fill
from checkpointing.format.manifest import Cut, FilePart, Manifest, Shard, TensorInfo, file_name
from checkpointing.format.reshard import Want, plan
from checkpointing.generations.repository import Repository, generation_name
from checkpointing.generations.retention import Retention
from checkpointing.log.history import Commit, Entry, Generation, LogView, Verified, after
from checkpointing.saving.publishing.publisher import Publisher, SavingAttempt
from checkpointing.saving.save import Save, SaveMemory, Tally
from checkpointing.stores.contract import StoreError

RUN = "r"
TENSOR = "param/w"
# A rank's share of it: prime, so that nothing fits by chance.
SHARE = 23
HEADER = b"header.."


def view_of(*entries: Entry) -> LogView:
    view = LogView()
    for entry in entries:
        view = after(view, entry)
    return view


def generation(number: int, *, term: int = 1, step: int | None = None, **more: Any) -> Generation:
    step = number * 10 if step is None else step
    found = Generation(
        name=generation_name(step, term, f"s{number}"),
        step=step,
        term=term,
        number=number,
        committed_s=float(number),
        num_bytes=1000,
        manifest_digest="0" * 64,
    )
    return replace(found, **more)


def good(number: int, **more: Any) -> list[Entry]:
    """Committed and verified."""
    found = generation(number, **more)
    return [Commit(generation=found), Verified(name=found.name)]


def cut_of(step: int, *, term: int, number: int, world_size: int = 1, save_id: str = "") -> Cut:
    return Cut(
        generation=generation_name(step, term, save_id or f"s{number}"),
        run=RUN,
        step=step,
        term=term,
        number=number,
        strategy="ddp",
        world_size=world_size,
        created_s=0.0,
    )


def content(name: str, world_size: int) -> bytes:
    """The whole tensor of the generation ``name``."""
    num_bytes = SHARE * world_size
    return (hashlib.sha256(name.encode()).digest() * (num_bytes // 32 + 1))[:num_bytes]


def file_of(cut: Cut, rank: int) -> bytes:
    return HEADER + content(cut.generation, cut.world_size)[rank * SHARE : (rank + 1) * SHARE]


def part_of(cut: Cut, rank: int) -> FilePart:
    data = file_of(cut, rank)
    return FilePart(
        rank=rank,
        file=file_name(rank),
        num_bytes=len(data),
        chunks=digests(memoryview(data)),
        tensors=(TensorInfo(name=TENSOR, dtype="U8", shape=(SHARE * cut.world_size,)),),
        shards=(Shard(tensor=TENSOR, start=rank * SHARE, length=SHARE, offset=len(HEADER)),),
    )


@dataclass(slots=True)
class Memory:
    """A room. ``SaveMemory`` asks for no more."""

    data: memoryview


def room_of(cut: Cut, rank: int) -> SaveMemory:
    return Memory(memoryview(bytearray(file_of(cut, rank))))


def save_of(
    cut: Cut, rank: int = 0, *, room: SaveMemory | None = None, to_disk: bool = False, to_store: bool = True
) -> Save:
    return Save(
        cut=cut,
        part=replace(part_of(cut, rank), chunks=()) if room else part_of(cut, rank),
        room=room or room_of(cut, rank),
        to_disk=to_disk,
        to_store=to_store,
        blocked_s=0.0,
    )


class Letters:
    """A mailbox between threads of this process."""

    def __init__(self) -> None:
        self._letters: dict[str, bytes] = {}
        self._changed = Condition()

    def post(self, name: str, value: bytes, *, to: int) -> None:
        with self._changed:
            self._letters[name] = value
            self._changed.notify_all()

    def take(self, name: str, timeout_s: float, *, sender: int) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: name in self._letters, timeout_s)
            return self._letters.pop(name, None)

    def discard(self, name: str) -> bool:
        with self._changed:
            return self._letters.pop(name, None) is not None

    def waiting(self) -> list[str]:
        """The names of the messages that nobody has taken."""
        return sorted(self._letters)


class Ranks:
    """All ranks of one attempt, each publishing its share in turn, rank 0 last."""

    def __init__(
        self,
        repository: Repository,
        term: int,
        *,
        world_size: int = 1,
        retention: Retention | None = None,
        num_saved: int = 0,
        ticks: Callable[[], float] = time.monotonic,
        tally: Tally | None = None,
        keep: Callable[[Cut], None] = lambda cut: None,
    ) -> None:
        """``keep`` is what each save does before it goes to the store."""
        self.term = term
        self.world_size = world_size
        self.tally = tally or Tally()
        self.mailbox = mailbox = Letters()
        self._publishers = [
            Publisher(
                repository,
                mailbox,
                SavingAttempt(rank=rank, term=term, deadline_s=0.0, retention=retention or Retention()),
                self.tally,
                ticks=ticks,
            )
            for rank in range(world_size)
        ]
        self._number = num_saved
        self._keep = keep

    def save(self, step: int, *, dead: int | None = None) -> str:
        """The generation's name; raises what rank 0 met. The rank ``dead`` does nothing."""
        self._number += 1
        cut = cut_of(step, term=self.term, number=self._number, world_size=self.world_size)
        self._keep(cut)
        for rank in reversed(range(1, self.world_size)):
            with suppress(StoreError):
                if rank != dead:
                    self._publish(cut, rank)
        self._publish(cut, 0)
        return cut.generation

    def _publish(self, cut: Cut, rank: int) -> None:
        self._publishers[rank].publish(save_of(cut, rank), lambda: None)


def load(repository: Repository, found: Generation, near: Sequence[GenerationPlace] = ()) -> bytes:
    """The whole tensor; raises what loading it raises."""
    return load_from(repository.manifest(found), [*near, repository.place(found.name)])


def load_from(manifest: Manifest, places: Sequence[GenerationPlace]) -> bytes:
    num_elements = manifest.tensors[TENSOR].num_elements
    want = Want(tensor=TENSOR, start=0, length=num_elements, num_elements=num_elements, dtype="U8")
    into = bytearray(num_elements)
    fill(manifest, plan(manifest, [want]), [memoryview(into)], places)
    return bytes(into)


def names(found: Sequence[Generation]) -> list[str]:
    return [one.name for one in found]


def kept(view: LogView, reasons: Mapping[str, tuple[str, ...]]) -> list[int]:
    """Numbers of those with a reason."""
    return [one.number for one in view.generations if reasons[one.name]]
