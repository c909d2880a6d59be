"""A manifest in pieces: a small root, the tensors once, and the ranks' files by groups of ranks. Pure.

The root says what was saved when, and names each other object by its size and its SHA-256, so that the root's
own digest stands for all of them. A rank that resumes reads the root, the tensors, and the pieces of those
ranks that saved what it needs. Which these are follows from the root: a regular split is a rule, see
``splits``, and for the rest it says which tensors a piece may hold by exception.

Whoever reads believes no size, number or name before it was checked, and never reads more than
``MOST_MANIFEST_BYTES`` in all. ``in_pieces`` refuses to make what a reader would refuse.
"""

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from checkpointing.errors import Corrupt
from checkpointing.format.manifest import (
    IN_PIECES,
    MOST_FILE_BYTES,
    MOST_MANIFEST_BYTES,
    NOT_AS_EXPECTED,
    TENSORS,
    Cut,
    Manifest,
    TensorInfo,
    TooLargeToRead,
    check_cut,
    check_tensor,
    demand,
    encode_manifest,
    piece_name,
    refuse_excess,
)
from checkpointing.format.records import (
    Holding,
    Record,
    Table,
    check_files,
    check_holdings,
    checked_exceptions,
    record_of,
    records_of,
    row_of,
    split_of,
    split_row,
    table_of,
)
from checkpointing.format.splits import Split
from checkpointing.log.bounded_json import parsed
from checkpointing.log.codec import LOG_BYTES, MAC_BYTES, brief, excess_in, is_count, schema_of, seal, unseal
from checkpointing.stores.bounded import excess_of

# Up to so many shards and digests, a manifest of one object has about 256 KiB: less than a second request.
MOST_IN_ONE_OBJECT = 1024
# A piece is a request for the writer, and for a reader what it must read to learn of one rank.
_RANKS_PER_PIECE = 64
_MOST_PIECE_BYTES = 2**22
# More ranges than this of tensors by exception become one that covers them.
_MOST_RANGES = 16
# More than ``usual_splits`` has. A reader tries each of them for each tensor that it needs.
_MOST_SPLITS = 16
# A reader of all ranks makes an object of each, 140 bytes large. A rank has 4: its generators.
_MOST_OWN = 2**20
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """An object beside the root, as the root names it."""

    name: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Where the root says that the files of ``count`` ranks from ``first`` on are described.

    They follow ``split``, if there is one. Of the tensors in the ranges ``loose`` they may have others parts.
    """

    first: int
    count: int
    ref: ObjectRef
    split: Split | None
    loose: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    cut: Cut
    num_bytes: int
    tensors: ObjectRef
    pieces: tuple[Piece, ...]

    @property
    def refs(self) -> list[ObjectRef]:
        return [self.tensors, *(piece.ref for piece in self.pieces)]

    @property
    def num_bytes_beside(self) -> int:
        """The size of all objects that the root names."""
        return sum(ref.num_bytes for ref in self.refs)


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceNote:
    """What a piece's writer tells of it, so that nobody else need read it to make the root.

    ``num_bytes`` are those of its ranks' files. ``apart`` has those ranks that do not follow its split alone.
    """

    piece: Piece
    num_bytes: int
    apart: tuple[Holding, ...] = ()

    @property
    def ranks(self) -> range:
        return range(self.piece.first, self.piece.first + self.piece.count)

    def holdings(self) -> Iterator[Holding]:
        """Yields what each of its ranks has."""
        apart = {holding.rank: holding for holding in self.apart}
        for rank in self.ranks:
            yield apart[rank] if rank in apart else Holding(rank=rank, split=self.piece.split)


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A manifest as it is stored: ``objects`` by name, and the ``root``, which is written last.

    ``num_bytes_there`` are those of the objects beside it that others have written already.
    """

    cut: Cut
    num_bytes: int
    root: bytes
    objects: Mapping[str, bytes] = field(default_factory=dict)
    num_bytes_there: int = 0

    @property
    def num_bytes_beside(self) -> int:
        return self.num_bytes_there + sum(map(len, self.objects.values()))

    def of_log(self, log: str | None) -> "Encoded":
        """Returns it with the id of the run's log in the root, see ``checkpointing.log.trust``."""
        if log is None:
            return self
        schema = schema_of(self.root) or IN_PIECES
        return replace(self, root=seal(unseal(self.root, schema) | {"log": log}, schema))


def is_small(num_shards_and_digests: int) -> bool:
    """Says whether one object is enough for so many: then it costs a save one request, and a reader too."""
    return num_shards_and_digests <= MOST_IN_ONE_OBJECT


