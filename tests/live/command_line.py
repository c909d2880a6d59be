"""Runs our command line as a user does, in processes of its own, and reads what it leaves."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 500
_MOST_SAID = 3000

# Seconds of real training: enough for a row, little enough for a test.
QUICK = """
name: quick
models: [llama-tiny]
axes: {strategy: [ddp, fsdp], world_size: [1], seq_len: [32], micro_batch: [1]}
measure: {steps: 4, warmup: 1}
repeats: 1
limits: {schedule_timeout_s: 60, cell_timeout_s: 120}
"""


def write_spec(folder: Path, text: str = QUICK) -> Path:
    path = folder / "spec.yaml"
    path.write_text(text)
    return path


def sweep_command(spec: Path, store: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "jobs.cli", "sweep", str(spec), "--store", str(store), *flags]


def run(
    command: Sequence[str], *, deadline_s: float = DEADLINE_S, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment_of_commands() | environment,
        capture_output=True,
        text=True,
        timeout=deadline_s,
        check=False,
    )


@contextmanager
def running(
    command: Sequence[str], *, output: IO[str] | int = subprocess.PIPE, **environment: str
) -> Iterator["subprocess.Popen[str]"]:
    """The command under way; whatever happens in the block, it is ended with all that it started, and an
    error is told with what it said.

    What says more than a pipe holds before the block ends needs a file for its ``output``.
    """
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment_of_commands() | environment,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    except Exception as error:
        error.add_note(f"what it said:\n{_end(process)[-_MOST_SAID:]}")
        raise
    finally:
        _end(process)


def _end(process: "subprocess.Popen[str]") -> str:
    """What it had said, unless that went to a file."""
    if process.poll() is None:
        # A supervisor's drivers, for one, have a session of their own.
        started = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGKILL)
        for child in started:
            with suppress(psutil.NoSuchProcess):
                child.kill()
    output, _ = process.communicate(timeout=30)
    return output or ""


def below(pid: int, words: str) -> list[psutil.Process]:
    """Processes that ``pid`` or one of its own has started. Ray calls a process what it does."""
    return [child for child in psutil.Process(pid).children(recursive=True) if words in _title(child)]


def rows(store: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(store.glob("sweeps/*/runs/*/result.json"))]


def files(store: Path) -> list[str]:
    return sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file())


def _title(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return " ".join(process.cmdline()).strip()
    return ""


def environment_of_commands() -> dict[str, str]:
    """Without what would send us to somebody's cluster or job. Ranks are single-threaded, as under Ray: where
    tests run side by side, threads that wait for each other in each product do hardly a step in a minute.
    """
    unwanted = ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR", "LONGHAUL_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return kept | {"OMP_NUM_THREADS": "1"}
