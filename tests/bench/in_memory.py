"""Snapshots in two hosts' memory, with a copy of each on the other, beside the same saves in a folder.

Both hosts are this machine, each with a folder of its own in memory, and loopback is between them. The folder
beside it is on this machine's disk: a store over a network takes longer. What is read from there has left the
cache of files. Beside copies, the same bytes go plainly over TCP, from memory to memory.
"""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event, Thread

import torch
import torch.distributed as dist

from checkpointing.format.digests import digests
from checkpointing.format.loading import GenerationPlace, fill
from checkpointing.format.manifest import Cut, FilePart, Manifest, file_name
from checkpointing.format.reshard import plan
from checkpointing.generations.retention import Retention
from checkpointing.saving.cadence import Cadence
from checkpointing.saving.memory_tier import MemoryTier
from checkpointing.saving.save import Save
from checkpointing.saving.snapshot import Arena, Landing, Layout, layout
from checkpointing.stores.local import LocalStore
from cluster.probe.gloo_store import GlooGroup
from jobs.training.state.share_copies import Held, bring, receive
from jobs.training.state.sharing_memory import share_memory
from jobs.training.task.context import Context, RankStatus
from jobs.training.task.task import MemorySaving, Saving
from tests.bench.disk import forget
from tests.bench.states import pieces_of
from tests.live.ranks import run_ranks

LAYERS, ROUNDS = 1, 5
_KEY = b"k" * 32
_DEADLINE_S = 120.0
_STEP_S = 0.02
_RECEIVED_BYTES = 16 * 2**20


def main(num_layers: int = LAYERS) -> bool:
    with TemporaryDirectory(prefix="longhaul-bench-") as folder, TemporaryDirectory(dir="/dev/shm") as memory:
        found = run_ranks(_measure, memory, folder, num_layers, num_ranks=2, tmp_path=Path(folder))
    size = f"{found[0]['num_bytes'][0] / 1e9:.2f} GB a host"
    # The slower of both ranks counts.
    seconds = {what: median(map(max, *(rank[what] for rank in found))) for what in found[0]}
    kept, copied, stored = (seconds[what] for what in ("kept_s", "copied_s", "stored_s"))
    unslowed, both_ways, one_way = (seconds[what] for what in ("unslowed_s", "both_ways_s", "one_way_s"))
    near, brought, read = (seconds[what] for what in ("near_s", "brought_s", "read_s"))
    print(f"in memory      {size}: kept {kept:.2f} s, with the copy on the other host {copied:.2f} s,")
    print(f"               in a folder, flushed and read back, {stored:.2f} s: {copied / stored:.2f} of it")
    print(f"  copies       half of the time left free {copied - kept:.2f} s, where no step is slowed")
    print(f"               {unslowed:.2f} s: {unslowed / both_ways:.2f} of TCP alone, {both_ways:.2f} s")
    print(f"  restoring    where it lies {near:.2f} s, on another host {brought:.2f} s, from the folder")
    print(f"               {read:.2f} s: {near / read:.2f} and {brought / read:.2f} of it")
    print(f"               on another host {brought - near:.2f} s to bring it, TCP alone {one_way:.2f} s")
    return True