def in_pieces(manifest: Manifest, *, taken: Collection[int] = ()) -> Encoded:
    """No piece begins with one of the ranks ``taken``, which other pieces have been named by.

    Raises ``TooLargeToRead`` beyond what a reader takes. The manifest must have been checked.
    """
    table = table_of(manifest.parts)
    records = records_of(manifest.cut, table, manifest.parts)
    if taken and len({record.split for record in records if record.split}) > 1:
        # Where two rules meet a piece has to begin.
        return Encoded(cut=manifest.cut, num_bytes=manifest.num_bytes, root=encode_manifest(manifest))
    return joined(manifest.cut, table, records, taken=taken)


def joined(cut: Cut, table: Table, records: Sequence[Record], *, taken: Collection[int] = ()) -> Encoded:
    """Makes the objects of a manifest from what is to be said of each rank, in the order of ranks.

    Raises ``Corrupt`` unless the records cover every tensor exactly once, or if the ranks have too many of
    their own, and ``TooLargeToRead`` beyond what a reader takes.
    """
    notes, objects = pieces_of(cut, table, records, taken=taken)
    return rooted(cut, table, notes, objects)


def pieces_of(
    cut: Cut, table: Table, records: Sequence[Record], *, taken: Collection[int] = ()
) -> tuple[list[PieceNote], dict[str, bytes]]:
    """Makes the pieces of some ranks that follow one another, with what is to be told of each.

    Raises ``Corrupt`` for what can't be of a file, and ``TooLargeToRead`` beyond what a reader takes.
    """
    check_files(table, records)
    notes, objects = [], {}
    for group in _groups(records, taken):
        name = piece_name(group[0].rank)
        objects[name] = data = _json({"ranks": [row_of(record) for record in group]})
        split = next((record.split for record in group if record.split), None)
        piece = Piece(
            first=group[0].rank,
            count=len(group),
            ref=ObjectRef(name=name, num_bytes=len(data), sha256=_sha256(data)),
            split=split,
            loose=tuple(_loose(group)),
        )
        apart = tuple(one.holding for one in group if one.split != split or one.exceptions)
        num_bytes = sum(record.num_bytes for record in group)
        notes.append(PieceNote(piece=piece, num_bytes=num_bytes, apart=apart))
    refuse_excess(cut, map(excess_of, objects.values()))
    return notes, objects


def rooted(cut: Cut, table: Table, notes: Sequence[PieceNote], objects: Mapping[str, bytes]) -> Encoded:
    """Makes a manifest of pieces that cover all ranks. ``objects`` are those that are yet to be written; the
    other pieces are there.

    Raises as ``joined`` does.
    """
    check_holdings(cut, table, [holding for note in notes for holding in note.holdings()])
    _check_own(cut, table.each)
    tensors = _json({"tensors": _table_rows(table.tensors), "each": _table_rows(table.each)})
    pieces = [note.piece for note in notes]
    splits = list(dict.fromkeys(piece.split for piece in pieces if piece.split))
    rows = [
        [
            piece.first,
            piece.count,
            piece.ref.num_bytes,
            piece.ref.sha256,
            None if piece.split is None else splits.index(piece.split),
            piece.loose,
        ]
        for piece in pieces
    ]
    num_bytes = sum(note.num_bytes for note in notes)
    root = {
        "cut": cut,
        "num_bytes": num_bytes,
        "tensors": [len(tensors), _sha256(tensors)],
        "splits": [split_row(split) for split in splits],
        "pieces": rows,
    }
    encoded = Encoded(
        cut=cut,
        num_bytes=num_bytes,
        root=seal(root, IN_PIECES),
        objects={TENSORS: tensors, **objects},
        num_bytes_there=sum(piece.ref.num_bytes for piece in pieces if piece.ref.name not in objects),
    )
    # It may be signed yet, and get the id of a log.
    total = len(encoded.root) + MAC_BYTES + LOG_BYTES + encoded.num_bytes_beside
    if total > MOST_MANIFEST_BYTES:
        raise TooLargeToRead(
            f"the manifest of {cut.world_size} ranks has {total:,} bytes, and a restart "
            f"reads at most {MOST_MANIFEST_BYTES:,}; save with fewer ranks"
        )
    refuse_excess(cut, [excess_in(encoded.root), excess_of(tensors)])
    return encoded


