"""How far a sweep is, for those who see its store alone."""

import json
from typing import NoReturn

from checkpointing.stores.contract import Unavailable
from checkpointing.stores.memory import MemoryStore
from jobs.run_progress.sweep_progress import SweepProgress, read_sweep_progress


class AwayStore(MemoryStore):
    def put(self, *_: object) -> NoReturn:
        raise Unavailable("store: it does not answer")

    def delete(self, *_: object) -> NoReturn:
        raise Unavailable("store: it does not answer")


def progress_of(store: MemoryStore, now: list[float]) -> SweepProgress:
    return SweepProgress(
        store, "trial", num_runs=4, expected_s=90.0, ticks=lambda: now[0], clock=lambda: 1000.0 + now[0]
    )


def test_before_the_first_run_has_ended_the_plan_says_how_long_it_takes_then_the_clock() -> None:
    now = [0.0]
    progress = progress_of(MemoryStore(), now)
    progress.runs("a", "starts")
    assert (progress.record()["remaining_s"], progress.record()["running"]) == (90.0, ["a: starts"])
    now[0] = 10.0
    progress.finished("a", "ok")
    progress.runs("b", "warmup step 1/5")
    progress.finished("c", "oom")
    told = progress.record()
    assert (told["num_done"], told["num_failed"], told["num_runs"]) == (2, 1, 4)
    assert (told["elapsed_s"], told["remaining_s"], told["running"]) == (10.0, 10.0, ["b: warmup step 1/5"])


def test_a_start_that_has_ended_leaves_no_word() -> None:
    store = MemoryStore()
    store.put("sweeps/trial/progress.json", b"{}")
    with progress_of(store, [0.0]):
        pass
    assert list(store.list("sweeps")) == []


def test_a_store_that_is_away_ends_no_sweep() -> None:
    with progress_of(AwayStore(), [0.0]) as progress:
        progress.finished("a", "ok")


def test_what_is_told_can_be_read_and_is_bounded() -> None:
    store = MemoryStore()
    progress = progress_of(store, [0.0])
    for number in range(1000):
        progress.runs(f"run-{number}", "x" * 1000)
    store.put("sweeps/trial/progress.json", json.dumps(progress.record()).encode())
    told = read_sweep_progress(store, "trial")
    assert len(told["running"]) == 50
    assert max(map(len, told["running"])) == 200
    store.put("sweeps/trial/progress.json", b"[" * 70_000)
    assert read_sweep_progress(store, "trial") == {}
