"""Which start of a sweep is at work: a living one keeps others away, a dead one nobody."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from jobs.commandline.usage_error import Occupied
from jobs.run_progress.sweep_driver import SweepDriver

NAME = "sweeps/trial/driver.json"
CHILD = """
import sys, time
from checkpointing.stores.local import LocalStore
from jobs.run_progress.sweep_driver import SweepDriver
from pathlib import Path
with SweepDriver(LocalStore(Path(sys.argv[1])), "trial"):
    print("at work", flush=True)
    time.sleep(60)
"""


@contextmanager
def another_start(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    root = Path(__file__).resolve().parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder)], stdout=subprocess.PIPE, text=True, cwd=root
    )
    try:
        assert process.stdout and process.stdout.readline() == "at work\n"
        yield process
    finally:
        process.kill()
        process.wait(timeout=30)


def test_one_start_leaves_nothing_behind() -> None:
    store = MemoryStore()
    with SweepDriver(store, "trial"):
        assert list(store.list("sweeps")) == [NAME]
    assert list(store.list("sweeps")) == []


def test_a_living_start_keeps_others_away_and_a_killed_one_does_not(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with another_start(tmp_path) as process:
        with pytest.raises(
            Occupied, match=rf"another start \(process {process.pid} on .*\) is at work on it"
        ):
            SweepDriver(store, "trial", pause=lambda _: None).__enter__()
        process.kill()
        process.wait(timeout=30)
        with SweepDriver(store, "trial", pause=lambda _: None):
            pass


def of_another_machine(beat: int) -> bytes:
    told = {"driver": "d", "host": "far", "pid": 7, "machine": "another", "started": "1", "beat": beat}
    return json.dumps(told).encode()


def test_a_start_on_another_machine_is_at_work_while_it_changes_its_file() -> None:
    store, beats = MemoryStore(), iter(range(2, 100))
    store.put(NAME, of_another_machine(1))
    with pytest.raises(Occupied, match=r"process 7 on far"):
        SweepDriver(
            store, "trial", pause=lambda _: store.put(NAME, of_another_machine(next(beats)))
        ).__enter__()


def test_a_start_on_another_machine_that_is_silent_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    store, waited = MemoryStore(), list[float]()
    store.put(NAME, of_another_machine(1))
    with SweepDriver(store, "trial", pause=waited.append):
        assert sum(waited) >= 10
    assert (
        "looks for 12 s whether another start (process 7 on far) is still at work" in capsys.readouterr().err
    )
    assert list(store.list("sweeps")) == []


def test_of_two_that_take_over_at_once_the_last_has_it() -> None:
    """The other one wrote while the first waited to see."""
    store, num_pauses = MemoryStore(), 0

    def pause(_: float) -> None:
        nonlocal num_pauses
        num_pauses += 1
        if num_pauses > 12:
            store.put(NAME, of_another_machine(num_pauses))

    store.put(NAME, of_another_machine(1))
    with pytest.raises(Occupied):
        SweepDriver(store, "trial", pause=pause).__enter__()


@pytest.mark.parametrize("found", [b"", b"{", b"[]", b"[" * 4000, b"x" * 10_000, b'{"pid": true, "host": 1}'])
def test_a_file_that_says_nothing_is_taken_over_once_it_is_silent(found: bytes) -> None:
    store = MemoryStore()
    store.put(NAME, found)
    with SweepDriver(store, "trial", pause=lambda _: None):
        assert json.loads(store.get(NAME))["beat"] >= 1