def _groups(records: Sequence[Record], taken: Collection[int]) -> Iterable[list[Record]]:
    """Ranks that follow one rule, about so many that a piece stays small. None begins with one ``taken``."""
    group: list[Record] = []
    size, split = 0, None
    for record in records:
        weight = len(record.chunks) + 32 * len(record.exceptions)
        is_other = None not in (split, record.split) and split != record.split
        is_full = len(group) >= _RANKS_PER_PIECE or size + weight > _MOST_PIECE_BYTES
        if group and (is_other or is_full) and record.rank not in taken:
            yield group
            group, size, split = [], 0, None
        group.append(record)
        size, split = size + weight, split or record.split
    if group:
        yield group


def _loose(group: Sequence[Record]) -> list[tuple[int, int]]:
    numbers = sorted({exception[0] for record in group for exception in record.exceptions})
    runs = groupby(enumerate(numbers), key=lambda one: one[1] - one[0])
    ranges = [(found[0], found[-1] + 1) for _, run in runs if (found := [number for _, number in run])]
    return ranges if len(ranges) <= _MOST_RANGES else [(numbers[0], numbers[-1] + 1)]


def _table_rows(tensors: Sequence[TensorInfo]) -> list[list[Any]]:
    return [[tensor.name, tensor.dtype, tensor.shape] for tensor in tensors]


def note_row(note: PieceNote) -> list[Any]:
    piece, ref = note.piece, note.piece.ref
    described = [piece.first, piece.count, ref.num_bytes, ref.sha256, piece.loose]
    apart = [[one.rank, one.split is not None, one.exceptions] for one in note.apart]
    return [*described, split_row(piece.split), note.num_bytes, apart]


def note_of(row: Sequence[Any], world_size: int) -> PieceNote:
    """Raises ``Corrupt``, or what a value of a wrong type causes, for a row that no writer makes."""
    *described, split_found, num_bytes, apart = row
    splits = [] if split_found is None else [split_of(split_found, world_size)]
    first, count, size, sha256, loose = described
    piece = _piece([first, count, size, sha256, 0 if splits else None, loose], splits)
    demand(is_count(num_bytes) and num_bytes <= count * MOST_FILE_BYTES, f"{num_bytes!r:.80} bytes of files")
    holdings = tuple(
        Holding(
            rank=rank,
            split=piece.split if is_by_rule else None,
            exceptions=checked_exceptions(exceptions),
        )
        for rank, is_by_rule, exceptions in apart
    )
    are_there = all(is_count(one.rank) and first <= one.rank < first + count for one in holdings)
    demand(are_there and len(holdings) == len({one.rank for one in holdings}), "ranks of another piece")
    return PieceNote(piece=piece, num_bytes=num_bytes, apart=holdings)


def decode_root(data: bytes) -> Root:
    """Raises ``Corrupt`` unless the root is whole, consistent and within the limits."""
    body = unseal(data, IN_PIECES)
    try:
        cut = Cut(**body["cut"])
        check_cut(cut)
        demand(len(body["splits"]) <= _MOST_SPLITS, f"{len(body['splits'])} splits")
        splits = [split_of(row, cut.world_size) for row in body["splits"]]
        root = Root(
            cut=cut,
            num_bytes=body["num_bytes"],
            tensors=_ref(TENSORS, *body["tensors"]),
            pieces=tuple(_piece(row, splits) for row in body["pieces"]),
        )
        is_size = is_count(root.num_bytes) and root.num_bytes <= cut.world_size * MOST_FILE_BYTES
        demand(is_size, f"{root.num_bytes} bytes of files")
        _check_ranks(root)
    except NOT_AS_EXPECTED as error:
        raise Corrupt(f"a manifest lacks or misnames something: {brief(error)}") from error
    total = len(data) + root.num_bytes_beside
    demand(total <= MOST_MANIFEST_BYTES, f"{total} bytes of JSON in pieces")
    return root


def _check_ranks(root: Root) -> None:
    end = 0
    for piece in root.pieces:
        demand(piece.first == end and piece.count > 0, f"a piece of {piece.count} ranks from {piece.first}")
        end += piece.count
    demand(end == root.cut.world_size, f"pieces of {end} ranks at world size {root.cut.world_size}")


def _piece(row: Sequence[Any], splits: Sequence[Split]) -> Piece:
    first, count, num_bytes, sha256, number, loose = row
    demand(is_count(first) and is_count(count), f"a piece of {count} ranks from {first}")
    demand(number is None or (is_count(number) and number < len(splits)), f"a split number {number}")
    ranges = tuple((begin, end) for begin, end in loose)
    are_ranges = len(ranges) <= _MOST_RANGES and all(is_count(one) for pair in ranges for one in pair)
    demand(are_ranges, f"exceptions of {ranges[:9]}")
    return Piece(
        first=first,
        count=count,
        ref=_ref(piece_name(first), num_bytes, sha256),
        split=None if number is None else splits[number],
        loose=ranges,
    )


