"""How long a person waits for the command line: ``--help``, a large dry run, a finished sweep."""

import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from checkpointing.stores.local import LocalStore
from cluster.this_machine import this_machine
from jobs.spec_schema.sweep_spec import SweepSpec
from jobs.sweeps.grid import expand, schedule
from jobs.sweeps.plan import plan_all
from jobs.sweeps.results import Results
from jobs.sweeps.rows.result_record import RunAttempt, record_of
from jobs.training.task.measurement import Failure

REPEATS = 5
HELP_BOUND_S, DRY_RUN_BOUND_S, RESUME_BOUND_S = 0.5, 5.0, 5.0

# 10 x 10 x 10 x 5 x 2 = 10,000 cells of one group and model.
LARGE = """
name: large
models: [llama-tiny]
axes:
  strategy: [ddp, fsdp, zero1, zero2, zero3]
  world_size: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
  seq_len: [16, 32, 48, 64, 80, 96, 112, 128, 144, 160]
  micro_batch: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
  precision: [fp32, bf16]
repeats: 1
"""
RESUMED = """
name: resumed
models: [llama-tiny]
axes: {strategy: [ddp], world_size: [1], seq_len: [64], micro_batch: [1]}
repeats: 1000
"""


def main() -> bool:
    with TemporaryDirectory(prefix="longhaul-bench-") as name:
        folder = Path(name)
        python_s = _seconds([sys.executable, "-c", "pass"])
        help_s = _seconds([sys.executable, "-m", "jobs.cli", "sweep", "--help"])
        slower = f"{help_s / python_s:.1f}x of an empty Python's {python_s:.2f} s"
        print(f"sweep --help   {help_s:.2f} s, {slower} (bound {HELP_BOUND_S} s)")
        (folder / "large.yaml").write_text(LARGE)
        dry_run_s = _seconds(_sweep(folder, "large.yaml", "--dry-run"), repeats=1)
        print(f"dry run        {dry_run_s:.2f} s for 10,000 cells (bound {DRY_RUN_BOUND_S} s)")
        resume_s = _resume_s(folder)
        print(f"resume         {resume_s:.2f} s with 1,000 finished runs (bound {RESUME_BOUND_S} s)")
    return help_s < HELP_BOUND_S and dry_run_s < DRY_RUN_BOUND_S and resume_s < RESUME_BOUND_S


def _resume_s(folder: Path) -> float:
    """All 1,000 runs have a row, so the sweep reads them, decides, prints and ends."""
    path = folder / "resumed.yaml"
    path.write_text(RESUMED)
    spec = SweepSpec.load(path)
    cells = expand(spec, ["local"])
    plans = {plan.cell.cell_id: plan for plan in plan_all(cells, this_machine(), spec.limits)}
    results = Results(LocalStore(folder / "store"), spec.name)
    attempt = RunAttempt(
        number=1, started_at="2026-01-01T00:00:00+00:00", finished_at="2026-01-01T00:00:01+00:00"
    )
    for run in schedule(spec, cells):
        failure = Failure(status="timeout", reason="a synthetic row")
        results.save(run, record_of(spec, run, plans[run.cell.cell_id], failure, attempt))
    command = _sweep(folder, "resumed.yaml", "--store", str(folder / "store"))
    # Its rows are time-outs, and the exit code says so.
    return _seconds(command, expected=1, repeats=1)


def _sweep(folder: Path, spec: str, *flags: str) -> list[str]:
    return [sys.executable, "-m", "jobs.cli", "sweep", str(folder / spec), *flags]


def _seconds(command: list[str], *, expected: int = 0, repeats: int = REPEATS) -> float:
    """The median; a command that ends otherwise than expected has no time worth telling."""
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        taken.append(time.perf_counter() - started)
        if done.returncode != expected:
            raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr[-2000:]}")
    return median(taken)
