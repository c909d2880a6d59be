"""What a save and a resume cost in manifests and receipts at many ranks, beside the form of one object.

The state has 2.2 TB. All ranks are simulated: the real code encodes and decodes what they would, over a store
in memory. Of the form of one object one rank's receipt is measured and multiplied, because all of it would
not fit anywhere. Rank 0 takes two messages of each rank of its host and of each other host's leader through
the real mailbox: receipt or pieces, and what was read back. What that takes of its CPU is measured for some,
with torch's server, and multiplied; in the form of one object for two messages of each rank.
"""

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from multiprocessing import get_context

import torch

from checkpointing.format.manifest import Cut, FilePart, TensorInfo, decode_part, encode_part
from checkpointing.format.pieces import Encoded, ObjectRef, PieceNote, needed, pieces_of
from checkpointing.format.records import Record, Table, table_of
from checkpointing.format.reshard import Want, plan
from checkpointing.generations.manifests import InPieces, opened, with_parts
from checkpointing.generations.repository import Repository
from checkpointing.log.history import Generation
from checkpointing.saving.publishing.receipts import (
    Receipt,
    decode_notes,
    decode_receipt,
    encode_notes,
    encode_receipt,
    merged,
)
from checkpointing.stores.memory import MemoryStore
from cluster.probe.meeting import listen_to_ranks, tcp_store
from cluster.run_key import new_key
from jobs.training.state.rank_mailbox import RankMailbox
from jobs.training.task.context import Context
from tests.bench.growth import Cost, peak_bytes
from tests.unit import layouts
from tests.unit.small_generations import RUN, cut_of

WORLD_SIZES, NUM_TENSORS = (64, 1024, 16_384, 65_536), 4096
MOST_BYTES_BOUND, RATIO_BOUND, RATIO_AT = 8 * 2**20, 20, 1024
# So many on each host; those of rank 0's host tell rank 0 themselves.
RANKS_PER_HOST = 8
# Rows enough that each rank has some of each tensor.
NUM_ROWS = 65_536
# Messages that are sent for real; a receipt of 1,024 ranks has 17 KB, what was read back some bytes.
_NUM_MAILED, _MAILED_BYTES = 2048, 8192
_CONNECT_TIMEOUT = timedelta(seconds=120)


def main(world_sizes: Sequence[int] = WORLD_SIZES, num_tensors: int = NUM_TENSORS) -> bool:
    are_met = [_measure(world_size, num_tensors) for world_size in world_sizes]
    return all(are_met)


def text(cost: Cost) -> str:
    return f"{cost.num_bytes / 2**20:,.2f} MiB, {cost.cpu_s:,.3f} CPU-s"


