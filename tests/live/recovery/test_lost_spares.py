"""The spare processes of a run over Ray die together with its ranks, or while they take over."""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from subprocess import Popen

import psutil
import pytest

from checkpointing.generations.repository import Repository
from checkpointing.stores.opening import open_store
from tests.live.command_line import below, running, write_spec
from tests.live.recovery.test_recovering import PARENT, PATIENCE_S, finished_as_if_left_alone
from tests.live.recovery.test_survivors import RUN
from tests.live.runs.test_train import a_worker_of, num_commits, train_command, wait_until

pytestmark = pytest.mark.soak

Run = Popen[str]
WORKERS = "RayTrainWorker"
# So many that it is still at work when it is to be struck, which is behind what the store has first.
LONGER = RUN.replace("steps: 300", "steps: 600")
BEHIND = r"step [1-5]\d\d/600"


def has_said(told: Path, pattern: str) -> Callable[[], bool]:
    return lambda: re.search(pattern, told.read_text()) is not None


def kill(victims: list[psutil.Process]) -> None:
    for victim in victims:
        with suppress(psutil.NoSuchProcess):
            victim.kill()


def with_a_rank(process: Run, _store: Path) -> None:
    """The other one survives, and leaves its last state."""
    kill([*below(process.pid, PARENT), a_worker_of(process)])


def with_all_ranks(process: Run, _store: Path) -> None:
    kill([*below(process.pid, PARENT), *below(process.pid, WORKERS)])


def while_it_takes_over(process: Run, store: Path) -> None:
    """As soon as it has forked a worker for the next attempt, and with that one."""
    before = {one.pid for one in below(process.pid, WORKERS)}
    kill([a_worker_of(process)])

    def forked() -> list[psutil.Process]:
        return [one for one in below(process.pid, WORKERS) if one.pid not in before]

    wait_until(lambda: bool(forked()), PATIENCE_S)
    kill([*below(process.pid, PARENT), *forked()])


def when_the_next_attempt_loads(process: Run, store: Path) -> None:
    """With all of the ranks that take over."""
    kill([a_worker_of(process)])

    def is_loading() -> bool:
        view = Repository(open_store(str(store)), "r").refresh()
        return view.term > 1 and bool(view.loads)

    wait_until(is_loading, PATIENCE_S)
    kill([*below(process.pid, PARENT), *below(process.pid, WORKERS)])


@pytest.mark.parametrize(
    "dies", [with_a_rank, with_all_ranks, while_it_takes_over, when_the_next_attempt_loads]
)
def test_the_spare_dies_too_and_the_run_is_the_one_that_was_left_alone(
    dies: Callable[[Run, Path], None], tmp_path: Path
) -> None:
    spec, store, told = write_spec(tmp_path, LONGER), tmp_path / "store", tmp_path / "told.txt"
    with told.open("w") as output, running(train_command(spec, store), output=output) as process:
        wait_until(lambda: num_commits(store) >= 1 and bool(below(process.pid, PARENT)), PATIENCE_S)
        wait_until(has_said(told, BEHIND), PATIENCE_S)
        dies(process, store)
        process.wait(PATIENCE_S)
    assert process.returncode == 0, told.read_text()
    assert Repository(open_store(str(store)), "r").refresh().term > 1
    assert finished_as_if_left_alone(tmp_path, spec, store)
