"""The sections about what is kept of a run: its checkpoints and its records."""

import json
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from checkpointing.generations.retention import Retention
from checkpointing.saving.cadence import Cadence
from jobs.alerts.rules import Wanted
from jobs.spec_schema.file import Count, Every, Name, NodeFolder, Span, Strict
from jobs.training.task.task import MemorySaving, MlflowExperiment, Recording, Saving, WandbProject

_MOST_COPIES = 4


class LocalTierSettings(Strict):
    """Each node's own disk. With ``dir`` null only the store is used. With ``max_bytes`` null the run's saves
    take at most nine tenths of what the disk has for them.
    """

    dir: NodeFolder | None = None
    every: Every = 1
    keep: Annotated[int, Field(ge=2)] = 2
    max_bytes: Count | None = None


class MemoryTierSettings(Strict):
    """The nodes' memory. With ``every_steps`` null nothing stays there. ``copies`` lie on other nodes."""

    every_steps: Count | None = None
    copies: Annotated[int, Field(ge=0, le=_MOST_COPIES)] = 1
    max_bytes: Count | None = None
    dir: NodeFolder = "/dev/shm"


class StorePlace(Strict):
    every: Every = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """When, where and how checkpoints are saved. ``every_steps`` replaces ``every_s``.

    No ``Strict``: pydantic's models have a ``copy`` of their own.
    """

    every_s: Span | None = 60.0
    every_steps: Count | None = None
    on_busy: Literal["skip", "wait"] = "skip"
    deadline_s: Span = 600.0
    copy: Literal["blocking", "lazy"] = "blocking"
    memory: MemoryTierSettings = field(default_factory=MemoryTierSettings)
    local: LocalTierSettings = field(default_factory=LocalTierSettings)
    store: StorePlace = field(default_factory=StorePlace)
    retention: Retention = field(default_factory=Retention)

    def saving(self) -> Saving:
        return Saving(
            cadence=Cadence(
                every_s=self.every_s,
                every_steps=self.every_steps,
                disk_every=self.local.every if self.local.dir else 0,
                store_every=self.store.every,
                on_busy=self.on_busy,
                memory_every_steps=self.memory.every_steps,
            ),
            retention=self.retention,
            disk=self.local.dir,
            disk_keep=self.local.keep,
            disk_max_bytes=self.local.max_bytes,
            deadline_s=self.deadline_s,
            copies_lazily=self.copy == "lazy",
            memory=self._memory(),
        )

    def _memory(self) -> MemorySaving | None:
        if self.memory.every_steps is None:
            return None
        return MemorySaving(
            folder=self.memory.dir, num_copies=self.memory.copies, max_bytes=self.memory.max_bytes
        )

    def wanted(self) -> Wanted:
        """How often a new generation must become durable in the store."""
        times = self.store.every
        return Wanted(
            every_s=None if self.every_s is None else self.every_s * times,
            every_steps=None if self.every_steps is None else self.every_steps * times,
        )


class _OnlyRetention(Strict):
    retention: Retention


def stored_retention(section: object) -> Retention:
    """Parses a stored ``checkpoint.retention``. Raises ValueError if this version would reject it."""
    return _OnlyRetention.model_validate_json(json.dumps({"retention": section})).retention


def stored_local_folder(value: object) -> str | None:
    """Parses a stored ``checkpoint.local.dir``. Raises ValueError if this version would reject it."""
    return LocalTierSettings.model_validate_json(json.dumps({"dir": value})).dir


@dataclass(frozen=True, slots=True, kw_only=True)
class Wandb(WandbProject):
    """Weights & Biases. Its environment variables hold the login; ``WANDB_MODE`` says whether it is online.

    The base class accepts any text. This class adds a spec's rules for names and their messages.
    """

    project: Name
    entity: Name | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlflow(MlflowExperiment):
    """MLflow. Its environment variables hold the server's address and the login."""

    experiment: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSettings(Recording):
    wandb: Wandb | None = None
    mlflow: Mlflow | None = None

    def policy(self) -> Recording:
        """The same settings for workers, which import nothing of this package."""
        wandb = self.wandb and WandbProject(project=self.wandb.project, entity=self.wandb.entity)
        mlflow = self.mlflow and MlflowExperiment(experiment=self.mlflow.experiment)
        return Recording(flush_s=self.flush_s, tensorboard=self.tensorboard, wandb=wandb, mlflow=mlflow)
