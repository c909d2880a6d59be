"""Runs and sweeps as a watcher finds them in a store, and what is read of them at once."""

import json
from typing import Any

from checkpointing.generations.repository import Repository
from checkpointing.log.history import Commit
from checkpointing.stores.contract import Store
from jobs.watching.choosing import Watched
from jobs.watching.following import Look
from jobs.watching.runs import RunReading
from jobs.watching.snapshot import Snapshot
from jobs.watching.sweeps import SweepReading
from tests.unit.builders import measurement, record, run_of, sweep
from tests.unit.scenarios import KILLED_TWICE
from tests.unit.scenarios import record as record_run
from tests.unit.small_generations import generation

NOW_S = 102.0
HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e" + "x" * 3000


def put_run(store: Store, run: str = "r", **told: Any) -> None:
    """A run that trains: two generations in its log, what its driver told, and parts of three attempts."""
    repository = Repository(store, run, clock=lambda: 100.0)
    term = repository.take_over("me")
    repository.append(Commit(generation=generation(2)), term=term)
    status = {"stage": "training", "step": 35, "num_steps": 40, "loss": 1.5, "tokens_per_s": 1000.0}
    store.put(
        f"runs/{run}/status.json",
        json.dumps({**status, "attempt": 1, "told_s": NOW_S, "eta_s": 60.0, **told}).encode(),
    )
    record_run(store, KILLED_TWICE, run=run)


def put_sweep(store: Store, name: str = "trial", **told: Any) -> None:
    """A sweep of two runs, of which one has a result."""
    spec = sweep(axes={"strategy": ["ddp"]}, repeats=2)
    run = run_of(spec, 1)
    row = record(spec, run, measurement(run.run_id, step_s=0.1))
    store.put(f"sweeps/{name}/runs/{run.name}/result.json", row.to_json())
    store.put(f"sweeps/{name}/sweep.json", json.dumps({"runs": [run.name, "another"]}).encode())
    progress = {"num_done": 1, "num_failed": 0, "num_runs": 2, "elapsed_s": 10.0}
    more = {"remaining_s": 10.0, "running": ["another: warmup step 1/5"], "told_s": NOW_S}
    store.put(f"sweeps/{name}/progress.json", json.dumps({**progress, **more, **told}).encode())


def look_at(value: Any, **more: Any) -> Look[Any]:
    return Look(**{"value": value, "age_s": 1.0, "problem": None, **more})


def run_snapshot(store: Store, run: str = "r", **more: Any) -> Snapshot:
    reading = RunReading(store, run, clock=lambda: NOW_S)
    return snapshot(Watched(kind="run", name=run), reading.status(), reading.records(), **more)


def sweep_snapshot(store: Store, name: str = "trial", **more: Any) -> Snapshot:
    reading = SweepReading(store, name, clock=lambda: NOW_S)
    return snapshot(Watched(kind="sweep", name=name), reading.status(), reading.records(), **more)


def snapshot(watched: Watched, status: Any, records: Any, **more: Any) -> Snapshot:
    return Snapshot(
        kind=watched.kind,
        name=watched.name,
        store="results",
        status=look_at(status, **more),
        records=look_at(records),
    )
