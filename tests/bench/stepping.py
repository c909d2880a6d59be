"""A real training with a save each 20 steps, beside one without and one with torch's best way.

Each is in a process of its own, in turn. Saves that are under way slow the steps down: how much is shown.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from jobs.training.data.synthetic import make_batches
from jobs.training.state.random_state import seed
from jobs.training.step import train_step
from jobs.training.strategies.build import build
from jobs.training.strategies.contract import Engine
from tests.bench.apart import apart
from tests.bench.ways import RECIPE, Way, join_group, way

NUM_STEPS, EVERY, FIRST, WARMUP, ROUNDS = 60, 20, 5, 5, 3
# Both vary by some percent from process to process.
BOUND = 1.05
_WAYS = ("none", "ours", "lazy", "tuned")


def main(num_steps: int = NUM_STEPS) -> bool:
    rounds: list[dict[str, Any]] = []
    for turn in range(ROUNDS):
        ways = _WAYS[turn % len(_WAYS) :] + _WAYS[: turn % len(_WAYS)]
        rounds.append({name: _measured(name, num_steps) for name in ways})
    total_s = {name: median(found[name]["total_s"] for found in rounds) for name in _WAYS}
    first = rounds[0]["ours"]
    size = f"{first['num_bytes'] / 1e9:.2f} GB"
    print(f"{num_steps} steps       {total_s['none']:.2f} s without a save; one each {EVERY} steps, {size}:")
    for name, label in (("ours", "ours"), ("lazy", "ours, lazy"), ("tuned", "async, tuned")):
        steps = [found[name] for found in rounds]
        print(f"  {label:12} {total_s[name]:.2f} s, {total_s[name] / total_s['none']:.3f}x; {_slowed(steps)}")
    blocked_s = {
        name: median(seconds for found in rounds for seconds in found[name]["blocked_s"])
        for name in ("ours", "lazy", "tuned")
    }
    print(
        f"               a save blocks {blocked_s['ours']:.3f} s, the tuned one {blocked_s['tuned']:.3f} s;"
    )
    lazily = blocked_s["lazy"]
    print(f"               a lazy one {lazily:.4f} s, {lazily / blocked_s['ours']:.3f} of ours (goal 0.1)")
    share = median(found["ours"]["total_s"] / found["tuned"]["total_s"] for found in rounds)
    print(f"               ours takes {share:.3f} of the tuned one's time (bound {BOUND})")
    return bool(share <= BOUND)


def _slowed(found: list[dict[str, Any]]) -> str:
    busy, idle = ([step_s for one in found for step_s in one[kind]] for kind in ("busy_s", "idle_s"))
    if not busy:
        return "no step while a save was under way"
    return f"{len(busy)} steps while a save was under way took {median(busy) / median(idle):.2f}x"


def _measured(name: str, num_steps: int) -> Any:
    with TemporaryDirectory(prefix="longhaul-bench-") as folder:
        return apart(__name__, name, folder, num_steps)


def _measure(name: str, folder: Path, num_steps: int) -> dict[str, Any]:
    """In the process of its own."""
    join_group()
    seed(RECIPE.seed, 0, torch.device("cpu"))
    engine = build(RECIPE, torch.device("cpu"))
    num_bytes = sum(piece.values.nbytes for piece in engine.pieces())
    found = _train(engine, way(name, engine, folder) if name != "none" else None, num_steps)
    engine.close()
    return {"num_bytes": num_bytes, **found}


def _train(engine: Engine, saving: Way | None, num_steps: int) -> dict[str, Any]:
    batches = make_batches(RECIPE, 0, torch.device("cpu"))
    for step in range(WARMUP):
        train_step(engine, batches.load(step))
    steps_s: dict[str, list[float]] = {"busy_s": [], "idle_s": []}
    blocked_s: list[float] = []

    def settle() -> None:
        since = time.perf_counter()
        if saving and blocked_s:
            saving.settle()
            blocked_s[-1] += time.perf_counter() - since

    began = time.perf_counter()
    for step in range(num_steps):
        is_busy = saving is not None and saving.is_busy()
        started = time.perf_counter()
        train_step(engine, batches.load(step), before_update=settle).item()
        steps_s["busy_s" if is_busy else "idle_s"].append(time.perf_counter() - started)
        if saving and step % EVERY == FIRST:
            since = time.perf_counter()
            saving.save(step)
            blocked_s.append(time.perf_counter() - since)
    total_s = time.perf_counter() - began
    if saving:
        saving.wait()
    return {"total_s": total_s, "blocked_s": blocked_s, **steps_s}


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))
