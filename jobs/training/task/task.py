"""The task of one attempt of a long run: plain data that is sent to every rank. Needs no torch."""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from checkpointing.generations.choice import Spoilt
from checkpointing.generations.retention import Retention
from checkpointing.saving.cadence import Cadence
from checkpointing.stores.contract import Store
from checkpointing.stores.memory import MemoryStore
from checkpointing.stores.opening import open_store
from cluster.inventory import Vendor
from jobs.training.task.job import Recipe
from jobs.training.task.sample_order import Shuffle
from jobs.training.task.skipping import RecordedStretches, Skips
from jobs.training.task.spikes import SpikeBound
from jobs.training.task.token_index import KnownShard, TokenIndex
from jobs.training.task.windows import Windows
from reporting.recording.attempts import RecordedAttempt

_MEMORY_URL = MemoryStore().url
# Longer than the driver waits for anything but saves, so that the driver gives up before the ranks do.
_BESIDE_SAVES_S = 2400.0
# A step's loss is known before its update. How ranks share its samples changes the order of sums alone.
_NOT_IN_A_LOSS = ("optimizer",)
_ORDER_OF_SUMS = ("strategy", "world_size", "micro_batch", "grad_accum")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySaving:
    """The folder of each node's memory that keeps its ranks' newest snapshots, and copies of other nodes'.

    Each node's ranks save to ``num_copies`` other nodes. A node may keep ``max_bytes``; None means what the
    folder has free.
    """

    folder: str
    num_copies: int
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """How a run saves: when, where, and how many generations are kept.

    ``disk`` is the folder on each node for its ranks' newest ``disk_keep`` saves, of at most
    ``disk_max_bytes`` together; None saves to the store alone. A save that takes longer than ``deadline_s``
    is dropped. ``copies_lazily``: see ``Saver.cut``. ``memory`` None means that no snapshots stay there.
    """

    cadence: Cadence
    retention: Retention
    disk: str | None
    disk_keep: int
    deadline_s: float
    disk_max_bytes: int | None = None
    copies_lazily: bool = False
    memory: MemorySaving | None = None

    @property
    def ending_s(self) -> float:
        """The longest time that a rank waits for its saves at the end of an attempt."""
        # Deadlines: the last boundary's save waits for memory (1) and is carried out (3: upload, receipts,
        # reading back). The final save then needs the same again.
        return 8 * self.deadline_s


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbProject:
    """The Weights & Biases project that gets the run's metrics; ``entity`` None is the account's default."""

    project: str
    entity: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowExperiment:
    """The MLflow experiment that gets the run's metrics, at the server that ``MLFLOW_TRACKING_URI`` names."""

    experiment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """How a run's metrics are recorded.

    A Parquet part is written to the store every ``flush_s`` seconds; a crash loses at most that much. The
    metadata are the bounds for a spec's values.
    """

    flush_s: float = field(default=10.0, metadata={"gt": 0})
    tensorboard: bool = True
    wandb: WandbProject | None = None
    mlflow: MlflowExperiment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Another run. A new run starts from ``what`` of it: its newest usable generation, or a named one."""

    store: str
    run: str
    what: str = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardCacheLimits:
    """The folder on each node's own disk into which shards are copied, and how many bytes it may hold.

    Of these, the shards of one source of a mixture may have ``share_bytes``; None means all.
    """

    folder: str
    limit_bytes: int
    share_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The row of tokens in the shards at ``url``, which is absolute, and how the row is cut into samples.

    ``cache`` None means no shard cache: shards are read from ``url``. ``versions`` are the shards' in their
    store when the run was started (see ``checkpointing.stores.versions``). ``known`` is what earlier
    attempts found out about the shards, and ``ledger`` the folder in the run's store where this one keeps
    what it does. With ``end_id``, which ends a document, no token attends to another document's.
    ``held_out`` are the tokens to evaluate on; None means the last samples of these.
    """

    url: str
    index: TokenIndex
    windows: Windows
    end_id: int | None = None
    cache: ShardCacheLimits | None = None
    versions: tuple[str | None, ...] = ()
    known: tuple[KnownShard, ...] = ()
    ledger: str | None = None
    held_out: "Tokens | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedTokens:
    """A source of a mixture."""

    name: str
    weight: int
    tokens: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Sources that are trained on together, by weight. All are conversations, or none is; all have the same
    ``end_id``. ``held_out`` are the tokens to evaluate on; None means the last samples of each source.
    """

    sources: tuple[WeightedTokens, ...]
    held_out: Tokens | None = None

    @property
    def num_samples(self) -> int:
        """Those of all sources together."""
        return sum(one.tokens.windows.num_samples for one in self.sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one attempt does.

    * ``store`` is absolute. ``num_samples`` make an epoch. Without ``tokens`` and ``mixture`` data are
      synthetic.
    * ``shuffle`` says how a run that begins now orders its samples.
    * ``eval_every`` and ``check_every`` (see ``jobs.training.integrity``) count steps; 0 means never. With
      ``check_every_s`` a check comes after so many seconds.
    * ``term`` is this attempt's in the run's log; ``attempt`` is a random word that no other attempt has.
    * ``lineage`` is the log's. Files on nodes' disks of a run of the same name in another log stay untouched.
    * ``spec`` is stored with every generation. ``leased_s`` is when the term began, by the driver's clock.
    * ``weights`` are what a run without generations begins with.
    * ``may_move``: other attempts may run in other groups.
    * See ``skipping`` for ``skips`` and ``skipped_in``, ``spikes`` for ``spike_bound`` and
      ``checkpointing.generations.choice`` for ``spoilt``.
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
    may_move: bool = False
    may_mix_devices: bool = False
    leased_s: float = field(default_factory=time.time)
    recording: Recording = field(default_factory=Recording)
    tokens: Tokens | None = None
    mixture: Mixture | None = None
    shuffle: Shuffle = "global"
    weights: str | None = None
    spike_bound: SpikeBound | None = None
    check_every: int = 0
    check_every_s: float | None = None
    skips: Skips = ()
    skipped_in: RecordedStretches = ()
    spoilt: Spoilt = ()

    @property
    def places(self) -> tuple[Tokens, ...]:
        """The tokens of all sources; none of synthetic data."""
        if self.mixture:
            return tuple(one.tokens for one in self.mixture.sources)
        return (self.tokens,) if self.tokens else ()

    @property
    def held_out(self) -> Tokens | None:
        """The tokens to evaluate on; None if these are among those of ``places``, or synthetic."""
        data = self.mixture or self.tokens
        return data.held_out if data else None

    def open_store(self) -> Store:
        """The run's store. A store in memory is new on each call and is lost when the process ends."""
        return MemoryStore() if self.store == _MEMORY_URL else open_store(self.store)

    @property
    def longest_wait_s(self) -> float:
        """How long ranks wait for each other outside of steps.

        The driver gives up earlier, since it can tell which rank the others wait for.
        """
        return _BESIDE_SAVES_S + (self.saving.ending_s if self.saving else 0.0)

    def as_recorded(self) -> RecordedAttempt:
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
            simulated=self.simulated or self.recipe.is_emulated(self.vendor),
            micro_batch=self.recipe.micro_batch,
            loss_digest=self._loss_digest(),
        )

    def _loss_digest(self) -> str:
        """Of all that a step's loss depends on, but for rounding, beside the weights and the position."""
        # Numbers of fp8 are scaled by the largest one of their micro-batch.
        is_plain = self.recipe.fp8 == "none"
        left_out = (*_NOT_IN_A_LOSS, *_ORDER_OF_SUMS) if is_plain else _NOT_IN_A_LOSS
        recipe = {key: value for key, value in asdict(self.recipe).items() if key not in left_out}
        data = [(one.index.digest, asdict(one.windows), one.end_id) for one in self.places]
        known = (recipe, data, self.num_samples, self.shuffle, self.vendor)
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
