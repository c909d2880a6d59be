"""Loads the bytes of a generation into memory. Each chunk must match its digest before it counts as
loaded.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import local

from checkpointing.errors import Corrupt
from checkpointing.format.digests import digest
from checkpointing.format.manifest import CHUNK_BYTES, FilePart, Manifest
from checkpointing.format.reshard import Copy
from checkpointing.stores.contract import Missing, Store, StoreError, Unavailable
from checkpointing.stores.local import LocalStore

# A server answers late, so many requests run at once. Reads from a local disk are limited by this machine's
# cores instead.
_NUM_THREADS, _NUM_THREADS_NEAR = 8, 3
# Beside a training a thread takes longer to start than a chunk that is near to be read.
_FEW, _FEW_NEAR = 1, 2
# Limit of reads for one chunk, which may hold hundreds of small tensors.
_MOST_READS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPlace:
    """A place where a generation's files may be: below ``folder`` of ``store``.

    ``is_near`` says whether that store is a local directory.
    """

    store: Store
    folder: str

    @property
    def is_near(self) -> bool:
        return isinstance(self.store, LocalStore)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    part: FilePart
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
    places: Sequence[GenerationPlace],
) -> None:
    """Carries out ``copies`` (by rank, see ``reshard.plan``); each chunk comes from the first place that
    has it.

    Raises ``Corrupt`` if no place has a chunk. Raises ``Unavailable`` if a place that cannot be reached now
    might have it. After either error the buffers in ``wants`` hold nothing usable.
    """
    parts = {part.rank: part for part in manifest.parts}
    chunks = [chunk for rank, found in copies.items() for chunk in _chunks(parts[rank], found)]
    _for_each(chunks, _Reader(places, wants).load, is_near=places[0].is_near)


def verify(part: FilePart, place: GenerationPlace) -> None:
    """Reads one rank's whole file back; raises ``Corrupt`` if it is not what was saved."""
    chunks = [_Chunk(part=part, number=number, copies=()) for number in range(len(part.chunks))]
    _for_each(chunks, _Reader([place], []).load, is_near=place.is_near)
    # Not by a read behind the end: some servers answer that with an empty 206, which no library understands.
    if place.store.size(f"{place.folder}/{part.file}") > part.num_bytes:
        raise Corrupt(f"{part.file} is longer than {part.num_bytes} bytes")


def _for_each(chunks: Sequence[_Chunk], load: Callable[[_Chunk], None], *, is_near: bool) -> None:
    if len(chunks) <= (_FEW_NEAR if is_near else _FEW):
        for chunk in chunks:
            load(chunk)
        return
    num_threads = _NUM_THREADS_NEAR if is_near else _NUM_THREADS
    with ThreadPoolExecutor(num_threads, thread_name_prefix="read") as pool:
        tasks = [pool.submit(load, chunk) for chunk in chunks]
        try:
            for task in tasks:
                task.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _chunks(part: FilePart, copies: Sequence[Copy]) -> Iterator[_Chunk]:
    """Yields the chunks that ``copies`` need, each with its share of them. ``copies`` must be in file
    order.
    """
    shares: dict[int, list[Copy]] = {}
    for copy in copies:
        for share in _split(copy):
            shares.setdefault(share.offset // CHUNK_BYTES, []).append(share)
    for number, found in shares.items():
        yield _Chunk(part=part, number=number, copies=tuple(found))


def _split(copy: Copy) -> Iterator[Copy]:
    """Splits a copy at chunk borders."""
    done = 0
    while done < copy.num_bytes:
        offset = copy.offset + done
        size = min(copy.num_bytes - done, CHUNK_BYTES - offset % CHUNK_BYTES)
        yield Copy(offset=offset, num_bytes=size, want=copy.want, to=copy.to + done)
        done += size


class _Reader:
    """Reads whole chunks, because each digest covers a whole chunk."""

    def __init__(self, places: Sequence[GenerationPlace], wants: Sequence[memoryview]) -> None:
        self._places = places
        self._wants = wants
        self._threads = local()

    def load(self, chunk: _Chunk) -> None:
        problems: list[Exception] = []
        for place in self._places:
            try:
                return self._load_from(place, chunk)
            except (Corrupt, StoreError) as error:
                problems.append(error)
        raise next((error for error in problems if isinstance(error, Unavailable)), _as_corrupt(problems[-1]))

    def _load_from(self, place: GenerationPlace, chunk: _Chunk) -> None:
        views, copies = self._views(place, chunk)
        name = f"{place.folder}/{chunk.part.file}"
        start, is_whole = chunk.start, True
        for view in views:
            is_whole = is_whole and place.store.get_range(name, start, view) == len(view)
            start += len(view)
        if not is_whole or digest(*views) != chunk.part.chunks[chunk.number]:
            raise Corrupt(f"{place.store.url}: {name}: bytes from {chunk.start} on are not what was saved")
        for copy in copies:
            begin = copy.offset - chunk.start
            found = views[0][begin : begin + copy.num_bytes]
            self._wants[copy.want][copy.to : copy.to + copy.num_bytes] = found

    def _views(self, place: GenerationPlace, chunk: _Chunk) -> tuple[list[memoryview], Sequence[Copy]]:
        """Returns the buffers that the chunk is read into, in file order, and the copies still to be made
        from them.

        A chunk from a local disk is read directly into its final memory: more reads cost less than a copy.
        """
        scratch, is_few = self._scratch(chunk.num_bytes), len(chunk.copies) <= _MOST_READS
        views, done = [], 0
        for copy in chunk.copies:
            begin = copy.offset - chunk.start
            if begin < done or not (is_few and (place.is_near or copy.num_bytes == chunk.num_bytes)):
                return [scratch[: chunk.num_bytes]], chunk.copies
            views.append(scratch[done:begin])
            views.append(self._wants[copy.want][copy.to : copy.to + copy.num_bytes])
            done = begin + copy.num_bytes
        return [view for view in (*views, scratch[done : chunk.num_bytes]) if view], ()

    def _scratch(self, num_bytes: int) -> memoryview:
        """Returns the scratch buffer of the calling thread, of at least ``num_bytes``."""
        scratch: memoryview = getattr(self._threads, "scratch", memoryview(b""))
        if len(scratch) < num_bytes:
            # No larger than needed: of a small save, which is read back each time, most pages stay untouched.
            scratch = self._threads.scratch = memoryview(bytearray(num_bytes))
        return scratch


def _as_corrupt(error: Exception) -> Exception:
    """Treats a missing file like a damaged one."""
    return Corrupt(str(error)) if isinstance(error, Missing) else error
