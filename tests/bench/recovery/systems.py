"""The two trainings on a cluster each: the same model, data, steps and saves; who did which step when."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import pyarrow.parquet
import ray

from checkpointing.stores.local import LocalStore
from cluster.local_ray.timeouts import ACROSS_HOSTS
from reporting.long_runs.summarising import write_steps
from tests.bench.recovery.stock import Done, steps_of
from tests.hosts_tier.clusters import GROUP, Cluster

_SPEC = """
name: r
model: {model}
strategy: {strategy}
world_size: 2
group: {group}
spread: true
seq_len: 64
steps: {num_steps}
data: {{samples: {num_samples}}}
checkpoint: {{{saving}, retention: {{last: 2, epochs: false}}}}
record: {{flush_s: 1, tensorboard: false}}
"""


class System(Protocol):
    """One training. ``settings`` are those of the cluster that it is started on."""

    name: str
    settings: Mapping[str, str]

    def start(self, cluster: Cluster, num_steps: int, every: int) -> "subprocess.Popen[bytes]":
        """Its driver, on the head."""

    def steps(self) -> list[Done]:
        """What its rank 0 did so far, and the processes or attempts that did it."""


class Stock:
    name = f"Ray Train {ray.__version__}"
    settings: Mapping[str, str] = {}

    def __init__(self, folder: Path, model: str = "llama-tiny") -> None:
        self._folder = folder
        self._model = model

    def start(self, cluster: Cluster, num_steps: int, every: int) -> "subprocess.Popen[bytes]":
        words = [str(self._folder), str(num_steps), str(every), self._model]
        command = [sys.executable, "-m", "tests.bench.recovery.stock", *words]
        return cluster.head.start(command, log="train.log", RAY_ADDRESS=cluster.address)

    def steps(self) -> list[Done]:
        return steps_of(self._folder)


class Ours:
    name = "Longhaul"
    settings: Mapping[str, str] = ACROSS_HOSTS

    def __init__(
        self,
        folder: Path,
        model: str = "llama-tiny",
        saving: str | None = None,
        num_samples: int = 4096,
        strategy: str = "ddp",
    ) -> None:
        self._folder = folder
        self._model = model
        self._saving = saving
        self._strategy = strategy
        self._num_samples = num_samples

    @property
    def store(self) -> Path:
        return self._folder / "store"

    def start(self, cluster: Cluster, num_steps: int, every: int) -> "subprocess.Popen[bytes]":
        spec = self._folder / "spec.yaml"
        # No snapshot in memory comes sooner than a save: what else is there, survivors have left.
        saving = self._saving or f"every_steps: {every}, memory: {{every_steps: {every}}}"
        spec.write_text(
            _SPEC.format(
                model=self._model,
                strategy=self._strategy,
                group=GROUP,
                num_steps=num_steps,
                num_samples=self._num_samples,
                saving=saving,
            )
        )
        return cluster.head.start(self.command(spec), log="train.log", RAY_ADDRESS=cluster.address)

    def command(self, spec: Path) -> list[str]:
        return [sys.executable, "-m", "jobs.cli", "train", str(spec), "--store", str(self.store)]

    def steps(self) -> list[Done]:
        """From its records, which reach the store a second later."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "steps.parquet"
            write_steps(LocalStore(self.store), path)
            rows = pyarrow.parquet.read_table(path, columns=["rank", "term", "step", "ended_s"]).to_pylist()
        found = [
            Done(ended_s=row["ended_s"], worker=str(row["term"]), step=row["step"])
            for row in rows
            if row["rank"] == 0
        ]
        return sorted(found, key=lambda done: done.ended_s)
