"""Ranks that train, save, stop and come back, in turn: the real saving and restoring around a tiny training.

Each step's state follows from the step and the rank, so whatever is read proves itself to be that of a step.
"""

import ctypes
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from checkpointing.errors import Fenced
from checkpointing.format.manifest import Manifest
from checkpointing.generations import repository
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention
from checkpointing.log import folding
from checkpointing.log.history import Resumed
from checkpointing.saving import local_tier, own_store, snapshot, writer
from checkpointing.saving.cadence import Cadence
from checkpointing.saving.memory_tier import MemoryTier
from checkpointing.saving.own_store import OwnStore
from checkpointing.saving.save import Save, SaveNote
from checkpointing.saving.snapshot import Piece
from checkpointing.stores.contract import Buffer, Store, StoreError
from jobs.training.loop import control, last_state
from jobs.training.loop.control import Control
from jobs.training.loop.ending import note_end, save_the_end
from jobs.training.loop.last_state import LastState
from jobs.training.loop.step_boundary import StepBoundary
from jobs.training.ranks import gathering
from jobs.training.state import bringing, rank_mailbox, saving, share_copies, sharing_memory
from jobs.training.state.near_tiers import NearTiers, memory_tier
from jobs.training.state.near_tiers import local_tier as disk_of
from jobs.training.state.rank_mailbox import open_mailboxes
from jobs.training.state.restoring import ResumePoint, restore_own
from jobs.training.state.saved_run import SavedOrder, SavedRun
from jobs.training.state.saving import Saver
from jobs.training.strategies.contract import Counters
from jobs.training.task.context import Context
from jobs.training.task.position import StepPoint
from jobs.training.task.stop_request import StopRequest
from jobs.training.task.task import MemorySaving, Saving
from tests.live.interleavings.in_turn import Turns, standing_in
from tests.live.interleavings.wire import Collectives, Group, Letters, Peer, Wire

RUN = "r"
KEY = b"k" * 32
DEADLINE_S = 20.0
CPU = torch.device("cpu")
# The step with which the run's only epoch ends.
EPOCHS_END = 1
# Of two tensors. Prime, so that nothing fits by chance.
_SIZES = (23, 7)
# A header of 4096 bytes takes one piece of a share, and what is behind it some more.
_PIECE_BYTES = 2**12
_STOP = StopRequest(aim="stop", why="a test")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How the ranks of a run save. ``folder`` has a folder for each node. ``is_replicated``: each rank holds
    the state of all, as under ddp, and leaves its last one. A step takes ``step_s`` beside its turns.
    """

    folder: Path
    num_ranks: int
    is_replicated: bool
    num_steps: int
    step_s: float
    copies_lazily: bool
    must_wait: bool
    has_disk: bool
    store_every: int


@dataclass(slots=True, kw_only=True)
class Life:
    """What a rank of one attempt has met. ``fails_at`` is the step in which it raises."""

    peer: Peer
    node: str
    fails_at: int | None = None
    is_asked_to_stop: bool = False
    start: int | None = None
    trail: tuple[str, ...] = ()
    step: int = 0
    end: str | None = None
    problem: str | None = None
    error: BaseException | None = None
    notes: list[SaveNote] = field(default_factory=list)
    last_state: LastState | None = None


class Failure(Exception):
    """A fault of the training."""


def state_of(step: int, rank: int) -> list[Tensor]:
    """All a rank's tensors after ``step``. No element is the same in two steps, ranks or places."""
    return [
        (torch.arange(size, dtype=torch.int64) + 100 * number + 1_000 * rank) * 1_000 + step
        for number, size in enumerate(_SIZES)
    ]


class TinyState:
    """A ``TrainingState`` of two tensors, of which each rank saves an equal part. ``holds`` are the ranks
    whose parts this one has.
    """

    def __init__(self, rank: int, plan: Plan, turns: Turns) -> None:
        self.holds = (*range(plan.num_ranks),) if plan.is_replicated else (rank,)
        self.tensors = self._after(0)
        self._rank = rank
        self._world_size = plan.num_ranks
        self._turns = turns

    def pieces(self) -> list[Piece]:
        return self.pieces_of(self._rank)

    def pieces_of(self, rank: int) -> list[Piece]:
        place = self.holds.index(rank)
        return [
            self._piece(number, size * rank, values[size * place : size * (place + 1)])
            for number, (size, values) in enumerate(zip(_SIZES, self.tensors, strict=True))
        ]

    def targets(self, _manifest: Manifest) -> list[Piece]:
        return [
            self._piece(number, size * self.holds[0], values)
            for number, (size, values) in enumerate(zip(_SIZES, self.tensors, strict=True))
        ]

    def _piece(self, number: int, start: int, values: Tensor) -> Piece:
        shape = (_SIZES[number] * self._world_size,)
        return Piece(name=f"param/{number}", shape=shape, start=start, values=values)

    def description(self) -> Mapping[str, Any]:
        return {}

    def counters(self) -> Counters:
        return Counters(num_updates=0, num_skipped_updates=0)

    def restored(self, _manifest: Manifest) -> None:
        pass

    def update(self, step: int) -> None:
        """In parts, with others' turns between them."""
        for values, new in zip(self.tensors, self._after(step), strict=True):
            half = len(values) // 2
            values[:half] = new[:half]
            self._turns.pause("half updated")
            values[half:] = new[half:]
            self._turns.pause("updated")

    def is_of(self, step: int) -> bool:
        return all(map(torch.equal, self.tensors, self._after(step)))

    def _after(self, step: int) -> list[Tensor]:
        of_ranks = [state_of(step, rank) for rank in self.holds]
        return [torch.cat(parts) for parts in zip(*of_ranks, strict=True)]


