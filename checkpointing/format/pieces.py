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
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    piece_name,
    refuse_excess,
)
from checkpointing.format.records import (
    Record,
    Table,
    check_records,
    record_of,
    records_of,
    row_of,
    split_of,
    split_row,
    table_of,
)
from checkpointing.format.splits import Split
from checkpointing.log.bounded_json import parsed
from checkpointing.log.codec import LOG_BYTES, MAC_BYTES, brief, is_count, seal, unseal

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
class Encoded:
    """A manifest as it is stored: ``objects`` by name, and the ``root``, which is written last."""

    cut: Cut
    num_bytes: int
    root: bytes
    objects: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def num_bytes_beside(self) -> int:
        return sum(map(len, self.objects.values()))

    def of_log(self, log: str | None) -> "Encoded":
        """Returns it with the id of the run's log in the root, see ``checkpointing.log.trust``."""
        if log is None:
            return self
        return replace(self, root=seal(unseal(self.root, IN_PIECES) | {"log": log}, IN_PIECES))


def is_small(num_shards_and_digests: int) -> bool:
    """Says whether one object is enough for so many: then it costs a save one request, and a reader too."""
    return num_shards_and_digests <= MOST_IN_ONE_OBJECT


def in_pieces(manifest: Manifest) -> Encoded:
    """Raises ``TooLargeToRead`` beyond what a reader takes. The manifest must have been checked."""
    table = table_of(manifest.parts)
    return joined(manifest.cut, table, records_of(manifest.cut, table, manifest.parts))


def joined(cut: Cut, table: Table, records: Sequence[Record]) -> Encoded:
    """Makes the objects of a manifest from what is to be said of each rank, in the order of ranks.

    Raises ``Corrupt`` unless the records cover every tensor exactly once, or if the ranks have too many of
    their own, and ``TooLargeToRead`` beyond what a reader takes.
    """
    check_records(cut, table, records)
    _check_own(cut, table.each)
    splits = list(dict.fromkeys(record.split for record in records if record.split))
    objects = {TENSORS: _json({"tensors": _table_rows(table.tensors), "each": _table_rows(table.each)})}
    pieces = []
    for group in _groups(records):
        data = _json({"ranks": [row_of(record) for record in group]})
        split = next((record.split for record in group if record.split), None)
        number = None if split is None else splits.index(split)
        name = piece_name(group[0].rank)
        objects[name] = data
        pieces.append([group[0].rank, len(group), len(data), _sha256(data), number, _loose(group)])
    num_bytes = sum(record.num_bytes for record in records)
    tensors = objects[TENSORS]
    root = {
        "cut": cut,
        "num_bytes": num_bytes,
        "tensors": [len(tensors), _sha256(tensors)],
        "splits": [split_row(split) for split in splits],
        "pieces": pieces,
    }
    encoded = Encoded(cut=cut, num_bytes=num_bytes, root=seal(root, IN_PIECES), objects=objects)
    # It may be signed yet, and get the id of a log.
    total = len(encoded.root) + MAC_BYTES + LOG_BYTES + encoded.num_bytes_beside
    if total > MOST_MANIFEST_BYTES:
        raise TooLargeToRead(
            f"the manifest of {cut.world_size} ranks has {total:,} bytes, and a restart "
            f"reads at most {MOST_MANIFEST_BYTES:,}; save with fewer ranks"
        )
    refuse_excess(cut, encoded.root, *objects.values())
    return encoded


def _groups(records: Sequence[Record]) -> Iterable[list[Record]]:
    """Ranks that follow one rule, at most so many that a piece stays small."""
    group: list[Record] = []
    size, split = 0, None
    for record in records:
        weight = len(record.chunks) + 32 * len(record.exceptions)
        is_other = None not in (split, record.split) and split != record.split
        is_full = len(group) == _RANKS_PER_PIECE or size + weight > _MOST_PIECE_BYTES
        if group and (is_other or is_full):
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
