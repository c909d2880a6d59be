"""Reads MDS shards of ids, which MosaicML Streaming writes: one column of each sample, joined.

A shard begins with a head: the number of samples, where each begins, and the columns as JSON. Its samples lie
behind one another, with all their columns. So the ids are decoded, as those of Parquet files are.
"""

import hashlib
import io
import json
import re
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from math import prod
from operator import sub
from typing import Any

import pyarrow
import pyarrow.compute as compute

from checkpointing.stores.bounded import excess_of
from checkpointing.stores.contract import Missing, is_name
from jobs.training.data.formats.stored_file import READ_BYTES, StoredFile
from jobs.training.data.shards import Copyable
from jobs.training.task.token_index import MDS, DataError, TokenIndex, TokenShard

# Instead of a hash: the digest of a shard's head, where the index has none that is known.
_HEAD = "head"
_COLUMNS = ("input_ids", "ids", "tokens")
_NUM_READERS = 16
# Shards have 64 MiB by default. Compressed, what is large costs nothing: all readers together hold less than
# a gigabyte of samples and heads.
_MOST_SAMPLES = 2**20
_MOST_SAMPLE_BYTES = 2**24
_MOST_SAMPLE_IDS = 2**22
_MOST_CONFIG_BYTES = 2**20
_MOST_COLUMNS = 1000
_SHAPE = re.compile("[0-9]{1,10}(,[0-9]{1,10}){0,31}")
_DIGEST = re.compile("[0-9a-f]{32,128}")
# Those that Python has, the surest first. Others are not compared.
_HASHES = ("sha256", "sha512", "sha3_256", "blake2b", "sha1", "md5")
# As an array that tells its own kind names it.
_CODES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    32: "uint32",
    33: "int32",
    64: "uint64",
    65: "int64",
}
_KINDS: Mapping[str, Any] = {kind: getattr(pyarrow, kind)() for kind in _CODES.values()}
# What ``bytes`` may be: nothing says it. Read as a wider kind than it is, an id is beyond all vocabularies.
_OF_BYTES = ("int64", "int32", "uint16")
_BEYOND_IDS = 2**20
_NOT_AS_EXPECTED = (
    KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError, OverflowError, struct.error,
)  # fmt: skip


def index_of_mds(store: Copyable, data: bytes, where: str) -> TokenIndex | None:
    """The index that ``data``, an ``index.json``, is of MDS shards; None if it is of others. Raises
    ``DataError`` if they can't be read.
    """
    if b'"mds"' not in data or excess_of(data):
        return None
    try:
        body = json.loads(data)
        if not isinstance(body, dict) or "format" in body:
            return None
        entries = [_entry(one, where) for one in body["shards"]]
    except _NOT_AS_EXPECTED as error:
        raise DataError(f"{where}: is no index of MDS shards ({str(error)[:80]}); copy it again") from None
    if len({one.name for one in entries}) < len(entries):
        raise DataError(f"{where}: names a shard twice; copy it again")
    with ThreadPoolExecutor(_NUM_READERS) as pool:
        return TokenIndex(dtype="uint32", shards=tuple(pool.map(lambda one: _describe(store, one), entries)))


