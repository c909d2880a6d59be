"""Reads a generation's manifest from the store, of one object or in pieces, and tells who wrote it.

Each reader takes only what it needs: a start the root, a rank that resumes the pieces of what it loads, an
audit all pieces. No object is read beyond the size that the root names.
"""

import hashlib
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from checkpointing.errors import Corrupt, Unfit
from checkpointing.format.loading import GenerationPlace
from checkpointing.format.manifest import (
    IN_PIECES,
    MANIFEST,
    MOST_MANIFEST_BYTES,
    Cut,
    Manifest,
    decode_manifest,
    demand,
    encode_manifest,
    file_name,
)
from checkpointing.format.pieces import (
    Encoded,
    ObjectRef,
    Piece,
    Root,
    decode_piece,
    decode_root,
    decode_table,
    in_pieces,
    is_small,
    needed,
)
from checkpointing.format.records import Record, Table, check_files, check_records, file_part_of
from checkpointing.format.reshard import Want
from checkpointing.log.codec import SCHEMA, schema_of, unseal
from checkpointing.log.history import Generation
from checkpointing.log.signing import Signer
from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Missing, Store

# So few requests are soon over one after the other.
_FEW = 2
_NUM_THREADS = 8

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredManifest:
    """A manifest as one rank reads it for all: its object and, if it is in pieces, the tensors."""

    data: bytes
    tensors: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class InPieces:
    """A manifest whose pieces are still to be read."""

    root: Root
    table: Table

    @property
    def cut(self) -> Cut:
        return self.root.cut

    def heading(self, rank: int) -> Manifest:
        """Returns it without parts: with the tensors that all ranks share, and those of ``rank``."""
        own = self.table.of_rank(rank) if rank < self.cut.world_size else ()
        return Manifest(cut=self.cut, parts=(), shared=(*self.table.tensors, *own))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What can be told of a generation without reading more than the manifest's own object. ``num_bytes``
    counts all objects, and ``files`` are all but that one.
    """

    cut: Cut
    num_bytes: int
    files: tuple[str, ...]


def encoded(manifest: Manifest, log: str | None) -> Encoded:
    """``log`` is the id of the run's log. Raises ``TooLargeToRead`` beyond what a reader takes."""
    if not is_small(sum(len(part.shards) + len(part.chunks) for part in manifest.parts)):
        return in_pieces(manifest).of_log(log)
    root = encode_manifest(manifest, log=log)
    return Encoded(cut=manifest.cut, num_bytes=manifest.num_bytes, root=root)


def put_beside(store: Store, folder: str, objects: Encoded) -> None:
    """Writes all objects but the root, which makes them count."""

    def put(name: str) -> None:
        store.put(f"{folder}/{name}", objects.objects[name])

    _for_each(put, list(objects.objects))


def manifest_bytes(place: GenerationPlace, generation: Generation) -> bytes:
    """Returns the manifest as it was committed; raises ``Corrupt`` if another one or none lies there."""
    name = f"{place.folder}/{MANIFEST}"
    try:
        data = get_bounded(place.store, name, most_bytes=MOST_MANIFEST_BYTES)
    except Missing as error:
        raise Corrupt(f"{name} is gone") from error
    except TooLarge as error:
        raise Corrupt(f"{name} {error}") from error
    if hashlib.sha256(data).hexdigest() != generation.manifest_digest:
        raise Corrupt(f"{name} is not the one that was committed")
    return data


def read_for_all(place: GenerationPlace, generation: Generation) -> StoredManifest:
    """Reads what every rank needs to see which pieces it needs.

    Raises ``Unfit`` if a later version saved it in a form that this one does not know: that is no damage.
    """
    data = manifest_bytes(place, generation)
    if (schema := schema_of(data) or 0) > IN_PIECES:
        raise Unfit(
            f"{generation.name}: its manifest has schema {schema}, but this version knows those up to "
            f"{IN_PIECES}; go on with the version that saved it"
        )
    if not _is_in_pieces(data):
        return StoredManifest(data=data)
    return StoredManifest(data=data, tensors=_read(place, decode_root(data).tensors))


def opened(stored: StoredManifest) -> Manifest | InPieces:
    if not _is_in_pieces(stored.data):
        return decode_manifest(stored.data)
    root = decode_root(stored.data)
    return InPieces(root=root, table=decode_table(root, stored.tensors))


