"""What a rank tells rank 0 of its file. Pure.

Names, types and shapes are the same on all ranks, so rank 0 tells them its own once. A receipt that needs no
others says only what follows from no rule, see ``records``. All other receipts have them in full: those of
small saves, whose manifest has them too, and those of ranks whose tensors are not as they were.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

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
from checkpointing.format.pieces import Encoded, is_small, joined
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


def merged(cut: Cut, receipts: Sequence[Receipt], table: Table | None) -> Encoded | Manifest:
    """Makes the manifest of all ranks' receipts. Raises ``Corrupt`` if they are not one whole generation, and
    ``TooLargeToRead`` beyond what a reader takes.
    """
    records = [receipt for receipt in receipts if isinstance(receipt, Record)]
    if table is not None and len(records) == len(receipts):
        return joined(cut, table, records)
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
