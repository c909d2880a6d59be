"""What one attempt of a long run is asked to do: plain data that travels to every rank. Needs no torch."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from checkpointing.generations.choice import Spoilt
from checkpointing.generations.retention import Retention
from checkpointing.saving.cadence import Cadence
from checkpointing.stores.contract import Store
from checkpointing.stores.memory import MemoryStore
from checkpointing.stores.opening import open_store
from cluster.inventory import Vendor
from jobs.training.task.job import Recipe
from jobs.training.task.skipping import Skips
from jobs.training.task.spikes import SpikeBound
from jobs.training.task.token_index import TokenIndex
from jobs.training.task.windows import Windows
from reporting.recording.attempts import RecordedAttempt

_FORGOTTEN = MemoryStore().url
# The driver has no such patience with anything but saves.
_BESIDE_SAVES_S = 2400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """``disk`` is the folder on each node for its ranks' newest ``disk_keep`` saves; None: the store alone.

    A save that takes longer than ``deadline_s`` is dropped.
    """

    cadence: Cadence
    retention: Retention
    disk: str | None
    disk_keep: int
    deadline_s: float

    @property
    def ending_s(self) -> float:
        """The most that a rank waits for its saves at the end of an attempt."""
        # At the last border a cut for memory (one), then what is on its way (three); again for the last save.
        return 8 * self.deadline_s


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbProject:
    """Where Weights & Biases is told of the run; ``entity`` None is the account's default."""

    project: str
    entity: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Parquet parts in the store every ``flush_s``, which is what a crash can lose of them.

    The metadata bound what a spec may say.
    """

    flush_s: float = field(default=10.0, metadata={"gt": 0})
    tensorboard: bool = True
    wandb: WandbProject | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The generation of another run that a new run starts from."""

    store: str
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardCacheLimits:
    """A folder on each node's own disk into which shards are brought, and how much may lie there."""

    folder: str
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The row of tokens in the shards at ``url``, which is absolute, and how it is cut into samples.

    ``near`` None: they are read where they lie.
    """

    url: str
    index: TokenIndex
    windows: Windows
    near: ShardCacheLimits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """``store`` is absolute. ``num_samples`` make an epoch; ``eval_every`` counts steps, 0 is never.
    ``tokens`` None means synthetic data.

    ``term`` is this attempt's in the run's log, ``attempt`` a random word that no other one has. ``lineage``
    is the log's: what lies on nodes' disks of another log's run of the same name is not touched. ``spec`` is
    stored with every generation. ``leased_s`` is when the term began, by the driver's clock. A run
    without generations begins with ``weights``. See ``skipping`` for ``skips``, ``guarding`` for
    ``spike_bound``, ``checkpointing.generations.choice`` for ``spoilt``.
    """

    run: str
    store: str
    recipe: Recipe
    vendor: Vendor
    simulated: bool
    num_steps: int
    num_samples: int
    saving: Saving | None
    term: int
    attempt: str
    lineage: str
    resume: str
    origin: Origin | None = None
    eval_every: int = 0
    eval_samples: int = 0
    spec: Mapping[str, Any] = field(default_factory=dict)
    group: str = "local"
    may_mix_devices: bool = False
    leased_s: float = field(default_factory=time.time)
    recording: Recording = field(default_factory=Recording)
    tokens: Tokens | None = None
    weights: str | None = None
    spike_bound: SpikeBound | None = None
    skips: Skips = ()
    spoilt: Spoilt = ()

    def open_store(self) -> Store:
        """What nobody wants to keep is forgotten with the process."""
        return MemoryStore() if self.store == _FORGOTTEN else open_store(self.store)

    @property
    def longest_wait_s(self) -> float:
        """How long its ranks wait for each other beside the steps. The driver, which can tell for whom, loses
        patience before.
        """
        return _BESIDE_SAVES_S + (self.saving.ending_s if self.saving else 0.0)

    def described(self) -> RecordedAttempt:
        """This attempt as its records name it."""
        return RecordedAttempt(
            run=self.run,
            term=self.term,
            leased_s=self.leased_s,
            group=self.group,
            vendor=self.vendor,
            model=self.recipe.model.name,
            strategy=self.recipe.strategy,
            world_size=self.recipe.world_size,
            num_steps=self.num_steps,
            tokens_per_step=self.recipe.tokens_per_step,
        )
