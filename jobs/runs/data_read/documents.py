"""Reads all tokens of a place, and tells of its documents: how many, how long, copies, what samples cut.

No document and no shard is held in memory as a whole: what is kept of a document is eight bytes.
"""

import math
import re
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise

from checkpointing.stores.contract import Missing, Store
from jobs.commandline.output import say
from jobs.training.data.formats.decoding import ids_of
from jobs.training.task.token_index import BEGINS, DECODED, DTYPE_BYTES, DataError, TokenIndex, TokenShard
from jobs.training.task.windows import Windows
from reporting.recording.read_data import DocumentFacts

# Their hashes take 400 MB.
MOST_COMPARED = 50_000_000
PROGRESS_S = 10.0
READ_BYTES = 8 << 20
_HASH_BYTES = 8
# The byte of a token that has its flags, and all its values in which a conversation begins.
_FLAGS = 3
_BEGINS = re.compile(b"[%s]" % re.escape(bytes(flags for flags in range(256) if flags << 24 & BEGINS)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Tokens, where they lie. ``end_id`` ends a document; ``windows`` are the samples of a spec, of which the
    last ``num_held_out`` are held out.
    """

    store: Store
    index: TokenIndex
    end_id: int | None = None
    windows: Windows | None = None
    num_held_out: int = 0

    @property
    def num_bytes(self) -> int:
        return self.index.num_tokens * DTYPE_BYTES[self.index.dtype]


class TooManyDocuments(Exception):
    pass


def read_documents(place: Place, most_documents: float = math.inf) -> DocumentFacts:
    """Raises ``DataError`` if a shard is not as the index says, ``StoreError`` if the store fails,
    ``TooManyDocuments`` at the first above ``most_documents``.

    Nothing else than an end token or a flag tells where a document ends, so there must be one of both.
    """
    width, is_chat = DTYPE_BYTES[place.index.dtype], place.index.chat is not None
    found = _Found(width, _is_cut(place), most_documents)
    end_id = place.end_id or 0
    if end_id >> 8 * width:
        raise DataError(f"the id {end_id:,}, which ends a document, is beyond {place.index.dtype}")
    end = end_id.to_bytes(width, "little")
    for part in _told(place, parts_of(place), width):
        if is_chat:
            _add_conversations(found, part)
        else:
            _add_documents(found, part, end)
    if is_chat:
        found.end_conversation()
    else:
        found.end(is_whole=False)
    counts = [found.lengths.get(bits, 0) for bits in range(max(found.lengths, default=0) + 1)]
    return DocumentFacts(
        num_tokens=place.index.num_tokens,
        num_documents=found.num_documents,
        longest=found.longest,
        length_bounds=[0, *(1 << bits for bits in range(len(counts)))],
        length_counts=counts,
        num_compared=sum(map(len, found.hashes)),
        num_copies=sum(len(some) - len(set(some)) for some in found.hashes),
        num_padding_tokens=found.num_padding,
        num_cut=None if place.windows is None or is_chat else found.num_cut,
    )


def _is_cut(place: Place) -> Callable[[int, int], bool]:
    """Whether no sample holds the tokens from a first one to before a last one as a whole."""
    if (windows := place.windows) is None:
        return lambda first, end: False
    num_all, size = windows.num_samples + place.num_held_out, windows.window_tokens

    def is_cut(first: int, end: int) -> bool:
        # Samples share a token, and those held out begin one token later.
        number = first // windows.seq_len
        near = (windows.start_of(one) for one in range(max(0, number - 2), min(number + 1, num_all)))
        return not any(start <= first and end <= start + size for start in near)

    return is_cut


class _Found:
    """What was found so far. The open document is what was added since the last ``end``."""

    def __init__(self, width: int, is_cut: Callable[[int, int], bool], most_documents: float) -> None:
        self.num_documents = self.longest = self.num_padding = self.num_cut = 0
        # How many documents, by the bits of their lengths.
        self.lengths: dict[int, int] = {}
        # By their first byte, so that those which are compared at once are few.
        self.hashes = [array("Q") for _ in range(256)]
        self._width, self._is_cut, self._most_documents = width, is_cut, most_documents
        self._num_hashes = self._at = 0
        self._begin()

    def _begin(self) -> None:
        self._first, self._has_values = self._at, False
        self._hash = blake2b(digest_size=_HASH_BYTES)

    def add(self, ids: bytes) -> None:
        self._hash.update(ids)
        self._at += len(ids) // self._width

    def add_conversation(self, words: bytes) -> None:
        """As ``add``, of words with flags. What fills a row has that of its beginning and nothing else."""
        is_begin = self._at == self._first
        self.add(words)
        self._has_values |= len(words) - words.count(0) > is_begin

    def end_conversation(self) -> None:
        if self._has_values:
            self.end(is_whole=False)
        else:
            self.num_padding += self._at - self._first
            self._begin()

    def end(self, *, is_whole: bool) -> None:
        """Ends the open document, which has a token for its end if it ``is_whole``. Nothing is no document
        without one.
        """
        length = self._at - self._first
        self._at += is_whole
        if length or is_whole:
            self.num_documents += 1
            if self.num_documents > self._most_documents:
                raise TooManyDocuments
            self.longest = max(self.longest, length)
            self.lengths[length.bit_length()] = self.lengths.get(length.bit_length(), 0) + 1
            self.num_cut += self._is_cut(self._first, self._at)
        if length and self._num_hashes < MOST_COMPARED:
            digest = self._hash.digest()
            self.hashes[digest[0]].append(int.from_bytes(digest, "little"))
            self._num_hashes += 1
        self._begin()


def _add_documents(found: _Found, part: bytes, end: bytes) -> None:
    width, first, at = len(end), 0, part.find(end)
    while at >= 0:
        # Between two ids the same bytes mean nothing.
        if at % width:
            at = part.find(end, at + 1)
            continue
        found.add(part[first:at])
        found.end(is_whole=True)
        first = at + width
        at = part.find(end, first)
    found.add(part[first:])


def _add_conversations(found: _Found, part: bytes) -> None:
    begins = [4 * match.start() for match in _BEGINS.finditer(part[_FLAGS::4])]
    ends = [*begins, len(part)]
    found.add_conversation(part[: ends[0]])
    for first, end in pairwise(ends):
        found.end_conversation()
        found.add_conversation(part[first:end])


def _told(place: Place, parts: Iterator[bytes], width: int) -> Iterator[bytes]:
    """Says on standard error how far reading is, every ten seconds."""
    num_read, said_s = 0, time.monotonic()
    for part in parts:
        yield part
        num_read += len(part) // width
        if time.monotonic() - said_s >= PROGRESS_S:
            said_s = time.monotonic()
            total = f"{place.index.num_tokens:,} tokens"
            say(f"longhaul data: {place.store.url}: read {num_read:,} of {total}", to=sys.stderr)


def parts_of(place: Place) -> Iterator[bytes]:
    """All tokens as they lie, whole ones in each part. Raises as ``read_documents``."""
    width = DTYPE_BYTES[place.index.dtype]
    for shard in place.index.shards:
        if shard.name.endswith(DECODED):
            yield from ids_of(place.store, shard)
        else:
            yield from _raw(place.store, shard, width)


def _raw(store: Store, shard: TokenShard, width: int) -> Iterator[bytes]:
    buffer, num_bytes = memoryview(bytearray(READ_BYTES)), shard.num_tokens * width
    for start in range(0, num_bytes, len(buffer)):
        into = buffer[: num_bytes - start]
        try:
            count = store.get_range(shard.name, start, into)
        except Missing:
            count = 0
        if count < len(into):
            raise DataError(f"{store.url}/{shard.name}: is not there, or shorter than its index says")
        yield bytes(into)
