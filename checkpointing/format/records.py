"""What a manifest in pieces says of one rank's file: only what follows from no rule. Pure.

The table has each tensor's name, type and shape once. A record names tensors by their numbers in it.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checkpointing.format.manifest import (
    DTYPE_BYTES,
    Cut,
    FilePart,
    Shard,
    TensorInfo,
    check_cut,
    check_file,
    check_spans,
    demand,
    file_name,
    own_prefix,
)
from checkpointing.format.splits import Split, usual_splits
from checkpointing.log.codec import is_count

# Limit of what is computed to check a manifest; above any that a writer makes in a minute.
MOST_SPANS = 2**26
_DIGEST_CHARS = 32
_HEX = re.compile(r"[0-9a-f]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All tensors of a generation. ``each`` are those that each rank has of its own, without their prefix."""

    tensors: tuple[TensorInfo, ...]
    each: tuple[TensorInfo, ...] = ()

    def of_rank(self, rank: int) -> tuple[TensorInfo, ...]:
        prefix = own_prefix(rank)
        return tuple(
            TensorInfo(name=prefix + one.name, dtype=one.dtype, shape=one.shape) for one in self.each
        )

    def in_file_order(self) -> list[tuple[int, TensorInfo]]:
        """The tensors with their numbers in the order in which a file has them, see ``snapshot.layout``."""
        numbered = enumerate((*self.tensors, *self.each))
        return sorted(numbered, key=lambda one: -DTYPE_BYTES[one[1].dtype])


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a manifest says of one rank's file.

    ``base`` is the byte at which the first element lies; all others follow without gaps, in the table's
    order. ``exceptions`` are a tensor's number, start and length, instead of what ``split`` gives for that
    tensor. If ``base`` is None, nothing follows from a rule: each of them has the offset too.
    """

    rank: int
    num_bytes: int
    chunks: str
    state: Mapping[str, Any]
    base: int | None
    split: Split | None
    exceptions: tuple[tuple[int, ...], ...]

    @property
    def holding(self) -> "Holding":
        return Holding(rank=self.rank, split=self.split, exceptions=self.exceptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Which parts of the tensors a rank has, whatever its file is like; as in a ``Record``."""

    rank: int
    split: Split | None
    exceptions: tuple[tuple[int, ...], ...] = ()


def table_of(parts: Sequence[FilePart]) -> Table:
    """Returns all tensors of the parts, in the order in which they occur first."""
    each = own_tensors(parts[0]) if parts else ()
    if any(own_tensors(part) != each for part in parts):
        each = ()
    own = {f"{own_prefix(part.rank)}{one.name}" for part in parts for one in each}
    found = {one.name: one for part in parts for one in part.tensors if one.name not in own}
    return Table(tensors=tuple(found.values()), each=each)


def own_tensors(part: FilePart) -> tuple[TensorInfo, ...]:
    """The tensors that are named for this rank, if it has each of them whole."""
    prefix = own_prefix(part.rank)
    own = [tensor for tensor in part.tensors if tensor.name.startswith(prefix)]
    shards = [shard for shard in part.shards if shard.tensor.startswith(prefix) and shard.length]
    whole = [(one.name, 0, one.num_elements) for one in own if one.num_elements]
    if [(shard.tensor, shard.start, shard.length) for shard in shards] != whole or len(whole) != len(own):
        return ()
    return tuple(
        TensorInfo(name=one.name.removeprefix(prefix), dtype=one.dtype, shape=one.shape) for one in own
    )


def records_of(cut: Cut, table: Table, parts: Iterable[FilePart]) -> list[Record]:
    ranks_per_copy = cut.state.get("ranks_per_copy", cut.world_size)
    splits: list[Split | None] = [
        *usual_splits(cut.world_size, ranks_per_copy if is_count(ranks_per_copy) else cut.world_size),
        None,
    ]
    numbers = {tensor.name: number for number, tensor in enumerate(table.tensors)}
    order = table.in_file_order()
    records = []
    for part in parts:
        record = _best_record(part, table, numbers, order, splits)
        # The other ranks have most likely the same rule.
        splits.sort(key=lambda split: split != record.split)
        records.append(record)
    return records


