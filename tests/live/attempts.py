"""Attempts of long runs for tests, on ranks without Ray: the same core, a real store, one group for many."""

import hashlib
import os
import random
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from checkpointing.format.manifest import Manifest
from checkpointing.generations.choice import Spoilt
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention
from checkpointing.saving.cadence import Cadence
from checkpointing.saving.save import SaveNote
from checkpointing.stores.local import LocalStore
from checkpointing.stores.opening import open_store
from cluster.inventory import Vendor
from jobs.training.data.shard_check import CheckedShards
from jobs.training.loop.attempt import Services, run
from jobs.training.loop.control import Agreed
from jobs.training.loop.last_state import LastState
from jobs.training.loop.step_boundary import StepBoundary
from jobs.training.models.decoder import Decoder
from jobs.training.ranks.gathering import from_rank_0
from jobs.training.task.context import Context
from jobs.training.task.events import Ended, Resumption, RunEvent, Withdrawn
from jobs.training.task.job import Recipe
from jobs.training.task.position import StepPoint
from jobs.training.task.sample_order import Shuffle
from jobs.training.task.skipping import Skips
from jobs.training.task.spikes import SpikeBound
from jobs.training.task.stop_request import StopRequest
from jobs.training.task.task import MemorySaving, Mixture, Origin, Saving, Task, Tokens

