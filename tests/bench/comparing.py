"""How long ``longhaul compare`` takes on 10,000 synthetic runs: 1,000 pairs of cells, 5 runs a side each."""

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.bench.synthetic import make_store

NUM_RUNS, REPEATS = 10_000, 3
BOUND_S = 2.0
# As some cells are made slower.
EXIT_SLOWER = 1


def main() -> bool:
    with TemporaryDirectory(prefix="longhaul-bench-") as name:
        make_store(Path(name), NUM_RUNS)
        parse_s = _parse_s(Path(name))
        compare_s = median(_compare_s(name) for _ in range(REPEATS))
    ratio = f"{compare_s / parse_s:.1f}x of parsing the same files with json, {parse_s:.2f} s"
    print(f"compare        {compare_s:.2f} s for {NUM_RUNS:,} runs, {ratio} (bound {BOUND_S} s)")
    return compare_s < BOUND_S


def _parse_s(folder: Path) -> float:
    started = time.perf_counter()
    for path in folder.rglob("result.json"):
        json.loads(path.read_bytes())
    return time.perf_counter() - started


def _compare_s(store: str) -> float:
    """From the start of the process to its end, with the table written."""
    command = [sys.executable, "-m", "jobs.cli", "compare", f"{store}#group=h100", f"{store}#group=mi300x"]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    taken = time.perf_counter() - started
    if done.returncode != EXIT_SLOWER:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr[-2000:]}")
    return taken


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
