"""What is kept of a run: its state, as generations of checkpoints, and its records."""

from typing import Annotated, Literal

from pydantic import Field

from checkpointing.generations.retention import Retention
from checkpointing.saving.cadence import Cadence
from jobs.alerts.rules import Wanted
from jobs.spec_schema.file import Count, Every, Name, NodeFolder, Span, Strict
from jobs.training.task.task import Recording, Saving, WandbProject


class NearPlace(Strict):
    """Each node's own disk. ``dir`` null: only the store is used."""

    dir: NodeFolder | None = None
    every: Every = 1
    keep: Annotated[int, Field(ge=2)] = 2


class StorePlace(Strict):
    every: Every = 1


class Keeping(Strict):
    """What the store keeps besides the latest and its backup; rules add up."""

    last: Every = 10
    epochs: bool = True
    best: Every = 1
    metric: Annotated[str, Field(min_length=1)] = "val_loss"
    mode: Literal["min", "max"] = "min"
    every_s: Span | None = None
    every_steps: Count | None = None
    every_epochs: Count | None = None

    def policy(self) -> Retention:
        return Retention(**self.model_dump())


class Checkpoint(Strict):
    """``every_steps`` replaces ``every_s``."""

    every_s: Span | None = 60.0
    every_steps: Count | None = None
    on_busy: Literal["skip", "wait"] = "skip"
    deadline_s: Span = 600.0
    local: NearPlace = NearPlace()
    store: StorePlace = StorePlace()
    retention: Keeping = Keeping()

    def saving(self) -> Saving:
        return Saving(
            cadence=Cadence(
                every_s=self.every_s,
                every_steps=self.every_steps,
                disk_every=self.local.every if self.local.dir else 0,
                store_every=self.store.every,
                on_busy=self.on_busy,
            ),
            retention=self.retention.policy(),
            disk=self.local.dir,
            disk_keep=self.local.keep,
            deadline_s=self.deadline_s,
        )

    def wanted(self) -> Wanted:
        """How often something is to be newly durable in the store."""
        times = self.store.every
        return Wanted(
            every_s=None if self.every_s is None else self.every_s * times,
            every_steps=None if self.every_steps is None else self.every_steps * times,
        )


class Wandb(Strict):
    """Weights & Biases; its own variables say who is logged in, and ``WANDB_MODE`` whether it is online."""

    project: Name
    entity: Name | None = None


class Record(Strict):
    """Parquet parts in the store every ``flush_s``, which is what a crash can lose of them."""

    flush_s: Span = 10.0
    tensorboard: bool = True
    wandb: Wandb | None = None

    def policy(self) -> Recording:
        wandb = WandbProject(**self.wandb.model_dump()) if self.wandb else None
        return Recording(flush_s=self.flush_s, tensorboard=self.tensorboard, wandb=wandb)
