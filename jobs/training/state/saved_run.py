"""What a save and a restore know of their run: who saves, what is saved, and how an engine gives its state.

``jobs.durable`` saves the state of trainings that have no engine.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any, Protocol

from checkpointing.format.manifest import Cut, FilePart, Manifest, file_name
from checkpointing.generations.choice import Spoilt
from checkpointing.generations.repository import generation_name
from checkpointing.generations.retention import Retention
from checkpointing.saving.snapshot import Layout, Piece
from jobs.training.strategies.contract import Counters, Engine
from jobs.training.task.position import StepPoint
from jobs.training.task.sample_order import NEWEST_ORDER, SampleOrder, stored_order
from jobs.training.task.skipping import RecordedStretches
from jobs.training.task.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRun:
    """One attempt of a run as its saves name it; the fields are those of ``Task`` and ``Recipe``.

    ``about`` is JSON that is stored with every generation.
    """

    run: str
    term: int
    attempt: str
    lineage: str
    strategy: str
    world_size: int
    ranks_per_copy: int
    about: Mapping[str, Any]
    resume: str = "latest"
    retention: Retention = field(default_factory=Retention)
    spoilt: Spoilt = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedOrder:
    """What a position in the stream of samples is one in; ``stretches`` are those of a mixture."""

    sample_order: SampleOrder = NEWEST_ORDER
    stretches: RecordedStretches = ()


class TrainingState(Protocol):
    """One rank's part of a training's state."""

    def pieces(self) -> list[Piece]:
        """The memory that this rank saves. Each element of each tensor is in exactly one rank's piece."""

    def description(self) -> Mapping[str, Any]:
        """The part of the state that is JSON and no tensor; the same on all ranks."""

    def targets(self, manifest: Manifest) -> list[Piece]:
        """The memory that this rank fills to resume. Raises ``Unfit`` for the state of another training."""

    def restored(self, manifest: Manifest) -> None:
        """Resumes from ``targets``, which all ranks have filled, and from the saved ``description``."""


class EngineState:
    """The state of an engine: tensors and counters."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def pieces(self) -> list[Piece]:
        return self._engine.pieces()

    def description(self) -> Mapping[str, Any]:
        return {"counters": asdict(self._engine.counters())}

    def targets(self, manifest: Manifest) -> list[Piece]:
        return self._engine.targets()

    def restored(self, manifest: Manifest) -> None:
        self._engine.restored(Counters(**manifest.cut.state["counters"]))


def saved_run(task: Task) -> SavedRun:
    recipe = task.recipe
    return SavedRun(
        run=task.run,
        term=task.term,
        attempt=task.attempt,
        lineage=task.lineage,
        strategy=recipe.strategy,
        world_size=recipe.world_size,
        ranks_per_copy=recipe.ranks_per_copy,
        about={
            "seq_len": recipe.seq_len,
            "precision": recipe.precision,
            "ranks_per_copy": recipe.ranks_per_copy,
            "model": recipe.model.name,
            "spec": dict(task.spec),
        },
        resume=task.resume,
        retention=task.saving.retention if task.saving else Retention(),
        spoilt=task.spoilt,
    )


def part_of(rank: int, form: Layout, canary: str) -> FilePart:
    """The description of a rank's share, without the digests of its bytes."""
    return FilePart(
        rank=rank,
        file=file_name(rank),
        num_bytes=form.num_bytes,
        chunks=(),
        tensors=form.tensors,
        shards=form.shards,
        state={"canary": canary},
    )


def cut_of(
    saved: SavedRun, point: StepPoint, number: int, order: SavedOrder, description: Mapping[str, Any]
) -> Cut:
    """The description of a save at ``point``. Its name is the same on all ranks that count alike."""
    return Cut(
        generation=generation_name(point.step, saved.term, f"{saved.attempt}.{number}"),
        run=saved.run,
        step=point.step,
        term=saved.term,
        number=number,
        strategy=saved.strategy,
        world_size=saved.world_size,
        created_s=time.time(),
        epoch_end=point.epoch_end,
        # A value that is not finite measures nothing, and JSON has no number for it.
        metrics={name: value for name, value in point.metrics.items() if isfinite(value)},
        state={
            "position": point.position,
            "sample_order": stored_order(order.sample_order, len(order.stretches)),
            "is_evaluation_due": point.is_evaluation_due,
            **({"stretches": order.stretches} if order.stretches else {}),
            **({"hand_over": point.hand_over} if point.hand_over else {}),
            **saved.about,
            **description,
        },
    )