def _measure(world_size: int, num_tensors: int) -> bool:
    tensors = [
        TensorInfo(
            name=f"param/model.layers.{number}.weight", dtype="F32", shape=(NUM_ROWS, 1024 * (1 + number % 3))
        )
        for number in range(num_tensors)
    ]
    cut = cut_of(10, term=1, number=1, world_size=world_size)
    parts = [part_of(tensors, rank, world_size) for rank in (0, world_size - 1)]
    table = table_of(parts[:1])
    encoded, ours, led = through_rank_0(cut, table, parts[-1], world_size)
    receipts, read = _of_one_object(cut, parts[-1])
    num_heard = RANKS_PER_HOST + world_size // RANKS_PER_HOST - 1
    per_message_s = message_s()
    ours = replace(ours, cpu_s=ours.cpu_s + 2 * num_heard * per_message_s)
    receipts = replace(receipts, cpu_s=receipts.cpu_s + 2 * world_size * per_message_s)
    largest = max(len(encoded.root), *map(len, encoded.objects.values()))
    store = MemoryStore()
    repository = Repository(store, RUN)
    generation = repository.commit(encoded, term=repository.take_over("bench"))
    same = _resume(repository, generation, tensors, world_size)
    half = _resume(repository, generation, tensors, world_size // 2)
    ratios = receipts.num_bytes / ours.num_bytes, receipts.cpu_s / ours.cpu_s
    print(f"manifests at {world_size:,} simulated ranks x {num_tensors:,} tensors")
    print(f"  largest object   {largest / 2**20:,.2f} MiB of {len(encoded.objects) + 1} (bound 8 MiB)")
    print(
        f"  through rank 0   {text(ours)}; one object: {text(receipts)}, "
        f"{ratios[0]:,.0f}x and {ratios[1]:,.0f}x (bound {RATIO_BOUND}x at {RATIO_AT:,})"
    )
    print(f"  of that          {2 * num_heard * per_message_s:,.3f} CPU-s for {2 * num_heard:,} messages")
    print(f"  a leader         {text(led)}")
    print(f"  a rank resumes   {text(same)}; from twice the ranks {text(half)}; one object: {text(read)}")
    is_small = largest <= MOST_BYTES_BOUND
    return is_small and (world_size != RATIO_AT or min(ratios) >= RATIO_BOUND)


def part_of(tensors: Sequence[TensorInfo], rank: int, world_size: int) -> FilePart:
    held = [(one, layouts.rows(one, rank, world_size)) for one in tensors]
    return layouts.part(rank, [*held, *((one, (0, one.num_elements)) for one in layouts.own_of(rank))])


def through_rank_0(cut: Cut, table: Table, part: FilePart, world_size: int) -> tuple[Encoded, Cost, Cost]:
    """What rank 0 reads and makes, and what one leader does. Ranks have equal shares, so one rank's receipt
    stands for all, and one host's pieces.
    """
    receipt = encode_receipt(cut, part, table)
    own = decode_receipt(receipt, cut, part.rank)
    assert isinstance(own, Record)
    hosts = [range(first, first + RANKS_PER_HOST) for first in range(0, world_size, RANKS_PER_HOST)]
    written: dict[str, bytes] = {}
    messages, spent_s = [], 0.0
    for ranks in hosts[1:]:
        started = time.process_time()
        for _ in ranks:
            decode_receipt(receipt, cut, part.rank)
        notes, objects = pieces_of(cut, table, [replace(own, rank=rank) for rank in ranks])
        messages.append(encode_notes(cut, notes))
        spent_s += time.process_time() - started
        written |= objects
    hear = partial(_hear, cut, table, receipt, replace(own, rank=0), messages, hosts)
    started = time.process_time()
    encoded = hear()
    cpu_s = time.process_time() - started
    peak = peak_bytes(hear)
    num_heard = sum(map(len, messages)) + len(receipt) * len(hosts[0])
    num_made = len(encoded.root) + sum(map(len, encoded.objects.values()))
    num_led = sum(map(len, messages[-1:])) + len(receipt) * RANKS_PER_HOST
    num_led += max(map(len, written.values()), default=0)
    led = Cost(num_bytes=num_led, cpu_s=spent_s / max(1, len(messages)))
    whole = replace(encoded, objects=encoded.objects | written, num_bytes_there=0)
    return whole, Cost(num_bytes=num_heard + num_made, cpu_s=cpu_s, memory_bytes=peak), led


def _hear(
    cut: Cut,
    table: Table,
    receipt: bytes,
    own: Record,
    messages: Sequence[bytes],
    hosts: Sequence[range],
) -> Encoded:
    """What rank 0 makes of its own host's receipts and of the other hosts' messages."""
    told: list[Receipt | PieceNote] = []
    for rank in hosts[0]:
        decode_receipt(receipt, cut, cut.world_size - 1)
        told.append(replace(own, rank=rank))
    for message, ranks in zip(messages, hosts[1:], strict=True):
        told += decode_notes(message, cut, ranks) or []
    encoded = merged(cut, told, table)
    assert isinstance(encoded, Encoded)
    return encoded


def message_s() -> float:
    """What rank 0's process spends on a message, as torch's server and as who takes it."""
    listener = listen_to_ranks("127.0.0.1")
    port = listener.getsockname()[1]
    server = tcp_store("127.0.0.1", port, listener, _CONNECT_TIMEOUT)
    key, box = new_key(), Context(rank=0, world_size=_NUM_MAILED, local_rank=0, device=torch.device("cpu"))
    ours = RankMailbox(server, box, key)
    started = time.process_time()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(_post_all, port, key).result()
        for rank in range(_NUM_MAILED):
            assert ours.take(f"save/written/{rank}", 60.0, sender=rank) is not None
    return (time.process_time() - started) / _NUM_MAILED


def _post_all(port: int, key: bytes) -> None:
    store = tcp_store("127.0.0.1", port, None, _CONNECT_TIMEOUT)
    for rank in range(_NUM_MAILED):
        box = Context(rank=rank, world_size=_NUM_MAILED, local_rank=0, device=torch.device("cpu"))
        RankMailbox(store, box, key).post(f"save/written/{rank}", bytes(_MAILED_BYTES), to=0)


def _of_one_object(cut: Cut, part: FilePart) -> tuple[Cost, Cost]:
    """What goes through rank 0, and what each rank reads to resume: one rank's part of both, multiplied."""
    started = time.process_time()
    data = encode_part(cut, part)
    encoded_s = time.process_time() - started
    started = time.process_time()
    decode_part(data)
    decoded_s = time.process_time() - started
    read = Cost(num_bytes=len(data) * cut.world_size, cpu_s=decoded_s * cut.world_size)
    # Rank 0 takes the receipts, and writes as much again.
    total_s = (encoded_s + decoded_s) * cut.world_size
    return Cost(num_bytes=2 * read.num_bytes, cpu_s=total_s), read


def _resume(
    repository: Repository, generation: Generation, tensors: Sequence[TensorInfo], world_size: int
) -> Cost:
    """The last rank of ``world_size`` reads what it needs; what rank 0 reads for all counts too."""
    rank = world_size - 1
    wants = [
        Want(tensor=one.name, start=start, length=length, num_elements=one.num_elements, dtype=one.dtype)
        for one in tensors
        for start, length in [layouts.rows(one, rank, world_size)]
    ]
    started = time.process_time()
    stored = repository.stored_manifest(generation)
    found = opened(stored)
    assert isinstance(found, InPieces)
    place = repository.place(generation.name)
    manifest = with_parts(place, found, wants, rank)
    plan(manifest, wants)
    cpu_s = time.process_time() - started
    names = {ref.name for ref in _needed_refs(found, wants, rank)}
    num_bytes = len(stored.data) + len(stored.tensors)
    num_bytes += sum(repository.store.size(f"{place.folder}/{name}") for name in names)
    return Cost(num_bytes=num_bytes, cpu_s=cpu_s)


def _needed_refs(found: InPieces, wants: Sequence[Want], rank: int) -> list[ObjectRef]:
    spans = [(want.tensor, want.start, want.start + want.length) for want in wants]
    return [piece.ref for piece in needed(found.root, found.table, spans, rank).pieces]


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