def saving_of(plan: Plan, node: str) -> Saving:
    return Saving(
        cadence=Cadence(
            every_s=None,
            every_steps=1 if plan.has_disk else plan.store_every,
            disk_every=1 if plan.has_disk else 0,
            store_every=plan.store_every if plan.has_disk else 1,
            on_busy="wait" if plan.must_wait else "skip",
            memory_every_steps=1,
        ),
        retention=Retention(last=2, best=0),
        disk=str(plan.folder / node / "disk") if plan.has_disk else None,
        disk_keep=2,
        deadline_s=DEADLINE_S,
        copies_lazily=plan.copies_lazily,
        memory=MemorySaving(folder=str(plan.folder / node / "memory"), num_copies=1),
    )


def run_of(plan: Plan, term: int, attempt: str, lineage: str) -> SavedRun:
    return SavedRun(
        run=RUN,
        term=term,
        attempt=attempt,
        lineage=lineage,
        strategy="ddp" if plan.is_replicated else "fsdp",
        world_size=plan.num_ranks,
        ranks_per_copy=1 if plan.is_replicated else plan.num_ranks,
        about={},
    )


def near_of(plan: Plan, node: str, saved: SavedRun) -> NearTiers:
    wanted = saving_of(plan, node)
    return NearTiers(memory=memory_tier(wanted, saved), disk=disk_of(wanted, saved))


def train(life: Life, plan: Plan, saved: SavedRun, wire: Wire, store: Store) -> None:
    """One rank of one attempt, as ``jobs.training.loop.attempt`` goes about it."""
    try:
        _train(life, plan, saved, wire, Repository(store, RUN))
    except Exception as error:
        # What is on its way goes on as long as the process is there.
        life.error = error


def _train(life: Life, plan: Plan, saved: SavedRun, wire: Wire, own: Repository) -> None:
    turns, rank = wire.turns, life.peer.rank
    wanted, near = saving_of(plan, life.node), near_of(plan, life.node, saved)
    context = Context(rank=rank, world_size=plan.num_ranks, local_rank=0, device=CPU, node=life.node, key=KEY)
    state = TinyState(rank, plan, turns)
    own.refresh()
    start = restore_own(saved, context, state, own, near)
    life.start, life.step, life.trail = start.step, start.step, start.trail
    assert state.is_of(start.step), f"rank {rank} has not loaded step {start.step}: {state.tensors}"
    words = Control(lambda: _STOP if life.is_asked_to_stop else None, 600.0, KEY)
    saver = Saver(saved, wanted, context, state, own, open_mailboxes(context), life.notes.append)
    if near.memory and plan.is_replicated:
        engine, order = cast("Any", state), SavedOrder()
        life.last_state = LastState(saved, near.memory, context, engine, order, lambda _: None)
    try:
        _work(life, plan, saved, wire, own, context, state, start, words, saver)
    except Exception as error:
        if life.last_state:
            if isinstance(error, Fenced):
                life.last_state.forbid()
            else:
                life.last_state.leave()
        raise


def _work(
    life: Life,
    plan: Plan,
    saved: SavedRun,
    wire: Wire,
    own: Repository,
    context: Context,
    state: TinyState,
    start: ResumePoint,
    words: Control,
    saver: Saver,
) -> None:
    turns, rank, last = wire.turns, life.peer.rank, life.last_state
    boundary = _boundary(context, saver)
    saver.resume_from(start.generation, start.sample_order)
    saver.start()
    words.agree()
    boundary.save_again(_point_at(life.step, start.epoch_end), start.metrics, words)
    epoch_end = start.epoch_end
    while life.step < plan.num_steps and words.aim is None:
        point = _point_at(life.step + 1, 1 if life.step + 1 == EPOCHS_END else None)
        words.begin(boundary.orders(point), boundary.own_busy())
        turns.wait("forward", lambda: False, timeout_s=plan.step_s)
        if life.fails_at == point.step:
            raise Failure
        wire.give(0, torch.zeros(1))()  # the gradients of all
        if saver.is_copying:
            saver.settle()
        if last:
            last.changes()
        state.update(point.step)
        if last and boundary.may_leave(point):
            last.is_whole(point, is_crossed=False)
        agreed = words.end()
        context.status.step, context.status.step_s = point.step, 0.01
        boundary.cross(point, agreed, 0.5)
        if last and boundary.may_leave(point):
            last.is_whole(point, is_crossed=True)
        life.step, epoch_end = point.step, point.epoch_end
        if life.step == start.step + 1:
            _note_resumed(own, start.generation, saved.term, rank)
    _end(life, _point_at(life.step, epoch_end), plan, saved, words, saver, own)