def _ref(name: str, num_bytes: int, sha256: str) -> ObjectRef:
    demand(is_count(num_bytes) and num_bytes <= MOST_MANIFEST_BYTES, f"{num_bytes} bytes in {name}")
    demand(bool(_SHA256.fullmatch(sha256)), f"a digest {sha256[:80]!r}")
    return ObjectRef(name=name, num_bytes=num_bytes, sha256=sha256)


def decode_table(root: Root, data: bytes) -> Table:
    body = _body(root.tensors, data)
    try:
        tensors, each = (tuple(map(_tensor, body[name])) for name in ("tensors", "each"))
        demand(len(tensors) == len({one.name for one in tensors}), "two tensors of one name")
        _check_own(root.cut, each)
    except NOT_AS_EXPECTED as error:
        raise Corrupt(f"{TENSORS} lacks or misnames something: {brief(error)}") from error
    return Table(tensors=tensors, each=each)


def _check_own(cut: Cut, each: Sequence[TensorInfo]) -> None:
    num_own = len(each) * cut.world_size
    demand(num_own <= _MOST_OWN, f"{num_own} tensors of single ranks")


def _tensor(row: Sequence[Any]) -> TensorInfo:
    name, dtype, shape = row
    tensor = TensorInfo(name=name, dtype=dtype, shape=tuple(shape))
    demand(isinstance(name, str), f"a tensor named {name!r}")
    check_tensor(tensor)
    return tensor


def decode_piece(piece: Piece, data: bytes) -> list[Record]:
    rows = _body(piece.ref, data)
    try:
        found = rows["ranks"]
        demand(len(found) == piece.count, f"{len(found)} ranks in {piece.ref.name}")
        records = [record_of(row, piece.first + place, piece.split) for place, row in enumerate(found)]
    except NOT_AS_EXPECTED as error:
        raise Corrupt(f"{piece.ref.name} lacks or misnames something: {brief(error)}") from error
    for number in (one[0] for record in records for one in record.exceptions):
        # Else a reader would not look here for that tensor.
        is_told = any(begin <= number < end for begin, end in piece.loose)
        demand(is_told, f"no exception of tensor {number}, and {piece.ref.name} has one")
    return records


def needed(root: Root, table: Table, wanted: Iterable[tuple[str, int, int]], rank: int) -> "Needed":
    """Returns what must be read for ``wanted``: tensors' names, each with the first element and the end.

    What belongs to ``rank`` alone is always among it. Of what no tensor has, nothing is.
    """
    numbers = {tensor.name: number for number, tensor in enumerate(table.tensors)}
    splits = {piece.split for piece in root.pieces if piece.split}
    tensors = [
        (numbers[name], start, end)
        for name, start, end in wanted
        if name in numbers and end <= table.tensors[numbers[name]].num_elements
    ]
    ranks = {rank} if rank < root.cut.world_size else set()
    for split in splits:
        for number, start, end in tensors:
            ranks.update(split.ranks(table.tensors[number], start, end))
    firsts = [piece.first for piece in root.pieces]
    chosen = {bisect_right(firsts, one) - 1 for one in ranks}
    loose = sorted(number for number, *_ in tensors)
    chosen |= {place for place, piece in enumerate(root.pieces) if _has_any(piece.loose, loose)}
    pieces = [root.pieces[place] for place in sorted(chosen)]
    return Needed(pieces=pieces, ranks=ranks, numbers=frozenset(loose))


def _has_any(ranges: Sequence[tuple[int, int]], numbers: Sequence[int]) -> bool:
    """``numbers`` are sorted."""
    return any(bisect_right(numbers, begin - 1) < bisect_right(numbers, end - 1) for begin, end in ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """The pieces to be read, and of which ranks in them the shards are of use."""

    pieces: Sequence[Piece]
    ranks: Collection[int]
    numbers: frozenset[int]

    def is_of_use(self, record: Record) -> bool:
        return record.rank in self.ranks or any(one[0] in self.numbers for one in record.exceptions)


def _body(ref: ObjectRef, data: bytes) -> dict[str, Any]:
    """Checks size and digest before anything is parsed."""
    demand(len(data) == ref.num_bytes, f"{ref.num_bytes} bytes of {ref.name}, which has {len(data)}")
    if _sha256(data) != ref.sha256:
        raise Corrupt(f"{ref.name} is not the one that the manifest names")
    try:
        body = parsed(data)
    except ValueError as error:
        raise Corrupt(f"{ref.name} {brief(error)}") from error
    demand(isinstance(body, dict), f"{ref.name} that is no object")
    found: dict[str, Any] = body
    return found


def _json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
