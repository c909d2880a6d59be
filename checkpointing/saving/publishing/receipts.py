"""What a rank tells rank 0 of its file, and a host's leader of the pieces it has written. Pure.

Names, types and shapes are the same on all ranks, so rank 0 tells them its own once. A receipt that needs no
others says only what follows from no rule, see ``records``. All other receipts have them in full: those of
small saves, whose manifest has them too, and those of ranks whose tensors are not as they were.

A leader tells of all ranks of its host at once: of each piece its name, size and digest, and by which rule
its ranks share the tensors. Only what follows from no rule is told of single ranks.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import groupby

from checkpointing.errors import Corrupt
from checkpointing.format.manifest import (
    IN_PIECES,
    NOT_AS_EXPECTED,
    Cut,
    FilePart,
    Manifest,
    decode_part,
    demand,
    encode_part,
    manifest_of,
)
from checkpointing.format.pieces import (
    Encoded,
    Piece,
    PieceNote,
    in_pieces,
    is_small,
    note_of,
    note_row,
    pieces_of,
    rooted,
)
from checkpointing.format.records import (
    Record,
    Table,
    file_part_of,
    own_tensors,
    record_of,
    records_of,
    row_of,
    split_of,
    split_row,
    table_of,
)
from checkpointing.log.codec import brief, schema_of, seal, unseal

Receipt = FilePart | Record


def encode_receipt(cut: Cut, part: FilePart, table: Table | None) -> bytes:
    """``table`` is what rank 0 has told; None if it has told nothing."""
    count = cut.world_size * (len(part.shards) + len(part.chunks))
    if table is None or is_small(count) or not _knows(table, part):
        return encode_part(cut, part)
    (record,) = records_of(cut, table, [part])
    subject = [cut.generation, part.rank]
    return seal({"of": subject, "split": split_row(record.split), "row": row_of(record)}, IN_PIECES)


def _knows(table: Table, part: FilePart) -> bool:
    if part.rank == 0:
        # If rank 0 itself has others now, what it has told says nothing of this save.
        return table_of([part]) == table
    known = {*table.tensors, *table.of_rank(part.rank)}
    return own_tensors(part) == table.each and known.issuperset(part.tensors)


def decode_receipt(data: bytes, cut: Cut, rank: int) -> Receipt:
    """Raises ``Corrupt`` unless it is what a rank may tell of this cut."""
    if schema_of(data) != IN_PIECES:
        return decode_part(data)[1]
    body = unseal(data, IN_PIECES)
    try:
        demand(body["of"] == [cut.generation, rank], f"a receipt of {body['of']!r:.200} from rank {rank}")
        split = None if body["split"] is None else split_of(body["split"], cut.world_size)
        return record_of(body["row"], rank, split)
    except NOT_AS_EXPECTED as error:
        raise Corrupt(f"a receipt lacks or misnames something: {brief(error)}") from error


def encode_notes(cut: Cut, notes: Sequence[PieceNote]) -> bytes:
    return seal({"of": cut.generation, "pieces": list(map(note_row, notes))}, IN_PIECES)


def decode_notes(data: bytes, cut: Cut, ranks: range) -> list[PieceNote] | None:
    """Returns what the leader of ``ranks`` tells of their pieces; None if ``data`` is a receipt.

    Raises ``Corrupt`` unless it is what a leader may tell of this cut.
    """
    if schema_of(data) != IN_PIECES or "pieces" not in (body := unseal(data, IN_PIECES)):
        return None
    try:
        demand(body["of"] == cut.generation, f"pieces of {body['of']!r:.200}")
        notes = [note_of(row, cut.world_size) for row in body["pieces"]]
    except NOT_AS_EXPECTED as error:
        raise Corrupt(f"a leader's word lacks or misnames something: {brief(error)}") from error
    found = [rank for note in notes for rank in note.ranks]
    demand(found == list(ranks), f"pieces of ranks {found[:9]} from the leader of rank {ranks.start}")
    return notes


def merged(
    cut: Cut,
    told: Sequence[Receipt | PieceNote],
    table: Table | None,
    read: Callable[[Piece], Sequence[Record]] = lambda piece: [],
) -> Encoded | Manifest:
    """Makes the manifest of what was told of all ranks, in their order. Raises ``Corrupt`` if that is not one
    whole generation, and ``TooLargeToRead`` beyond what a reader takes.

    Where a rank tells all, the pieces that are there already are of no use, and ``read`` fetches what they
    say. Their names are not used again, since a late write of them may land yet.
    """
    if table is not None and not any(isinstance(one, FilePart) for one in told):
        notes: list[PieceNote] = []
        objects: dict[str, bytes] = {}
        for is_record, run in groupby(told, key=lambda one: isinstance(one, Record)):
            if is_record:
                made, new = pieces_of(cut, table, [one for one in run if isinstance(one, Record)])
                objects |= new
                notes += made
            else:
                notes += [one for one in run if isinstance(one, PieceNote)]
        return rooted(cut, table, notes, objects)
    receipts: list[Receipt] = []
    for one in told:
        receipts += read(one.piece) if isinstance(one, PieceNote) else [one]
    manifest = _of_all(cut, receipts, table)
    taken = {one.piece.first for one in told if isinstance(one, PieceNote)}
    return in_pieces(manifest, taken=taken) if taken else manifest


def _of_all(cut: Cut, receipts: Sequence[Receipt], table: Table | None) -> Manifest:
    told = {one.name for receipt in receipts if isinstance(receipt, FilePart) for one in receipt.tensors}
    table = table or Table(tensors=())
    empty = {one.name for one in table.tensors if not one.num_elements} - told
    return manifest_of(cut, [_in_full(receipt, table, empty) for receipt in receipts])


def _in_full(receipt: Receipt, table: Table, empty: Collection[str]) -> FilePart:
    """With the tensors of which the rank has something, and the ``empty`` ones, of which nobody has."""
    if isinstance(receipt, FilePart):
        return receipt
    part = file_part_of(table, receipt)
    names = {*empty, *(shard.tensor for shard in part.shards)}
    return replace(part, tensors=tuple(one for one in (*table.tensors, *part.tensors) if one.name in names))