def _best_record(
    part: FilePart,
    table: Table,
    numbers: Mapping[str, int],
    order: Sequence[tuple[int, TensorInfo]],
    splits: Sequence[Split | None],
) -> Record:
    num_tensors = len(table.tensors)
    own = {tensor.name: num_tensors + place for place, tensor in enumerate(table.of_rank(part.rank))}
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    offsets = []
    for shard in part.shards:
        if shard.length:
            number = own[shard.tensor] if shard.tensor in own else numbers[shard.tensor]
            spans[number].append((shard.start, shard.length))
            offsets.append((number, shard.start, shard.length, shard.offset))
    base = min((offset for *_, offset in offsets), default=part.num_bytes)
    is_packed = _packed(order, spans, base) == ({one[:3]: one[3] for one in offsets}, part.num_bytes)
    if not is_packed:
        return _record(part, None, None, tuple(offsets))
    found: list[tuple[Split | None, list[tuple[int, ...]]]] = []
    for split in splits:
        exceptions = _exceptions(table.tensors, part.rank, split, spans)
        found.append((split, exceptions))
        if not exceptions:
            break
    split, exceptions = min(found, key=lambda one: (len(one[1]), one[0] is not None))
    return _record(part, base, split, tuple(exceptions))


def _record(
    part: FilePart, base: int | None, split: Split | None, exceptions: tuple[tuple[int, ...], ...]
) -> Record:
    return Record(
        rank=part.rank,
        num_bytes=part.num_bytes,
        chunks="".join(part.chunks),
        state=part.state,
        base=base,
        split=split,
        exceptions=exceptions,
    )


def _exceptions(
    tensors: Sequence[TensorInfo],
    rank: int,
    split: Split | None,
    spans: Mapping[int, Sequence[tuple[int, int]]],
) -> list[tuple[int, ...]]:
    exceptions: list[tuple[int, ...]] = []
    for number, tensor in enumerate(tensors):
        start, length = split.span(tensor, rank) if split else (0, 0)
        found = spans.get(number, ())
        if list(found) != ([(start, length)] if length else []):
            exceptions += [(number, *span) for span in found or [(0, 0)]]
    return exceptions


def _packed(
    order: Sequence[tuple[int, TensorInfo]], spans: Mapping[int, Sequence[tuple[int, int]]], base: int
) -> tuple[dict[tuple[int, ...], int], int]:
    """Returns where each span begins if all follow one another from ``base`` on, and where the last ends."""
    offsets: dict[tuple[int, ...], int] = {}
    end = base
    for number, tensor in order:
        for start, length in spans.get(number, ()):
            if length:
                offsets[number, start, length] = end
                end += length * DTYPE_BYTES[tensor.dtype]
    return offsets, end


def file_part_of(table: Table, record: Record, *, with_shards: bool = True) -> FilePart:
    """Raises ``Corrupt`` if the shards do not fit into the file or their tensors."""
    chunks = record.chunks
    return FilePart(
        rank=record.rank,
        file=file_name(record.rank),
        num_bytes=record.num_bytes,
        chunks=tuple(chunks[at : at + _DIGEST_CHARS] for at in range(0, len(chunks), _DIGEST_CHARS)),
        tensors=table.of_rank(record.rank),
        shards=_shards(table, record) if with_shards else (),
        state=record.state,
    )