def _measure(memory: str, folder: str, num_layers: int) -> dict[str, list[float]]:
    """On each of two ranks."""
    rank = dist.get_rank()
    context = Context(
        rank=rank, world_size=2, local_rank=0, device=torch.device("cpu"), node=f"node-{rank}", key=_KEY
    )
    pieces = pieces_of(num_layers)
    plan_of_file = layout(pieces)
    arena = Arena(pieces, plan_of_file)
    arena.take(pieces)
    landing = Landing(pieces)
    saving = Saving(
        cadence=Cadence(),
        retention=Retention(),
        disk=None,
        disk_keep=2,
        deadline_s=_DEADLINE_S,
        memory=MemorySaving(folder=f"{memory}/{rank}", num_copies=1),
    )
    tier, store = MemoryTier(Path(memory) / str(rank), "bench"), LocalStore(Path(folder))
    copies, group = share_memory(tier, saving, context, plan_of_file.num_bytes), GlooGroup(_KEY, _DEADLINE_S)
    num_bytes, received = plan_of_file.num_bytes, bytearray(_RECEIVED_BYTES)
    found: dict[str, list[float]] = {"num_bytes": [float(plan_of_file.num_bytes)]}

    def timed(what: str, work: Callable[[], object]) -> None:
        dist.barrier()
        began = time.perf_counter()
        work()
        found.setdefault(what, []).append(time.perf_counter() - began)

    def over_tcp(*senders: int) -> None:
        arriving = Thread(target=_receive, args=(peer, received, num_bytes)) if 1 - rank in senders else None
        if arriving:
            arriving.start()
        if rank in senders:
            peer.sendall(arena.data)
        if arriving:
            arriving.join()
        dist.barrier()

    peer = _connected(rank, folder)
    for turn in range(1, ROUNDS + 1):
        save = _save(turn, rank, arena, plan_of_file)
        name = save.cut.generation
        file, from_folder = f"{name}/{save.part.file}", GenerationPlace(store=store, folder=name)

        def in_both(save: Save = save) -> None:
            began = time.perf_counter()
            copies.keep(save)
            found.setdefault("kept_s", []).append(time.perf_counter() - began)
            with _training(context.status, while_sending_s=2 * _STEP_S):
                copies.exchange(save)

        def in_folder(save: Save = save, file: str = file, place: GenerationPlace = from_folder) -> None:
            store.put(file, arena.data)
            _load(save, landing, place)

        def from_the_other(save: Save = save, name: str = name) -> None:
            if rank == 0:
                there = [share for share in tier.inventory() if share[0].generation == name]
                cut, part = next(share for share in there if share[1].rank == 1)
                bring(group, Held(tier=tier, cut=cut, part=part), to=1)
            else:
                assert receive(group, {0: 1}, tier, most_bytes=plan_of_file.num_bytes) == []
                _load(save, landing, tier.place(name))

        timed("copied_s", in_both)
        with _training(context.status, while_sending_s=_STEP_S):
            timed("unslowed_s", partial(copies.exchange, save))
        timed("both_ways_s", partial(over_tcp, 0, 1))
        timed("one_way_s", partial(over_tcp, 0))
        timed("stored_s", in_folder)
        timed("near_s", partial(_load, save, landing, tier.place(name)))
        forget([Path(folder) / file])
        timed("read_s", partial(_load, save, landing, from_folder))
        if rank == 1:
            tier.forget()
        timed("brought_s", from_the_other)
        dist.barrier()
        store.delete(file)
    copies.close()
    group.close()
    return found


@contextmanager
def _training(status: RankStatus, *, while_sending_s: float) -> Iterator[None]:
    """What a training tells of its steps, and how long they take inside."""
    is_over = Event()

    def work() -> None:
        while not is_over.wait(_STEP_S):
            status.step, status.step_s = status.step + 1, while_sending_s

    status.step_s = _STEP_S
    steps = Thread(target=work)
    steps.start()
    try:
        yield
    finally:
        is_over.set()
        steps.join()


def _connected(rank: int, folder: str) -> socket.socket:
    place = Path(folder) / "port"
    if rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            place.write_text(str(listener.getsockname()[1]), encoding="utf-8")
            dist.barrier()
            return listener.accept()[0]
    dist.barrier()
    return socket.create_connection(("127.0.0.1", int(place.read_text(encoding="utf-8"))))


def _receive(peer: socket.socket, into: bytearray, num_bytes: int) -> None:
    while num_bytes:
        num_bytes -= peer.recv_into(into, min(num_bytes, len(into)))


def _save(number: int, rank: int, arena: Arena, plan_of_file: Layout) -> Save:
    cut = Cut(
        generation=f"{number:012d}-t1-bench.{number}",
        run="bench",
        step=number,
        term=1,
        number=number,
        strategy="fsdp",
        world_size=2,
        created_s=time.time(),
    )
    part = FilePart(
        rank=rank,
        file=file_name(rank),
        num_bytes=plan_of_file.num_bytes,
        chunks=digests(arena.data),
        tensors=plan_of_file.tensors,
        shards=plan_of_file.shards,
    )
    return Save(cut=cut, part=part, room=arena, to_disk=False, to_store=False, blocked_s=0.0)


def _load(save: Save, landing: Landing, place: GenerationPlace) -> None:
    manifest = Manifest(cut=save.cut, parts=(save.part,))
    fill(manifest, plan(manifest, landing.wants), landing.buffers, [place])
    landing.settle()
