"""A training in this tree beside one in another commit's: a step, a save and a start. ``make bench-trees``.

Each round is the same training in both trees, one after the other, over a private Ray. The figures are what
the trainings themselves recorded: files that both trees write.
"""

import compileall
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[2]
ROUNDS, BOUND = 3, 1.1
_WARMUP = 20
_PATIENCE_S = 600
_SPEC = """\
name: trees
model: llama-tiny
strategy: ddp
world_size: 2
seq_len: 64
micro_batch: 1
grad_accum: 1
steps: 100
data: {kind: synthetic, samples: 512}
checkpoint: {every_steps: 10}
"""
# Seconds by what is measured.
Figures = Mapping[str, float]


def main(commit: str) -> bool:
    with _tree_of(commit) as (other, name), TemporaryDirectory(prefix="longhaul-bench-") as folder:
        spec = Path(folder) / "trees.yaml"
        spec.write_text(_SPEC)
        rounds = []
        for turn in range(ROUNDS):
            found = {
                tree: _measured(tree, spec, Path(folder) / f"{turn}-{tree.name}")
                for tree in ((ROOT, other) if turn % 2 else (other, ROOT))
            }
            rounds.append((found[ROOT], found[other]))
    return show(name, rounds)


def show(name: str, rounds: Sequence[tuple[Figures, Figures]]) -> bool:
    """Prints each figure of this tree, of the other, and their ratio. Says whether no median ratio is above
    the bound.
    """
    print(f"| | this tree | {name} | ratio | of {len(rounds)} rounds |")
    print("|---|---|---|---|---|")
    slower = []
    for what in rounds[0][0]:
        ours, theirs = ([figures[what] for figures in side] for side in zip(*rounds, strict=True))
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        print(
            f"| {what} | {_seconds(median(ours))} | {_seconds(median(theirs))} | {median(ratios):.2f} | "
            f"{min(ratios):.2f} to {max(ratios):.2f} |"
        )
        if median(ratios) > BOUND:
            slower.append(what)
    print(f"slower by more than {BOUND - 1:.0%}: {', '.join(slower) or 'nothing'}")
    return not slower


@contextmanager
def _tree_of(commit: str) -> Iterator[tuple[Path, str]]:
    """Yields a folder with that commit's files, and its short name."""
    name = _git("rev-parse", "--short", f"{commit}^{{commit}}").strip()
    with TemporaryDirectory(prefix="longhaul-tree-") as folder:
        tree = Path(folder) / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(tree), name)
        try:
            # Else this tree alone would have its bytecode.
            for place in (ROOT, tree):
                for room in ("jobs", "cluster", "checkpointing", "reporting"):
                    compileall.compile_dir(place / room, quiet=2)
            yield tree, name
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _measured(tree: Path, spec: Path, store: Path) -> Figures:
    command = [sys.executable, "-m", "jobs.cli", "train", str(spec), "--store", str(store)]
    environment = {**os.environ, "PYTHONPATH": str(tree), "LONGHAUL_HOME": str(store / "home")}
    began_s = time.time()
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{tree}: the training ended with {done.returncode}: {done.stderr[-2000:]}")
    steps = [row for row in _rows(store, "steps") if row["rank"] == 0]
    saves = [row for row in _rows(store, "incidents") if row["kind"] == "save"]
    return {
        "start, until the first step ended": min(row["ended_s"] for row in steps) - began_s,
        "a step": median(row["step_s"] for row in steps if row["step"] > _WARMUP),
        "a save blocks": median(row["blocked_s"] for row in saves),
        "a save, until it is durable": median(row["seconds"] for row in saves),
    }


def _rows(store: Path, table: str) -> list[dict[str, float]]:
    files = store.glob(f"runs/trees/parts/{table}/*.parquet")
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.1f} ms"


if __name__ == "__main__":
    sys.exit(0 if main(*sys.argv[1:]) else 1)