def with_parts(place: GenerationPlace, found: InPieces, wants: Sequence[Want], rank: int) -> Manifest:
    """Reads the pieces that ``rank`` needs for ``wants``, and of its own rank. Raises ``Corrupt`` if one is
    gone or not what was saved.
    """
    wanted = [(want.tensor, want.start, want.start + want.length) for want in wants]
    need = needed(found.root, found.table, wanted, rank)
    records = [one for one in read_pieces(place, need.pieces) if need.is_of_use(one)]
    parts = tuple(file_part_of(found.table, record) for record in records)
    return Manifest(cut=found.cut, parts=parts, shared=found.table.tensors)


def read_whole(place: GenerationPlace, generation: Generation, *, with_shards: bool) -> Manifest:
    """Reads all of the manifest, and checks that ranks and tensors are complete. Without shards it costs
    little time and memory.
    """
    stored = read_for_all(place, generation)
    found = opened(stored)
    if isinstance(found, Manifest):
        return found
    records = read_pieces(place, found.root.pieces)
    check_records(found.cut, found.table, records)
    num_bytes = sum(record.num_bytes for record in records)
    demand(num_bytes == found.root.num_bytes, f"{found.root.num_bytes} bytes of files that have {num_bytes}")
    parts = tuple(file_part_of(found.table, record, with_shards=with_shards) for record in records)
    return Manifest(cut=found.cut, parts=parts, shared=found.table.tensors)


def read_pieces(place: GenerationPlace, pieces: Sequence[Piece]) -> list[Record]:
    """Returns what the pieces say, in the order of ranks."""
    found = _for_each(partial(_read, place), [piece.ref for piece in pieces])
    return [record for piece, data in zip(pieces, found, strict=True) for record in decode_piece(piece, data)]


def read_manifest_back(place: GenerationPlace, generation: Generation, *, by_others: Collection[int]) -> None:
    """Reads what has just been saved of a manifest as a restart does, and raises ``Corrupt`` if none could
    use it. Pieces that begin with a rank of ``by_others`` are left out: their writers read them.
    """
    if not by_others:
        read_whole(place, generation, with_shards=False)
        return
    found = opened(read_for_all(place, generation))
    if isinstance(found, InPieces):
        # That all ranks' files fit together was found before the root was written, which names the others'.
        own = [piece for piece in found.root.pieces if piece.first not in by_others]
        check_files(found.table, read_pieces(place, own))


def summary_of(data: bytes) -> Summary:
    if not _is_in_pieces(data):
        manifest = decode_manifest(data)
        files = tuple(part.file for part in manifest.parts)
        return Summary(cut=manifest.cut, num_bytes=manifest.num_bytes + len(data), files=files)
    root = decode_root(data)
    return Summary(
        cut=root.cut,
        num_bytes=root.num_bytes + root.num_bytes_beside + len(data),
        files=(*map(file_name, range(root.cut.world_size)), *(ref.name for ref in root.refs)),
    )


def has_our_signature(
    signer: Signer, place: GenerationPlace, generation: Generation, log: str | None
) -> bool:
    """Says whether the manifest is whole, signed with the key of this process, and of the log with the id
    ``log``; None is any log.
    """
    try:
        data = manifest_bytes(place, generation)
        if not signer.is_manifest_signed(generation.name, data):
            return False
        body = unseal(data, IN_PIECES if _is_in_pieces(data) else SCHEMA)
        return log in (None, body.get("log"))
    except Corrupt:
        return False


def _is_in_pieces(data: bytes) -> bool:
    return schema_of(data) == IN_PIECES


def _for_each(do: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    if len(items) <= _FEW:
        return [do(item) for item in items]
    with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="manifest") as pool:
        return list(pool.map(do, items))


def _read(place: GenerationPlace, ref: ObjectRef) -> bytes:
    name = f"{place.folder}/{ref.name}"
    try:
        return get_bounded(place.store, name, most_bytes=ref.num_bytes, likely_bytes=ref.num_bytes)
    except Missing as error:
        raise Corrupt(f"{name} is gone") from error
    except TooLarge as error:
        raise Corrupt(f"{name} {error}") from error