NUM_SAMPLES = 24
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One attempt: ``recipe`` in run ``name`` up to ``num_steps``. ``origin`` is another run of the store.

    ``is_private``: each rank's store is a folder of its own, as if they were on nodes that share none.
    ``has_own_disk``: each rank's disk is one, as on a node of its own. ``dies_after_loading``: rank 0 kills
    itself before it does a step. In ``memory`` each rank has a node's memory of its own, in which it keeps
    every ``memory_every``th step. At the end of the step ``falls_at``, once it is there, all ranks kill
    themselves, or the rank ``fallen_rank`` alone. The others, if they ``are_asked``, are then asked by a
    thread for their last state, as by a launcher.
    ``stop_request`` reaches the rank ``stopped_rank`` the ``stopped_at``th
    time that it asks. ``ballast`` is a file that goes when rank 0 hears that a save failed.
    ``diary`` is a folder in which each rank writes down the samples of every step, see ``samples_read``, and
    beside them what it went on from.
    Of the ``late`` shards no sample ever comes; each read of a store takes ``read_s`` longer. ``vendor`` is
    that of ``device``. It runs in ``group``, and other attempts may run in others if it ``may_move``.
    ``nodes`` are the ranks', as if there were several. Passes through the model draw random numbers unless
    it ``draws`` none.
    """

    name: str
    recipe: Recipe
    num_steps: int
    store: Path
    origin: str | None = None
    disk: Path | None = None
    every_steps: int = 4
    store_every: int = 1
    fresh: bool = False
    resume: str = "latest"
    eval_every: int = 0
    tokens: Tokens | None = None
    mixture: Mixture | None = None
    shuffle: Shuffle = "global"
    late: tuple[str, ...] = ()
    read_s: float = 0.0
    is_private: bool = False
    has_own_disk: bool = False
    nodes: tuple[str, ...] = ()
    memory: Path | None = None
    memory_copies: int = 1
    memory_bytes: int | None = None
    memory_every: int = 1
    falls_at: int | None = None
    fallen_rank: int | None = None
    are_asked: bool = False
    draws: bool = True
    dies_after_loading: bool = False
    stop_request: StopRequest | None = None
    stopped_rank: int = 0
    stopped_at: int = 1
    skips: Skips = ()
    spoilt: Spoilt = ()
    spike_bound: SpikeBound | None = None
    check_every: int = 0
    check_every_s: float | None = None
    ballast: Path | None = None
    diary: Path | None = None
    retention: Retention = field(default_factory=Retention)
    deadline_s: float = 60.0
    copies_lazily: bool = False
    device: torch.device = CPU
    vendor: Vendor = "cpu"
    group: str = "local"
    may_move: bool = False


@dataclass(slots=True, kw_only=True)
class Story:
    """What rank 0 told, how often this rank asked whether to stop, and the batches that it evaluated."""

    num_asks: int = 0
    num_batches: int = 0
    told: list[RunEvent] = field(default_factory=list)

    @property
    def start(self) -> Resumption:
        return next(one for one in self.told if isinstance(one, Resumption))

    @property
    def end(self) -> Ended:
        return next(one for one in self.told if isinstance(one, Ended))

    @property
    def is_withdrawn(self) -> bool:
        return any(isinstance(one, Withdrawn) for one in self.told)

    @property
    def saves(self) -> list[SaveNote]:
        return [one for one in self.told if isinstance(one, SaveNote)]


def attempt_each(wanted: list[Wanted]) -> list[Story]:
    """Runs on a rank: one attempt after the other."""
    return [attempt(one) for one in wanted]


def attempt(wanted: Wanted, stop_request: Callable[[], StopRequest | None] | None = None) -> Story:
    """``stop_request`` is asked instead of what is ``wanted``."""
    rank = dist.get_rank()
    context = Context(rank=rank, world_size=dist.get_world_size(), local_rank=rank, device=wanted.device)
    story = Story()
    if wanted.is_private:
        wanted = replace(wanted, store=wanted.store / f"rank-{rank}")
    if wanted.has_own_disk and wanted.disk:
        wanted = replace(wanted, disk=wanted.disk / f"rank-{rank}")
    if wanted.nodes:
        context.node = wanted.nodes[rank]
    if wanted.memory:
        context.node, context.local_rank = f"node-{rank}", 0
        wanted = replace(wanted, memory=wanted.memory / f"node-{rank}")
    task = replace(_task(wanted, context), store=str(wanted.store))
    pages = wanted.diary / f"{task.term:06}" / str(rank) if wanted.diary else None

    def tell(told: RunEvent) -> None:
        story.told.append(told)
        if pages and isinstance(told, Resumption):
            _write(pages, str(told.step))
            _write(pages.with_name(f"{rank}-came-from"), told.trail[-1] if told.trail else "")
        if wanted.dies_after_loading:
            _die_on_resuming(told)
        if wanted.ballast and isinstance(told, SaveNote) and told.problem:
            wanted.ballast.unlink(missing_ok=True)

    def counted_wish() -> StopRequest | None:
        story.num_asks += 1
        is_due = rank == wanted.stopped_rank and story.num_asks >= wanted.stopped_at
        return wanted.stop_request if is_due else None

    draws = _drawing(pages) if wanted.draws else nullcontext()
    with draws, _reading_as(wanted), _falling(wanted):
        services = Services(
            report=tell,
            stop_request=stop_request or counted_wish,
            offer_last_state=partial(_ask_when_one_fell, wanted),
        )
        run(task, context, services)
    story.num_batches = context.status.num_batches
    return story


@contextmanager
def _reading_as(wanted: Wanted) -> Iterator[None]:
    read, sampled = LocalStore.read, CheckedShards.get_range

    def slowly(store: LocalStore, name: str, start: int, into: memoryview) -> tuple[int, str | None]:
        threading.Event().wait(wanted.read_s)
        return read(store, name, start, into)

    def never_if_late(shards: CheckedShards, name: str, start: int, into: memoryview) -> int:
        if name in wanted.late:
            threading.Event().wait()
        return sampled(shards, name, start, into)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "read", slowly)
        patch.setattr(CheckedShards, "get_range", never_if_late)
        if wanted.read_s or wanted.late:
            # As if no shard were near.
            patch.setattr(CheckedShards, "fill", lambda *_: False)
        yield


def _ask_when_one_fell(wanted: Wanted, state: LastState) -> None:
    def ask() -> None:
        while not _fallen(wanted).exists():
            threading.Event().wait(0.05)
        state.leave(within_s=10.0)

    if wanted.are_asked and wanted.falls_at:
        threading.Thread(target=ask, daemon=True).start()


def _fallen(wanted: Wanted) -> Path:
    return wanted.store.with_name("fallen")


@contextmanager
def _falling(wanted: Wanted) -> Iterator[None]:
    cross, at, alone = StepBoundary.cross, wanted.falls_at, wanted.fallen_rank

    def fall(boundary: StepBoundary, point: StepPoint, agreed: Agreed, loss: float) -> StepPoint:
        done = cross(boundary, point, agreed, loss)
        if at and boundary._saver:
            # Else a save may be left out, because the one before it is on its way.
            boundary._saver.wait()
        if point.step == at and alone in (None, dist.get_rank()):
            if alone is None:
                dist.barrier()
            _fallen(wanted).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepBoundary, "cross", fall)
        yield


def _die_on_resuming(told: RunEvent) -> None:
    if isinstance(told, Resumption):
        os.kill(os.getpid(), signal.SIGKILL)


def samples_read(diary: Path, world_size: int, per_step: int) -> list[list[str]]:
    """By rank, of each step that counts, in order: those after which an attempt went on again don't."""
    counting: list[list[str]] = [[] for _ in range(world_size)]
    for term in sorted({path.name for path in diary.iterdir()}):
        pages = [_whole_lines(diary / term / str(rank)) for rank in range(world_size)]
        if not pages[0]:
            continue  # killed before it knew where to go on, so it has done no step
        start = int(pages[0].pop(0)) * per_step
        for found, lines in zip(counting, pages, strict=True):
            assert len(found) >= start, f"attempt {term} goes on from steps whose samples nobody read"
            found[start:] = lines
    return counting