def _point_at(step: int, epoch_end: int | None) -> StepPoint:
    return StepPoint(step=step, position=step, epoch_end=epoch_end)


def _note_resumed(own: Repository, generation: str | None, term: int, rank: int) -> None:
    if rank == 0 and generation:
        with suppress(StoreError):
            own.append(Resumed(name=generation), term=term)


def _end(
    life: Life,
    point: StepPoint,
    plan: Plan,
    saved: SavedRun,
    words: Control,
    saver: Saver,
    own: Repository,
) -> None:
    is_done = life.step >= plan.num_steps
    life.problem = save_the_end(saver, words, point)
    if words.from_rank_0(life.problem is None):
        saver.forget_memory()
        if life.last_state:
            life.last_state.forbid()
    if life.peer.rank == 0 and life.problem is None:
        life.problem = note_end(own, life.step, None if is_done else _STOP, term=saved.term)
    saver.close()
    words.close()
    life.end = "done" if is_done else "stopped"


def _boundary(context: Context, saver: Saver) -> StepBoundary:
    """Where nothing is evaluated, checked, reported or recorded."""
    nothing = SimpleNamespace(
        is_due=False,
        leaves_losses=False,
        left=lambda **_: None,
        order=lambda: False,
        is_report_due=lambda: False,
        is_checkpoint_report_due=lambda: False,
        phase=lambda _: None,
    )
    silent = cast("Any", nothing)
    return StepBoundary(context, silent, silent, silent, saver, silent, silent)


def steps_in(file: bytes, rank: int) -> int | None:
    """Of which step all of a rank's file is; None if it is of none."""
    length = int.from_bytes(file[:8], "little")
    header, data = json.loads(file[8 : 8 + length]), file[8 + length :]
    found = []
    for number in range(len(_SIZES)):
        begin, end = header[f"param/{number}"]["data_offsets"]
        found.append(torch.frombuffer(bytearray(data[begin:end]), dtype=torch.int64))
    step = int(found[0][0]) % 1_000
    return step if all(map(torch.equal, found, state_of(step, rank))) else None


@contextmanager
def ranks_in_turn(
    turns: Turns, wire: Callable[[], Wire], has_copies: Callable[[Save], None]
) -> Iterator[None]:
    """Inside, the real classes take turns, wherever they touch what other threads or ranks touch too.

    ``has_copies`` is told of each share that lies in the memory of its rank's node and of those that keep it.
    """
    modules: dict[ModuleType, tuple[str, ...]] = {
        repository: ("RLock",),
        folding: ("Lock",),
        rank_mailbox: ("time",),
        saving: ("time",),
        last_state: ("threading",),
        share_copies: ("time",),
        snapshot: ("threading", "time"),
        writer: ("threading", "time", "SimpleQueue"),
    }

    class PausingStore(OwnStore):
        """A node's memory or disk, of which others have their turn before and after each change."""

        def put(self, name: str, data: Buffer) -> None:
            turns.pause(f"write {name}")
            super().put(name, data)
            turns.pause("written")

        def delete(self, name: str) -> None:
            turns.pause(f"delete {name}")
            super().delete(name)

        def get(self, name: str) -> bytes:
            turns.pause(f"read {name}")
            return super().get(name)

    def move(to: int, start: int, size: int) -> None:
        ctypes.memmove(to, start, size // 2)
        turns.pause("half copied")
        ctypes.memmove(to + size // 2, start + size // 2, size - size // 2)

    exchange = share_copies.ShareCopies.exchange

    def exchanged(copies: Any, save: Save | None) -> str | None:
        finding = exchange(copies, save)
        if save:
            has_copies(save)
        return finding

    def fail(text: str) -> None:
        raise AssertionError(text)

    fakes = Collectives(wire)
    with standing_in(turns, modules) as patch:
        patch.setattr(local_tier, "OwnStore", PausingStore)
        # Nobody mounts anything or fills the memory meanwhile, and to look at that takes a sixth of the time.
        patch.setattr(own_store, "foreign_mount", lambda _: None)
        patch.setattr(MemoryTier, "free_bytes", lambda _: 2**40)
        # Nothing keeps a last state from being written here.
        patch.setattr(last_state, "_log", SimpleNamespace(exception=fail))
        patch.setattr(snapshot, "ctypes", SimpleNamespace(memmove=move))
        patch.setattr(share_copies, "_PIECE_BYTES", _PIECE_BYTES)
        patch.setattr(share_copies.ShareCopies, "exchange", exchanged)
        for module in (gathering, control):
            patch.setattr(module, "dist", fakes)
        for module in (bringing, control, sharing_memory):
            patch.setattr(module, "prove", lambda *_: None)
            patch.setattr(module, "GlooGroup", lambda _, timeout_s: Group(wire(), timeout_s))
        patch.setattr(rank_mailbox, "tcp_store", lambda *_: Letters(wire()))
        patch.setattr(rank_mailbox, "listen_to_ranks", lambda _: SimpleNamespace(getsockname=lambda: ("", 1)))
        yield
