"""A report over many runs, and the table of very many steps: seconds and memory, all of it synthetic.

``python -m tests.bench.reports report|pandas|steps FOLDER`` is one of the measurements, in its process.
"""

import json
import resource
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from checkpointing.stores.local import LocalStore
from tests.bench.apart import apart
from tests.bench.synthetic import make_store

NUM_RUNS, BOUND_S, BOUND_GB = 10_000, 15.0, 1.0
NUM_STEPS, STEPS_PER_PART = 10_000_000, 20_000
# Many times the rows must not take many times the memory.
FEWER_STEPS, GROWTH_BOUND = NUM_STEPS // 10, 1.5


def main() -> bool:
    with TemporaryDirectory(prefix="longhaul-bench-") as folder:
        return all([_report(Path(folder) / "runs"), _steps(Path(folder))])


def _report(folder: Path) -> bool:
    make_store(folder, NUM_RUNS)
    ours, pandas = (apart("tests.bench.reports", what, folder) for what in ("report", "pandas"))
    print(
        f"report over {NUM_RUNS:,} runs  {ours['s']:.1f} s, {ours['gb']:.2f} GB, pages and charts included "
        f"(bounds {BOUND_S:g} s, {BOUND_GB:g} GB); pandas only reads the files in {pandas['s']:.1f} s, "
        f"{pandas['gb']:.2f} GB"
    )
    return bool(ours["s"] <= BOUND_S and ours["gb"] <= BOUND_GB)


def _steps(folder: Path) -> bool:
    found = []
    for num_steps in (FEWER_STEPS, NUM_STEPS):
        _make_steps(folder / str(num_steps), num_steps)
        found.append(apart("tests.bench.reports", "steps", folder / str(num_steps)))
    fewer, most = found
    growth = most["gb"] / fewer["gb"]
    print(
        f"table of {NUM_STEPS:,} steps  {most['s']:.1f} s, {most['gb']:.2f} GB, {growth:.2f} of the "
        f"memory for {FEWER_STEPS:,} (bound {GROWTH_BOUND:g})"
    )
    return bool(growth <= GROWTH_BOUND)


def _make_steps(folder: Path, num_steps: int) -> None:
    from reporting.recording.attempts import RecordedAttempt
    from reporting.recording.parts import PartName, encode_part, table_of
    from reporting.results.columns import PARTS

    store = LocalStore(folder)
    attempt = RecordedAttempt(
        run="synthetic",
        term=1,
        leased_s=0.0,
        group="synthetic",
        vendor="cpu",
        model="llama-tiny",
        strategy="ddp",
        world_size=1,
        num_steps=num_steps,
        tokens_per_step=1,
        start_step=0,
    )
    names = [column.name for column in PARTS["steps"]]
    for number, first in enumerate(range(0, num_steps, STEPS_PER_PART)):
        rows = []
        for step in range(first + 1, first + STEPS_PER_PART + 1):
            values = {"step": step, "position": step, "epoch": 1, "ended_s": step * 0.5, "tokens": 64}
            values |= {"step_s": 0.5 + step % 7 * 0.001, "data_wait_s": 0.001, "loss": 5.0 + step % 13 * 0.01}
            rows.append([values.get(name) for name in names if name not in ("run", "term", "rank")])
        name = PartName(run="synthetic", table="steps", term=1, rank=0, first=number, last=number)
        store.put(str(name), encode_part("steps", attempt, table_of("steps", attempt, 0, rows)))


def _measure(what: str, folder: Path) -> dict[str, float]:
    started = time.perf_counter()
    match what:
        case "report":
            from jobs.cli.__main__ import main as longhaul

            assert longhaul(["report", "--store", str(folder)]) == 0
        case "pandas":
            import pandas

            pandas.json_normalize([json.loads(path.read_bytes()) for path in folder.rglob("result.json")])
        case "steps":
            from reporting.long_runs.summarising import long_runs, write_steps

            store = LocalStore(folder)
            (run,), _ = long_runs(store)
            num_rows, _ = write_steps(store, folder / "steps.parquet")
            assert num_rows == run.num_steps
    seconds = time.perf_counter() - started
    return {"s": seconds, "gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9}


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], Path(sys.argv[2]))))