def _whole_lines(pages: Path) -> list[str]:
    """Without what a killed rank was writing."""
    lines = pages.read_text().splitlines(keepends=True) if pages.exists() else []
    return [line.strip() for line in lines if line.endswith("\n")]


def _write(pages: Path, line: str) -> None:
    pages.parent.mkdir(parents=True, exist_ok=True)
    with pages.open("a") as file:
        file.write(line + "\n")


@contextmanager
def _drawing(pages: Path | None) -> Iterator[None]:
    """Draws in each pass through the model, on every rank, since nothing in our training does so far.

    What a generator would give next is saved, so two runs whose digests are equal have drawn the same.
    """
    hook = register_module_forward_pre_hook(partial(_draw, pages))
    try:
        yield
    finally:
        hook.remove()


def _draw(pages: Path | None, module: nn.Module, inputs: tuple[Any, ...]) -> None:
    if isinstance(module, Decoder):
        random.gauss()
        numpy.random.standard_normal()
        torch.randn(1)
        if pages:
            _write(pages, hashlib.sha256(inputs[0].numpy().tobytes()).hexdigest())


def _task(wanted: Wanted, context: Context) -> Task:
    word = (0, "", "")
    if context.rank == 0:
        repository = Repository(open_store(str(wanted.store)), wanted.name)
        term = repository.take_over("a test", fresh=wanted.fresh)
        word = (term, secrets.token_hex(4), repository.lineage())
    term, attempt_word, lineage = from_rank_0(word, tuple[int, str, str])
    return Task(
        run=wanted.name,
        store=str(wanted.store),
        recipe=wanted.recipe,
        vendor=wanted.vendor,
        group=wanted.group,
        may_move=wanted.may_move,
        simulated=False,
        num_steps=wanted.num_steps,
        num_samples=_num_samples(wanted),
        saving=Saving(
            cadence=Cadence(
                every_s=None,
                every_steps=wanted.every_steps,
                disk_every=1 if wanted.disk else 0,
                store_every=wanted.store_every,
                on_busy="wait",
                memory_every_steps=wanted.memory_every if wanted.memory else None,
            ),
            retention=wanted.retention,
            disk=str(wanted.disk) if wanted.disk else None,
            disk_keep=2,
            deadline_s=wanted.deadline_s,
            copies_lazily=wanted.copies_lazily,
            memory=_in_memory(wanted),
        ),
        term=term,
        attempt=attempt_word,
        lineage=lineage,
        resume=wanted.resume,
        eval_every=wanted.eval_every,
        eval_samples=8,
        skips=wanted.skips,
        spoilt=wanted.spoilt,
        spike_bound=wanted.spike_bound,
        check_every=wanted.check_every,
        check_every_s=wanted.check_every_s,
        tokens=wanted.tokens,
        mixture=wanted.mixture,
        shuffle=wanted.shuffle,
        origin=Origin(store=str(wanted.store), run=wanted.origin) if wanted.origin else None,
    )


def _in_memory(wanted: Wanted) -> MemorySaving | None:
    if wanted.memory is None:
        return None
    return MemorySaving(
        folder=str(wanted.memory), num_copies=wanted.memory_copies, max_bytes=wanted.memory_bytes
    )


def _num_samples(wanted: Wanted) -> int:
    if wanted.mixture:
        return wanted.mixture.num_samples
    return wanted.tokens.windows.num_samples if wanted.tokens else NUM_SAMPLES


def newest_manifest(store: Path, name: str) -> Manifest:
    repository = Repository(open_store(str(store)), name)
    return repository.manifest(repository.refresh().generations[-1])


def digests_of(manifest: Manifest) -> list[tuple[str, ...]]:
    """Of all that was saved: weights, moments and random numbers of every rank, to the bit."""
    return [part.chunks for part in manifest.parts]