def ids_of(store: Copyable, shard: TokenShard) -> Iterator[bytes]:
    """All ids as little-endian uint32, a sample at a time. Raises ``DataError``, at the latest at the end, if
    the shard is another than it was.
    """
    assert shard.sha256 is not None
    algorithm, _, expected = shard.sha256.partition(":")
    with _opened(store, shard.name, "sha256" if algorithm == _HEAD else algorithm) as file:
        head = _head(file)
        num_tokens = 0
        for ids in _ids(file, head):
            num_tokens += len(ids) // 4
            yield ids
        whole = file.end()
        if num_tokens != shard.num_tokens:
            raise DataError(
                f"{file.where}: has {num_tokens:,} ids, but {shard.num_tokens:,} when the run began; bring "
                "the right file back"
            )
        if (found := head.digest if algorithm == _HEAD else whole) != expected:
            raise DataError(
                f"{file.where}: its bytes are not those that its index names, or that it began with: their "
                f"{algorithm} is {found}, expected {expected}; bring the right file back"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A shard in an index. ``digest`` is as ``TokenShard.sha256``."""

    name: str
    num_samples: int
    stored_bytes: int
    digest: str | None


def _entry(body: Mapping[str, Any], where: str) -> _Entry:
    raw, packed = body["raw_data"], body["zip_data"]
    stored = packed or raw
    name, kind, compression = stored["basename"], body["format"], body["compression"]
    if kind != "mds" or body["version"] != 2:
        raise DataError(
            f"{where}: names shards of {kind!r:.40}, expected 'mds' of version 2; pack their text"
        )
    if compression is not None and compression.partition(":")[0] != "zstd":
        raise DataError(
            f"{where}: {name!r:.80} is compressed by {compression!r:.40}, expected 'zstd' or none; write it "
            "again"
        )
    if not (isinstance(name, str) and is_name(name) and name.endswith(MDS)):
        raise DataError(
            f"{where}: names {name!r:.80}, expected letters, digits and ._+=@- with {' or '.join(MDS)} at "
            "the end; write it again"
        )
    counts = (body["samples"], stored["bytes"])
    if not all(type(count) is int and 0 <= count < 2**32 for count in counts):
        raise DataError(f"{where}: {name} has {counts!r:.80} samples and bytes; copy it again")
    hashes = stored["hashes"]
    named = next((f"{one}:{hashes[one]}" for one in _HASHES if one in hashes), None)
    if named and not _DIGEST.fullmatch(named.partition(":")[2]):
        raise ValueError(f"{name} has the hash {named!r:.30}")
    return _Entry(name=name, num_samples=counts[0], stored_bytes=counts[1], digest=named)


def _describe(store: Copyable, entry: _Entry) -> TokenShard:
    """Describes a shard, from its head alone if all its samples have as many ids."""
    with _opened(store, entry.name, "sha256") as file:
        if (found := store.size(entry.name)) != entry.stored_bytes:
            raise DataError(
                f"{file.where}: has {found:,} bytes, but by its index {entry.stored_bytes:,}; copy both again"
            )
        head = _head(file)
        if (num_samples := len(head.offsets) - 1) != entry.num_samples:
            raise DataError(
                f"{file.where}: has {num_samples:,} samples, but by its index {entry.num_samples:,}; "
                "copy both again"
            )
        samples = _ids(file, head)
        num_tokens = len(next(samples)) // 4 * entry.num_samples
        others = [width for place, width in enumerate(head.widths) if place != head.place]
        if None in others or min(_sizes(head.offsets)) < max(_sizes(head.offsets)):
            num_tokens = num_tokens // entry.num_samples + sum(len(ids) // 4 for ids in samples)
            file.end()
        return TokenShard(
            name=entry.name, num_tokens=num_tokens, sha256=entry.digest or f"{_HEAD}:{head.digest}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """``offsets`` are where samples begin, and where the last one ends. Many millions are possible, so no
    number is an object. ``widths`` are those of the columns, None where each sample tells.

    ``kind`` and ``shape`` are those of the ids, at ``place`` among the columns; None where each sample tells.
    """

    offsets: "array[int]"
    widths: Sequence[int | None]
    place: int
    is_array: bool
    kind: str | None
    shape: tuple[int, ...] | None
    digest: str


class _Unpacked:
    """The bytes of a shard as they were before compression, one after the other."""

    def __init__(self, stored: "_Hashed", name: str, where: str) -> None:
        self.where = where
        self._stored = stored
        self._buffered = io.BufferedReader(stored, READ_BYTES)
        is_packed = name.endswith(MDS[1])
        self._stream: Any = (
            pyarrow.CompressedInputStream(self._buffered, "zstd") if is_packed else self._buffered
        )

    def exactly(self, count: int) -> bytearray:
        data = bytearray()
        while missing := count - len(data):
            part = self._stream.read(min(missing, READ_BYTES))
            if not part:
                raise DataError(f"{self.where}: was cut short; bring the whole file back")
            data += part
        return data

    def end(self) -> str:
        """The digest of all stored bytes. Raises ``DataError`` if there are more than were read."""
        if self._stream.read(1) or self._buffered.read(1):
            raise DataError(f"{self.where}: goes on behind its last sample; bring the right file back")
        return self._stored.digest.hexdigest()


class _Hashed(StoredFile):
    def __init__(self, store: Copyable, name: str, algorithm: str) -> None:
        super().__init__(store, name)
        self.digest = hashlib.new(algorithm)

    def readinto(self, buffer: Any) -> int:
        num_bytes = super().readinto(buffer)
        self.digest.update(memoryview(buffer).cast("B")[:num_bytes])
        return num_bytes

    def seekable(self) -> bool:
        return False


@contextmanager
def _opened(store: Copyable, name: str, algorithm: str) -> Iterator[_Unpacked]:
    where = f"data: {store.url}/{name}"
    try:
        yield _Unpacked(_Hashed(store, name, algorithm), name, where)
    except Missing:
        raise DataError(f"{where} is gone; bring it back") from None
    except _NOT_AS_EXPECTED as error:
        raise DataError(f"{where}: is no whole MDS shard ({str(error)[:80]}); copy it again") from None
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # A system error. Arrow raises OSError for bad contents too, but without an errno.
        raise DataError(f"{where}: is no whole MDS shard ({str(error)[:80]}); copy it again") from None


def _head(file: _Unpacked) -> _Head:
    [num_samples] = struct.unpack("<I", counted := file.exactly(4))
    if not 0 < num_samples <= _MOST_SAMPLES:
        raise DataError(
            f"{file.where}: tells of {num_samples:,} samples, expected 1 to {_MOST_SAMPLES:,}; copy it again"
        )
    offsets = array("I", placed := file.exactly(4 * (num_samples + 1)))
    least, most = min(_sizes(offsets)), max(_sizes(offsets))
    config_bytes = offsets[0] - len(counted) - len(placed)
    if not 0 < config_bytes <= _MOST_CONFIG_BYTES or least < 0 or most > _MOST_SAMPLE_BYTES:
        raise DataError(
            f"{file.where}: its samples have {least:,} to {most:,} bytes, behind {config_bytes:,} "
            f"of a head; expected 0 to {_MOST_SAMPLE_BYTES:,} and up to {_MOST_CONFIG_BYTES:,}; copy it again"
        )
    config = file.exactly(config_bytes)
    if excess := excess_of(bytes(config)):
        raise DataError(f"{file.where}: its head holds {excess}; copy it again")
    body = json.loads(config)
    digest = hashlib.sha256(counted + placed + config).hexdigest()
    return _head_of(
        body["column_names"], body["column_encodings"], body["column_sizes"], offsets, digest, file
    )


def _head_of(
    names: list[str],
    encodings: list[str],
    widths: list[int | None],
    offsets: "array[int]",
    digest: str,
    file: _Unpacked,
) -> _Head:
    place = next((names.index(name) for name in _COLUMNS if name in names), None)
    if place is None:
        raise DataError(
            f"{file.where}: has no column of ids ({names!r:.80}); expected one of "
            f"{', '.join(_COLUMNS)}, or text for `longhaul pack`"
        )
    if not len(names) == len(encodings) == len(widths) <= _MOST_COLUMNS:
        raise ValueError(f"it has {len(names):,} columns, {len(encodings):,} kinds, {len(widths):,} sizes")
    if not all(width is None or (type(width) is int and 0 < width < 2**32) for width in widths):
        raise ValueError(f"its columns have {widths} bytes")
    form, _, told = encodings[place].partition(":")
    kind, _, shape = told.partition(":")
    if shape and not _SHAPE.fullmatch(shape):
        raise ValueError(f"its arrays have the shape {shape!r:.40}")
    if form not in ("bytes", "ndarray") or (kind and kind not in _KINDS) or (form == "bytes" and told):
        raise DataError(
            f"{file.where}: its column {names[place]!r} holds {encodings[place]!r:.40}, expected bytes or an "
            "ndarray of whole numbers"
        )
    return _Head(
        offsets=offsets,
        widths=widths,
        place=place,
        is_array=form == "ndarray",
        kind=kind or None,
        shape=tuple(map(int, shape.split(","))) if shape else None,
        digest=digest,
    )


def _sizes(offsets: "array[int]") -> Iterator[int]:
    return map(sub, islice(offsets, 1, None), offsets)


def _ids(file: _Unpacked, head: _Head) -> Iterator[bytes]:
    """Of each sample, as uint32."""
    kind = head.kind
    for size in _sizes(head.offsets):
        values = _column(memoryview(file.exactly(size)), head)
        if head.is_array:
            own, values = _values(values, head)
        else:
            own = kind = kind or _kind_of(values)
        yield _as_uint32(values, own, file.where, is_sure=head.is_array)


def _column(sample: memoryview, head: _Head) -> memoryview:
    """The bytes of the ids' column. Columns without a width tell their sizes before all of them."""
    told = struct.unpack_from(f"<{head.widths.count(None)}I", sample)
    untold = iter(told)
    sizes = [next(untold) if width is None else width for width in head.widths]
    if 4 * len(told) + sum(sizes) != len(sample):
        raise ValueError(f"a sample of {len(sample):,} bytes has columns of {sum(sizes):,}")
    begin = 4 * len(told) + sum(sizes[: head.place])
    return sample[begin : begin + sizes[head.place]]


def _values(data: memoryview, head: _Head) -> tuple[str, memoryview]:
    """The kind and the bytes of an array's numbers; what their head and the sample's don't tell is before
    them: the kind, the number of dimensions, these.
    """
    kind, at, shape = head.kind, 0, head.shape
    if kind is None:
        kind, at = _CODES[data[0]], 1
    if shape is None:
        num_dims, width = data[at] >> 2, 1 << data[at] % 4
        at += 1
        shape = struct.unpack_from(f"<{num_dims}{'BHIQ'[data[at - 1] % 4]}", data, at)
        at += num_dims * width
    if prod(shape) * _KINDS[kind].bit_width // 8 != len(data) - at:
        raise ValueError(f"an array of {len(data):,} bytes has the shape {shape} of {kind}")
    return kind, data[at:]


def _kind_of(data: memoryview) -> str:
    for kind in _OF_BYTES:
        if len(data) % (_KINDS[kind].bit_width // 8) == 0:
            numbers = _numbers(data, kind)
            if (
                not len(numbers)
                or 0 <= compute.min(numbers).as_py() <= compute.max(numbers).as_py() < _BEYOND_IDS
            ):
                return kind
    raise ValueError(f"its bytes are no ids of {', '.join(_OF_BYTES)}")


def _as_uint32(data: memoryview, kind: str, where: str, *, is_sure: bool) -> bytes:
    numbers = _numbers(data, kind)
    if not is_sure and len(numbers) and compute.max(numbers).as_py() >= _BEYOND_IDS:
        raise DataError(
            f"{where}: its first sample is of {kind}, and others are not; write it as ndarray:{kind}"
        )
    try:
        return bytes(numbers.cast(pyarrow.uint32()).buffers()[1] or b"")
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"{where}: has an id that is none ({str(error).splitlines()[0]})") from None


def _numbers(data: memoryview, kind: str) -> Any:
    count, rest = divmod(len(data), _KINDS[kind].bit_width // 8)
    if rest or count > _MOST_SAMPLE_IDS:
        raise ValueError(f"{len(data):,} bytes are no ids of {kind}, or more than {_MOST_SAMPLE_IDS:,}")
    return pyarrow.Array.from_buffers(_KINDS[kind], count, [None, pyarrow.py_buffer(data)])
