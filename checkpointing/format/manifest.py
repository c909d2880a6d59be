"""A generation's manifest: which bytes of which file are which elements of which tensor. Pure.

A ``FilePart`` describes the file of one rank; a ``Manifest`` holds all parts of one cut. Both are JSON with
a digest of their own. Their content is checked before use. Names must stay in the folder, sizes must add
up, and every element of every tensor must occur exactly once.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, prod
from typing import Any

from checkpointing.errors import Corrupt
from checkpointing.log.codec import (
    LOG_BYTES,
    MAC_BYTES,
    brief,
    excess_in,
    is_count,
    is_generation_name,
    seal,
    unseal,
)
from checkpointing.log.field_types import check_types
from checkpointing.stores.contract import is_name

MANIFEST = "manifest.json"
# Beside a manifest in pieces, which has a schema of its own.
TENSORS = "tensors.json"
IN_PIECES = 2
_GENERATION = re.compile(r"[0-9]{12,}-t([0-9]{1,12})-[A-Za-z0-9._]+")
_SAVED_FILE = re.compile(
    rf"rank-[0-9]{{5,}}\.(safetensors|json)|ranks-[0-9]{{5,}}\.json|{re.escape(MANIFEST)}|{re.escape(TENSORS)}"
)
CHUNK_BYTES = 4 * 2**20
# Names of types as safetensors spells them.
DTYPE_BYTES: Mapping[str, int] = {
    "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "U8": 1,
    "F64": 8, "I32": 4, "I16": 2, "I8": 1, "BOOL": 1,
}  # fmt: skip

# Limits above any training of this decade; a manifest that claims more is damaged or forged.
_MOST_RANKS = 2**16
_MOST_TENSORS = 2**20
_MOST_DIMENSIONS = 16
# Each record of the log repeats them for each kept generation, and a search holds those of all it finds.
_MOST_METRICS = 10_000
_MOST_METRIC_CHARS = 10**6
MOST_FILE_BYTES = 2**44
MOST_MANIFEST_BYTES = 2**28

# Errors that values of the wrong type cause where they are first used.
NOT_AS_EXPECTED = (KeyError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """Describes a whole logical tensor of shape ``shape``, whose elements are counted in row-major order."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """``length`` elements of ``tensor``, from element ``start`` on, stored at byte ``offset`` of a file."""

    tensor: str
    start: int
    length: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """Describes one rank's file. ``state`` is what else belongs to that rank; ``chunks`` are the digests."""

    rank: int
    file: str
    num_bytes: int
    chunks: tuple[str, ...]
    tensors: tuple[TensorInfo, ...]
    shards: tuple[Shard, ...]
    state: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Facts that all ranks' parts of one generation share. ``state`` must be JSON."""

    generation: str
    run: str
    step: int
    term: int
    number: int
    strategy: str
    world_size: int
    created_s: float
    epoch_end: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a generation holds. One in pieces has the tensors that its parts share in ``shared``, and perhaps
    only those parts that a reader needs.
    """

    cut: Cut
    parts: tuple[FilePart, ...]
    shared: tuple[TensorInfo, ...] = ()

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        own = (tensor for part in self.parts for tensor in part.tensors)
        return {tensor.name: tensor for tensor in (*self.shared, *own)}

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)


def file_name(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


def part_name(rank: int) -> str:
    return f"rank-{rank:05d}.json"


def piece_name(first: int) -> str:
    return f"ranks-{first:05d}.json"


def own_prefix(rank: int) -> str:
    """Names of tensors that begin so belong to that rank alone."""
    return f"rng/{rank}/"


def is_of_a_save(name: str) -> bool:
    """Says whether ``name`` ends in ``<generation>/<file>`` with names that saves use; other files are not
    ours.
    """
    generation, _, file = name.rpartition("/")
    return term_of(generation.rpartition("/")[2]) is not None and bool(_SAVED_FILE.fullmatch(file))


def term_of(generation: str) -> int | None:
    """Returns the term of the attempt that saved ``generation``; None if no save makes such a name."""
    found = _GENERATION.fullmatch(generation)
    return int(found[1]) if found else None


def encode_part(cut: Cut, part: FilePart) -> bytes:
    return seal({"cut": cut, "part": part})


def decode_part(data: bytes) -> tuple[Cut, FilePart]:
    body = _unsealed(data)
    try:
        cut, part = _cut(body["cut"]), _part(body["part"])
        check_cut(cut)
        _check_part(part, cut.world_size)
    except NOT_AS_EXPECTED as error:
        raise Corrupt(f"a part lacks or misnames something: {brief(error)}") from error
    return cut, part


class TooLargeToRead(Exception):
    """No restart could read this manifest, so the generation must not be committed."""


def encode_manifest(manifest: Manifest, *, log: str | None = None) -> bytes:
    """``log`` is the id of the run's log, see ``checkpointing.log.trust``; older versions ignore it.
    Raises ``TooLargeToRead`` beyond what a reader takes.
    """
    data = seal({"cut": manifest.cut, "parts": manifest.parts} | ({"log": log} if log else {}))
    # It may be signed yet, and get the id of a log.
    if len(data) + MAC_BYTES + (0 if log else LOG_BYTES) > MOST_MANIFEST_BYTES:
        raise TooLargeToRead(
            f"the manifest of {manifest.cut.world_size} ranks has {len(data):,} bytes, and a restart "
            f"reads at most {MOST_MANIFEST_BYTES:,}; save with fewer ranks"
        )
    refuse_excess(manifest.cut, [excess_in(data)])
    return data


def refuse_excess(cut: Cut, found: Iterable[str | None]) -> None:
    """Raises ``TooLargeToRead`` if one of a manifest's objects holds more values than a reader takes.

    Of each of them ``found`` has what ``excess_in`` or ``excess_of`` says.
    """
    if excess := next(filter(None, found), None):
        raise TooLargeToRead(
            f"the manifest of {cut.world_size} ranks has {excess}, and a restart does not read so many; "
            "keep large lists of your state in tensors"
        )


def decode_manifest(data: bytes) -> Manifest:
    """Raises ``Corrupt`` unless the manifest is whole, consistent and within the limits."""
    body = _unsealed(data)
    try:
        manifest = Manifest(cut=_cut(body["cut"]), parts=tuple(map(_part, body["parts"])))
        check(manifest)
    except NOT_AS_EXPECTED as error:
        raise Corrupt(f"a manifest lacks or misnames something: {brief(error)}") from error
    return manifest


def check(manifest: Manifest) -> None:
    """Raises ``Corrupt`` unless all ranks are present and the shards cover every tensor exactly once."""
    check_cut(manifest.cut)
    world_size = manifest.cut.world_size
    ranks = [part.rank for part in manifest.parts]
    demand(ranks == list(range(world_size)), f"parts of ranks {ranks[:9]} at world size {world_size}")
    for part in manifest.parts:
        _check_part(part, world_size)
    tensors = manifest.tensors
    for part in manifest.parts:
        for tensor in part.tensors:
            if tensors[tensor.name] != tensor:
                raise _claims(f"ranks disagree about {tensor.name}")
    _check_tiling(tensors, [shard for part in manifest.parts for shard in part.shards])


def check_cut(cut: Cut) -> None:
    demand(is_generation_name(cut.generation), f"a generation named {cut.generation!r}")
    check_types(cut)
    demand(0 < cut.world_size <= _MOST_RANKS, f"world size {cut.world_size}")
    are_few = len(cut.metrics) <= _MOST_METRICS and sum(map(len, cut.metrics)) <= _MOST_METRIC_CHARS
    demand(are_few, f"{len(cut.metrics)} metrics")


def _check_part(part: FilePart, world_size: int) -> None:
    demand(is_count(part.rank) and part.rank < world_size, f"rank {part.rank} of {world_size}")
    demand(part.file == file_name(part.rank) and is_name(part.file), f"a file named {part.file!r}")
    check_file(part.num_bytes, len(part.chunks))
    demand(len(part.tensors) <= _MOST_TENSORS, f"{len(part.tensors)} tensors")
    tensors = {tensor.name: tensor for tensor in part.tensors}
    for tensor in part.tensors:
        check_tensor(tensor)
    for shard in part.shards:
        if shard.tensor not in tensors:
            raise _claims(f"a shard of {shard.tensor!r}, which is no tensor of the part")
        if not (is_count(shard.start) and is_count(shard.length) and is_count(shard.offset)):
            counts = (shard.start, shard.length, shard.offset)
            raise _claims(f"a shard of start, length and offset {counts}")
        if shard.offset + shard.length * DTYPE_BYTES[tensors[shard.tensor].dtype] > part.num_bytes:
            raise _claims(f"a shard outside of {part.file}")


def check_file(num_bytes: int, num_digests: float) -> None:
    demand(is_count(num_bytes) and num_bytes <= MOST_FILE_BYTES, f"{num_bytes} bytes")
    demand(num_digests == ceil(num_bytes / CHUNK_BYTES), f"{num_digests:g} digests of a file")


def check_tensor(tensor: TensorInfo) -> None:
    if tensor.dtype not in DTYPE_BYTES:
        raise _claims(f"{tensor.name} of type {tensor.dtype!r}")
    is_shape = len(tensor.shape) <= _MOST_DIMENSIONS and all(map(is_count, tensor.shape))
    if not (is_shape and is_count(tensor.num_elements)):
        raise _claims(f"{tensor.name} of shape {tensor.shape[:_MOST_DIMENSIONS]}")


def _check_tiling(tensors: Mapping[str, TensorInfo], shards: Sequence[Shard]) -> None:
    spans: dict[str, list[tuple[int, int]]] = {name: [] for name in tensors}
    for shard in shards:
        if shard.length:
            spans[shard.tensor].append((shard.start, shard.start + shard.length))
    for name, tensor in tensors.items():
        check_spans(tensor, spans[name])


def check_spans(tensor: TensorInfo, spans: Iterable[tuple[int, int]]) -> None:
    """``spans`` are the first element and the end of each shard that is not empty."""
    borders = [(0, 0), *sorted(spans), (tensor.num_elements, tensor.num_elements)]
    if any(before[1] != behind[0] for before, behind in pairwise(borders)):
        raise _claims(f"shards of {tensor.name} that leave gaps or overlap")


def _unsealed(data: bytes) -> dict[str, Any]:
    demand(len(data) <= MOST_MANIFEST_BYTES, f"{len(data)} bytes of JSON")
    return unseal(data)


def _cut(body: dict[str, Any]) -> Cut:
    return Cut(**body)


def _part(body: dict[str, Any]) -> FilePart:
    tensors = tuple(_tensor(tensor) for tensor in body["tensors"])
    shards = tuple(Shard(**shard) for shard in body["shards"])
    return FilePart(**{**body, "chunks": tuple(body["chunks"]), "tensors": tensors, "shards": shards})


def _tensor(body: dict[str, Any]) -> TensorInfo:
    return TensorInfo(**{**body, "shape": tuple(body["shape"])})


def demand(is_so: bool, found: str) -> None:
    if not is_so:
        raise _claims(found)


def _claims(found: str) -> Corrupt:
    """Is raised by what runs for every tensor: there a text for ``demand`` costs more than the check."""
    # The text gets into the log, if the generation is quarantined, and may have any length.
    return Corrupt(brief(f"it claims {found}"))


def manifest_of(cut: Cut, parts: Iterable[FilePart]) -> Manifest:
    """Joins all parts into a manifest; raises ``Corrupt`` if they are not one whole generation."""
    manifest = Manifest(cut=cut, parts=tuple(sorted(parts, key=lambda part: part.rank)))
    check(manifest)
    return manifest