def _shards(table: Table, record: Record) -> tuple[Shard, ...]:
    tensors = (*table.tensors, *table.of_rank(record.rank))
    known = all(one[0] < len(tensors) for one in record.exceptions)
    demand(known, f"tensors that the table has not in {file_name(record.rank)}")
    if record.base is None:
        spans = [(number, start, length, offset) for number, start, length, offset in record.exceptions]
        end = 0
    else:
        offsets, end = _packed(table.in_file_order(), _spans(table, record), record.base)
        spans = [(number, start, length, offset) for (number, start, length), offset in offsets.items()]
    is_right = record.base is None or end == record.num_bytes
    demand(is_right, f"{end} bytes of tensors in {record.num_bytes} of {file_name(record.rank)}")
    for number, start, length, offset in spans:
        tensor = tensors[number]
        demand(start + length <= tensor.num_elements, f"{start + length} elements of {tensor.name}")
        last = offset + length * DTYPE_BYTES[tensor.dtype]
        demand(last <= record.num_bytes, f"a shard outside of {file_name(record.rank)}")
    return tuple(
        Shard(tensor=tensors[number].name, start=start, length=length, offset=offset)
        for number, start, length, offset in spans
    )


def _spans(table: Table, record: Record) -> dict[int, list[tuple[int, int]]]:
    """The first element and the length of all that the rank has, by the tensor's number."""
    num_tensors = len(table.tensors)
    spans = {num_tensors + place: [(0, one.num_elements)] for place, one in enumerate(table.each)}
    if record.split:
        spans |= {
            number: [record.split.span(tensor, record.rank)] for number, tensor in enumerate(table.tensors)
        }
    spans |= {number: [] for number, *_ in record.exceptions}
    for number, start, length, *_ in record.exceptions:
        spans[number].append((start, length))
    return spans


def check_records(cut: Cut, table: Table, records: Sequence[Record]) -> None:
    """Raises ``Corrupt`` unless all ranks are there, and have every element of every tensor exactly once."""
    check_holdings(cut, table, [record.holding for record in records])
    check_files(table, records)


def check_files(table: Table, records: Sequence[Record]) -> None:
    """Raises ``Corrupt`` for what can't be of a file, whatever other ranks have."""
    num_tensors = len(table.tensors)
    whole = [(num_tensors + place, 0, one.num_elements) for place, one in enumerate(table.each)]
    for record in records:
        _check_file(record)
        own = sorted(one[:3] for one in record.exceptions if one[0] >= num_tensors)
        demand(own == (whole if record.base is None else []), f"own tensors of rank {record.rank} {own[:9]}")
    _check_sizes(table, records)


def check_holdings(cut: Cut, table: Table, holdings: Sequence[Holding]) -> None:
    """Raises ``Corrupt`` unless all ranks are there, and have every element of every tensor exactly once.

    Where all follow one rule, that follows from the rule; only tensors with exceptions are looked at.
    """
    check_cut(cut)
    demand([one.rank for one in holdings] == list(range(cut.world_size)), f"{len(holdings)} ranks")
    num_tensors = len(table.tensors)
    exceptions: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for holding in holdings:
        for number, start, length, *_ in holding.exceptions:
            exceptions[number].append((holding.rank, start, length))
    ruled = [holding for holding in holdings if holding.split]
    splits = {holding.split for holding in ruled}
    split = next(iter(splits)) if len(splits) == 1 else None
    is_regular = split is not None and len([one for one in ruled if one.rank < split.num_ranks]) == (
        split.num_ranks
    )
    loose = [number for number in exceptions if number < num_tensors] if is_regular else range(num_tensors)
    demand(len(loose) * (len(ruled) + 1) <= MOST_SPANS, "more exceptions than can be checked")
    for number in loose:
        tensor, found = table.tensors[number], exceptions.get(number, [])
        apart = {rank for rank, *_ in found}
        spans = [(start, start + length) for _, start, length in found if length]
        for holding in ruled:
            if holding.rank not in apart and holding.split:
                start, length = holding.split.span(tensor, holding.rank)
                spans += [(start, start + length)] if length else []
        check_spans(tensor, spans)


