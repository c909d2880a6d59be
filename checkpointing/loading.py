"""Bytes of a generation into memory, each chunk compared with its digest before it counts as loaded."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import local

from checkpointing.digests import digest
from checkpointing.errors import Corrupt
from checkpointing.manifest import CHUNK_BYTES, Manifest, Part
from checkpointing.reshard import Copy
from checkpointing.store import Missing, Store, StoreError, Unavailable

_NUM_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a generation's files may be: below ``folder`` of ``store``."""

    store: Store
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    part: Part
    number: int
    copies: tuple[Copy, ...]

    @property
    def start(self) -> int:
        return self.number * CHUNK_BYTES

    @property
    def num_bytes(self) -> int:
        return min(CHUNK_BYTES, self.part.num_bytes - self.start)


def fill(
    manifest: Manifest,
    copies: Mapping[int, Sequence[Copy]],
    wants: Sequence[memoryview],
    places: Sequence[Place],
) -> None:
    """Carries out ``copies`` (by rank, see ``reshard.plan``), each chunk from the first place that has it.

    Raises ``Corrupt`` if no place has one, ``Unavailable`` if one that can't be reached now might. Then what
    was filled so far is worth nothing.
    """
    parts = {part.rank: part for part in manifest.parts}
    chunks = [chunk for rank, found in copies.items() for chunk in _chunks(parts[rank], found)]
    _for_each(chunks, _Reader(places, wants).load)


def verify(part: Part, place: Place) -> None:
    """Reads one rank's file back whole; raises ``Corrupt`` if it is not what was saved."""
    chunks = [_Chunk(part=part, number=number, copies=()) for number in range(len(part.chunks))]
    _for_each(chunks, _Reader([place], []).load)
    beyond = memoryview(bytearray(1))
    if place.store.get_range(f"{place.folder}/{part.file}", part.num_bytes, beyond):
        raise Corrupt(f"{part.file} is longer than {part.num_bytes} bytes")


def _for_each(chunks: Sequence[_Chunk], load: Callable[[_Chunk], None]) -> None:
    if len(chunks) == 1:
        load(chunks[0])
        return
    with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="read") as pool:
        tasks = [pool.submit(load, chunk) for chunk in chunks]
        try:
            for task in tasks:
                task.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _chunks(part: Part, copies: Sequence[Copy]) -> Iterator[_Chunk]:
    """Those that hold something of ``copies``, which are in the file's order, each with its share of them."""
    shares: dict[int, list[Copy]] = {}
    for copy in copies:
        for share in _split(copy):
            shares.setdefault(share.offset // CHUNK_BYTES, []).append(share)
    for number, found in shares.items():
        yield _Chunk(part=part, number=number, copies=tuple(found))


def _split(copy: Copy) -> Iterator[Copy]:
    """At the borders of chunks."""
    done = 0
    while done < copy.num_bytes:
        offset = copy.offset + done
        size = min(copy.num_bytes - done, CHUNK_BYTES - offset % CHUNK_BYTES)
        yield Copy(offset=offset, num_bytes=size, want=copy.want, to=copy.to + done)
        done += size


class _Reader:
    """Reads whole chunks, since digests are theirs, right to where they belong if nothing else is in them."""

    def __init__(self, places: Sequence[Place], wants: Sequence[memoryview]) -> None:
        self._places = places
        self._wants = wants
        self._scratch = local()

    def load(self, chunk: _Chunk) -> None:
        problems: list[Exception] = []
        for place in self._places:
            try:
                return self._load_from(place, chunk)
            except (Corrupt, StoreError) as error:
                problems.append(error)
        raise next((error for error in problems if isinstance(error, Unavailable)), _as_corrupt(problems[-1]))

    def _load_from(self, place: Place, chunk: _Chunk) -> None:
        into = self._destination(chunk)
        name = f"{place.folder}/{chunk.part.file}"
        count = place.store.get_range(name, chunk.start, into)
        if count < len(into) or digest(into) != chunk.part.chunks[chunk.number]:
            raise Corrupt(f"{place.store.url}: {name}: bytes from {chunk.start} on are not what was saved")
        if not self._is_direct(chunk):
            for copy in chunk.copies:
                begin = copy.offset - chunk.start
                found = into[begin : begin + copy.num_bytes]
                self._wants[copy.want][copy.to : copy.to + copy.num_bytes] = found

    def _destination(self, chunk: _Chunk) -> memoryview:
        if self._is_direct(chunk):
            copy = chunk.copies[0]
            return self._wants[copy.want][copy.to : copy.to + copy.num_bytes]
        if not hasattr(self._scratch, "memory"):
            self._scratch.memory = memoryview(bytearray(CHUNK_BYTES))
        scratch: memoryview = self._scratch.memory
        return scratch[: chunk.num_bytes]

    def _is_direct(self, chunk: _Chunk) -> bool:
        return len(chunk.copies) == 1 and chunk.copies[0].num_bytes == chunk.num_bytes


def _as_corrupt(error: Exception) -> Exception:
    """A file that is not there is as bad as one that is damaged."""
    return Corrupt(str(error)) if isinstance(error, Missing) else error
