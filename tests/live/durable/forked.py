"""Runs an example's ``main`` several times, each in a process forked from this one, which has loaded all.

Called as ``python -m tests.live.durable.forked EXAMPLE JOBS``. JOBS is JSON: a list of what to run, one after
the other, each with ``store``, ``steps``, ``ranks`` (0 for a process without a launcher), and what happens to
every rank before a step ends: ``kill_at`` or ``stop_at``. Prints the exit codes as JSON.
"""

import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from jobs.durable.run import Run

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
Main = Callable[[str, int], None]


def example_of(name: str) -> ModuleType:
    """The example, imported under its own name."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(name)


def kill_this_process_at(step: int, once: Path | None = None) -> None:
    """Kills it before ``step`` ends. With ``once`` only the first process that makes this file is killed."""
    end_step = Run.end_step

    def end_or_die(run: Run) -> bool:
        if run.step == step and (once is None or _is_first(once)):
            os.kill(os.getpid(), signal.SIGKILL)
        return end_step(run)

    Run.end_step = end_or_die


def stop_this_process_at(step: int) -> None:
    """Asks its run to stop, as the user's script may, before ``step`` ends."""
    end_step = Run.end_step

    def end_and_stop(run: Run) -> bool:
        if run.step == step:
            run.stop()
        return end_step(run)

    Run.end_step = end_and_stop


def _is_first(mark: Path) -> bool:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def run_forked(main: Main, job: dict) -> list[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = [_start(main, job, rank, port) for rank in range(max(1, job["ranks"]))]
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def _start(main: Main, job: dict, rank: int, port: int) -> int:
    if child := os.fork():
        return child
    code = 1
    try:
        if job["ranks"]:
            ranks = {"WORLD_SIZE": job["ranks"], "LOCAL_WORLD_SIZE": job["ranks"]}
            places = {"RANK": rank, "LOCAL_RANK": rank, "MASTER_PORT": port, **ranks}
            os.environ |= {key: str(value) for key, value in places.items()}
            os.environ["MASTER_ADDR"] = "127.0.0.1"
        if job.get("kill_at") is not None:
            kill_this_process_at(job["kill_at"])
        if job.get("stop_at") is not None:
            stop_this_process_at(job["stop_at"])
        main(job["store"], job["steps"])
        code = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    loaded = example_of(sys.argv[1]).main
    print("codes", json.dumps([run_forked(loaded, job) for job in json.loads(sys.argv[2])]), flush=True)