def _check_sizes(table: Table, records: Sequence[Record]) -> None:
    """Demands that each file has room for just what its rank has, as ``_shards`` does."""
    by_rule = {
        split: _bytes_by_rule(table.tensors, split, [one.rank for one in records if one.split == split])
        for split in {one.split for one in records}
        if split
    }
    tensors = (*table.tensors, *table.each)
    sizes = [DTYPE_BYTES[tensor.dtype] for tensor in tensors]
    num_own = sum(one.num_elements * DTYPE_BYTES[one.dtype] for one in table.each)
    for record in records:
        name, split = file_name(record.rank), record.split
        if record.base is None:
            ends = [offset + length * sizes[number] for number, _, length, offset in record.exceptions]
            demand(max(ends, default=0) <= record.num_bytes, f"a shard outside of {name}")
            continue
        end = record.base + num_own + sum(length * sizes[number] for number, _, length in record.exceptions)
        if split and record.rank < split.num_ranks:
            apart = {number for number, *_ in record.exceptions}
            end += by_rule[split][record.rank]
            end -= sum(split.span(tensors[number], record.rank)[1] * sizes[number] for number in apart)
        demand(end == record.num_bytes, f"{end} bytes of tensors in {record.num_bytes} of {name}")


def _bytes_by_rule(tensors: Sequence[TensorInfo], split: Split, ranks: Sequence[int]) -> dict[int, int]:
    """What each of ``ranks`` has by the rule. Tensors of one type and shape, of which models have few, are
    split alike.
    """
    kinds: dict[tuple[str, tuple[int, ...]], list[TensorInfo]] = defaultdict(list)
    for tensor in tensors:
        kinds[tensor.dtype, tensor.shape].append(tensor)
    demand(len(kinds) * len(ranks) <= MOST_SPANS, f"{len(kinds)} shapes of tensors")
    found = dict.fromkeys(ranks, 0)
    for (dtype, _), alike in kinds.items():
        size = len(alike) * DTYPE_BYTES[dtype]
        for rank in ranks:
            found[rank] += split.span(alike[0], rank)[1] * size
    return found


def row_of(record: Record) -> list[Any]:
    is_by_rule = record.split is not None
    return [record.num_bytes, record.chunks, record.state, record.base, is_by_rule, record.exceptions]


def split_row(split: Split | None) -> list[Any] | None:
    return None if split is None else [split.is_by_rows, split.num_splits, split.num_shares]


def split_of(row: Sequence[Any], world_size: int) -> Split:
    """Raises ``Corrupt``, or what a value of a wrong type causes, for a row that no writer makes."""
    is_by_rows, num_splits, num_shares = row
    demand(isinstance(is_by_rows, bool), f"a split by {is_by_rows!r}")
    are_counts = all(is_count(number) and number for number in (num_splits, num_shares))
    demand(are_counts and num_splits * num_shares <= world_size, f"a split into {row[1:]}")
    return Split(is_by_rows=is_by_rows, num_splits=num_splits, num_shares=num_shares)


def record_of(row: Sequence[Any], rank: int, split: Split | None) -> Record:
    """Raises ``Corrupt``, or what a value of a wrong type causes, for a row that no writer makes."""
    num_bytes, chunks, state, base, is_by_rule, exceptions = row
    demand(isinstance(chunks, str) and bool(_HEX.fullmatch(chunks)), f"digests {chunks!r:.80}")
    demand(isinstance(state, dict), f"a state {state!r:.80}")
    demand(base is None or is_count(base), f"a file that begins at {base!r:.80}")
    demand(isinstance(is_by_rule, bool) and not (is_by_rule and base is None), "a rule without a beginning")
    record = Record(
        rank=rank,
        num_bytes=num_bytes,
        chunks=chunks,
        state=state,
        base=base,
        split=split if is_by_rule else None,
        exceptions=checked_exceptions(exceptions, [4 if base is None else 3]),
    )
    _check_file(record)
    return record


def checked_exceptions(
    rows: Sequence[Sequence[Any]], sizes: Collection[int] = (3, 4)
) -> tuple[tuple[int, ...], ...]:
    """Raises ``Corrupt``, or what a value of a wrong type causes, unless each has one of ``sizes``."""
    exceptions = tuple(map(tuple, rows))
    for one in exceptions:
        demand(len(one) in sizes and all(map(is_count, one)), f"an exception {one[:9]}")
    return exceptions


def _check_file(record: Record) -> None:
    check_file(record.num_bytes, len(record.chunks) / _DIGEST_CHARS)
