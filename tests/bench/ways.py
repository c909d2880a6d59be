"""Ways to save a training state to a local disk: ours, and what torch offers, as documented and tuned.

Each is used in a process of its own with one rank, since a first save must be a first.
"""

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention
from checkpointing.saving.cadence import Cadence, Order
from checkpointing.saving.save import SaveNote
from checkpointing.saving.snapshot import Piece
from checkpointing.stores.memory import MemoryStore
from jobs.training.state.rank_mailbox import open_mailboxes
from jobs.training.state.saved_run import EngineState, saved_run
from jobs.training.state.saving import Saver
from jobs.training.strategies.contract import Engine
from jobs.training.task.context import Context
from jobs.training.task.job import OptimizerConfig, Recipe
from jobs.training.task.position import StepPoint
from jobs.training.task.presets import preset
from jobs.training.task.task import Saving, Task

_DEADLINE_S = 120.0
_NUM_KEPT = 2
RECIPE = Recipe(
    model=preset("llama-mini"),
    strategy="ddp",
    world_size=1,
    seq_len=64,
    micro_batch=1,
    grad_accum=1,
    precision="fp32",
    seed=0,
    optimizer=OptimizerConfig(),
)


class Way(Protocol):
    def save(self, step: int) -> None:
        """As long as the training waits for it."""

    def settle(self) -> None:
        """Until the training may change its state; each step calls it before its update."""

    def is_busy(self) -> bool:
        """Whether the save is still on its way to the disk."""

    def wait(self) -> None:
        """Until it is there; raises if it failed. Older saves than the newest few go."""


def join_group() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


class Ours:
    """All that a training does at a save: the saver's cut, its background writer, the disk's folder."""

    def __init__(self, engine: Engine, folder: Path, *, copies_lazily: bool) -> None:
        context = Context(rank=0, world_size=1, local_rank=0, device=torch.device("cpu"))
        repository = Repository(MemoryStore(), "bench")
        saving = replace(_saving(folder), copies_lazily=copies_lazily)
        task = _task(saving, repository.take_over("a bench"))
        self._notes: list[SaveNote] = []
        self._saver = Saver(
            saved_run(task),
            saving,
            context,
            EngineState(engine),
            repository,
            open_mailboxes(context),
            self._notes.append,
        )
        self._saver.start()

    def save(self, step: int) -> None:
        point = StepPoint(step=step, position=step, epoch_end=None)
        self._saver.cut(point, Order(to_disk=True, to_store=False, must_wait=True))

    def settle(self) -> None:
        self._saver.settle()

    def is_busy(self) -> bool:
        return self._saver.busy().disk

    def wait(self) -> None:
        self._saver.wait()
        if self.is_busy() or any(note.problem for note in self._notes):
            raise RuntimeError(f"a save failed: {self._notes}")


class Theirs:
    """``begin`` saves a state to a folder, and returns what it is to be waited for if that is not all."""

    def __init__(self, engine: Engine, folder: Path, begin: Callable[[dict[str, Any], Path], Any]) -> None:
        self._state = _state_of(engine.pieces())
        self._folder = folder
        self._begin = begin
        self._saved: list[Path] = []
        self._pending: Future[Any] | None = None

    def save(self, step: int) -> None:
        if self._pending:
            self._pending.result(_DEADLINE_S)
        self._saved.append(self._folder / str(step))
        self._pending = self._begin(self._state, self._saved[-1])

    def settle(self) -> None:
        """The copy is made by ``save``."""

    def is_busy(self) -> bool:
        return self._pending is not None and not self._pending.done()

    def wait(self) -> None:
        if self._pending:
            self._pending.result(_DEADLINE_S)
        while len(self._saved) > _NUM_KEPT:
            shutil.rmtree(self._saved.pop(0))


def way(name: str, engine: Engine, folder: Path) -> Way:
    if name in ("ours", "lazy"):
        return Ours(engine, folder, copies_lazily=name == "lazy")
    return Theirs(engine, folder, _tuned() if name == "tuned" else _AS_DOCUMENTED[name])


def _torch_save(state: dict[str, Any], folder: Path) -> None:
    folder.mkdir()
    torch.save(state, folder / "state.pt")


def _dcp_save(state: dict[str, Any], folder: Path) -> None:
    dcp.save(state, checkpoint_id=folder)


def _dcp_async_save(state: dict[str, Any], folder: Path) -> Any:
    return dcp.async_save(state, checkpoint_id=folder)


_AS_DOCUMENTED: dict[str, Callable[[dict[str, Any], Path], Any]] = {
    "torch.save": _torch_save,
    "dcp.save": _dcp_save,
    "dcp.async_save": _dcp_async_save,
}


def _tuned() -> Callable[[dict[str, Any], Path], Any]:
    """A process that writes, and one stager in shared memory that is used again and again.

    It can't be pinned without a device.
    """
    options = StagingOptions(
        use_pinned_memory=torch.cuda.is_available(),
        use_shared_memory=True,
        use_async_staging=False,
        use_non_blocking_copy=False,
    )
    stager = DefaultStager(options)

    def begin(state: dict[str, Any], folder: Path) -> Any:
        return dcp.async_save(
            state,
            checkpoint_id=folder,
            async_stager=stager,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        )

    return begin


def _state_of(pieces: Sequence[Piece]) -> dict[str, Any]:
    return {piece.name: piece.values.view(piece.shape) for piece in pieces}


def _saving(folder: Path) -> Saving:
    return Saving(
        cadence=Cadence(on_busy="wait"),
        retention=Retention(),
        disk=str(folder),
        disk_keep=_NUM_KEPT,
        deadline_s=_DEADLINE_S,
    )


def _task(saving: Saving, term: int) -> Task:
    return Task(
        run="bench",
        store="memory:",
        recipe=RECIPE,
        vendor="cpu",
        simulated=False,
        num_steps=1,
        num_samples=1,
        saving=saving,
        term=term,
        attempt="bench",
        lineage="bench",
        resume="latest",
    )
