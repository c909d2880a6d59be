"""The first step after a resume is compared with what was recorded of it, where the two can be compared."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkpointing.stores.bounded import TooLarge
from checkpointing.stores.contract import Store
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.loop import replay
from jobs.training.loop.replay import Replay, bound, compared, recorded_before
from jobs.training.task.events import Replayed
from jobs.training.task.task import Task, Tokens
from jobs.training.task.token_index import TokenIndex, TokenShard
from jobs.training.task.windows import Windows
from reporting.recording.attempts import RecordedAttempt
from tests.unit import recorded

# Ends what hangs.
_DEADLINE_S = 120


def task_of(term: int, store: str = "memory:", **changes: Any) -> Task:
    """An attempt of four samples a step; ``changes`` are keys of its spec or of the task."""
    spec: dict[str, Any] = {"name": "r", "model": "llama-tiny", "steps": 9, "micro_batch": 4}
    spec |= {key: value for key, value in changes.items() if key in RunSpec.model_fields}
    task: dict[str, Any] = {
        "run": "r",
        "store": store,
        "recipe": RunSpec.model_validate_json(json.dumps(spec)).recipe(),
        "vendor": "cpu",
        "simulated": False,
        "num_steps": 9,
        "num_samples": 24,
        "saving": None,
        "term": term,
        "attempt": "word",
        "lineage": "line",
        "resume": "latest",
    }
    task |= {key: value for key, value in changes.items() if key in Task.__dataclass_fields__}
    return Task(**task)


def begun(term: int, step: int, parent: int | None, **changes: Any) -> RecordedAttempt:
    return replace(task_of(term, **changes).as_recorded(), start_step=step, parent_term=parent)


def leave(store: Store, of: RecordedAttempt, last: int, loss: float | None) -> None:
    """Leaves the steps up to the ``last``, ten a part. A step's position is its number."""
    assert of.start_step is not None
    steps = range(of.start_step + 1, last + 1)
    for number, first in enumerate(steps[::10], start=1):
        rows = [recorded.step_row(step, loss=loss) for step in steps if first <= step < first + 10]
        recorded.leave(store, of, "steps", rows, number=number)


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A store in which attempt 1 has recorded four steps with a loss of 2."""
    leave(LocalStore(tmp_path), begun(1, 0, None), 4, 2.0)
    return str(tmp_path)


def told_by(task: Task, loss: float = 2.0, *, end: int = 3, repeats: bool = True) -> list[Replayed]:
    """What an attempt tells that resumes where attempt 1 had done two steps, and does the third again."""
    told: list[Replayed] = []
    run = Replay(task, 2, 1, end, told.append, repeats=repeats)
    run.start()
    run.told(3, loss)
    wait_for_readers()
    return told


def wait_for_readers() -> None:
    for thread in threading.enumerate():
        if thread.name == "replay":
            thread.join(_DEADLINE_S)
            assert not thread.is_alive()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "to the bit"),
        ({"optimizer": {"lr": 1.0}}, "to the bit"),
        ({"micro_batch": 1, "grad_accum": 4}, "within 1e-05"),
        ({"micro_batch": 2, "world_size": 2}, "within 1e-05"),
        ({"strategy": "fsdp"}, "within 1e-05"),
        ({"group": "others"}, "within 1e-05"),
    ],
)
def test_what_sums_in_another_order_is_not_expected_to_agree_to_the_bit(
    place: str, changes: dict[str, Any], expected: str
) -> None:
    (found,) = told_by(task_of(2, place, **changes), 2.0 + 4.77e-07)
    assert f"agree {expected}" in found.text or f"agrees {expected}" in found.text
    assert found.agrees is (expected != "to the bit")
    (found,) = told_by(task_of(2, place, **changes), 2.0 + 4e-05)
    assert not found.agrees


def test_where_nothing_repeats_or_in_bf16_the_bound_is_that_of_the_precision() -> None:
    one, other = begun(1, 0, None), begun(2, 0, None, strategy="fsdp")
    assert bound(one, one, "fp32", repeats=False) == bound(one, other, "fp32", repeats=False) == 1e-4
    assert bound(one, one, "bf16", repeats=False) == bound(one, other, "bf16", repeats=False) == 1e-2
    assert bound(one, other, "bf16", repeats=True) == 1e-2
    assert bound(one, one, "bf16", repeats=True) == 0


@pytest.mark.parametrize(
    ("before", "now", "relative", "agrees"),
    [
        (2.0, 2.0, 0.0, True),
        (2.0, 2.0 + 2.0**-30, 0.0, True),  # as exactly as losses are told
        (2.0, 2.0 + 2.0**-28, 0.0, False),
        (2.0, 2.00019, 1e-4, True),
        (2.0, 1.99979, 1e-4, False),
    ],
)
def test_losses_agree_by_no_more_than_the_bound(
    before: float, now: float, relative: float, agrees: bool
) -> None:
    assert compared(7, before, now, relative=relative).agrees is agrees


def tokens(**changes: Any) -> Tokens:
    shard = TokenShard(name="a.bin", num_tokens=9999, sha256=changes.pop("sha256", "0"))
    windows = Windows(seq_len=64, num_samples=24)
    return Tokens(url="/somewhere", index=TokenIndex(dtype="uint16", shards=(shard,)), windows=windows)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"precision": "bf16"},
        {"seq_len": 32},
        {"model": "mistral-tiny"},
        {"attention": "math"},
        {"deterministic": True},
        {"vendor": "nvidia"},
        {"shuffle": "blocks"},
        {"num_samples": 23},
        {"tokens": tokens()},
    ],
    ids=str,
)
def test_with_other_settings_or_data_nothing_is_told(place: str, changes: dict[str, Any]) -> None:
    assert len(told_by(task_of(2, place))) == 1
    assert told_by(task_of(2, place, **changes)) == []


def test_tokens_are_known_by_their_bytes_and_not_by_their_place() -> None:
    def digest(of: Tokens) -> str | None:
        return task_of(1, tokens=of).as_recorded().loss_digest

    assert digest(tokens()) == digest(replace(tokens(), url="/elsewhere")) != digest(tokens(sha256="1"))
    assert digest(tokens()) != digest(replace(tokens(), end_id=7))
    assert digest(tokens()) != digest(replace(tokens(), windows=Windows(seq_len=64, num_samples=23)))


def test_losses_in_fp8_depend_on_the_micro_batch_whose_numbers_are_scaled_together(tmp_path: Path) -> None:
    fp8 = {"precision": "bf16", "fp8": "tensorwise"}
    leave(LocalStore(tmp_path), begun(1, 0, None, **fp8), 4, 2.0)
    again = task_of(2, str(tmp_path), **fp8, optimizer={"lr": 1.0})
    assert len(told_by(again)) == 1
    assert told_by(task_of(2, str(tmp_path), **fp8, micro_batch=1, grad_accum=4)) == []


def test_of_other_samples_or_without_a_loss_nothing_is_told(place: str, tmp_path: Path) -> None:
    assert told_by(task_of(2, place), end=4) == []
    assert told_by(task_of(2, str(tmp_path / "unrecorded"))) == []
    lossless = tmp_path / "lossless"
    leave(LocalStore(lossless), begun(1, 0, None), 4, None)
    assert told_by(task_of(2, str(lossless))) == []


def test_parts_of_older_versions_tell_too_little(tmp_path: Path) -> None:
    of = replace(begun(1, 0, None), loss_digest=None, micro_batch=None)
    leave(LocalStore(tmp_path), of, 4, 2.0)
    assert told_by(task_of(2, str(tmp_path))) == []


def found_in(store: Store, now: RecordedAttempt) -> float | None:
    assert now.start_step is not None
    found = recorded_before(store, now, now.start_step + 1)
    return found and found[1]


def test_only_attempts_that_did_the_step_from_the_same_state_tell_its_loss() -> None:
    store = MemoryStore()
    leave(store, begun(1, 0, None), 8, 1.0)
    # Another branch, from an earlier save. Its seventh step is another one.
    leave(store, begun(2, 2, 1), 9, 2.0)
    assert found_in(store, begun(3, 6, 1)) == 1.0
    # What attempt 1 did not record, others tell that began where it had saved; the newest is asked first.
    assert found_in(store, begun(3, 8, 1)) is None
    leave(store, begun(3, 8, 1), 9, 3.0)
    leave(store, begun(4, 8, 1), 9, 4.0)
    leave(store, begun(5, 8, 2), 9, 5.0)
    leave(store, begun(6, 7, 1), 9, 6.0)
    leave(store, begun(8, 8, 1), 9, 8.0)
    assert found_in(store, begun(7, 8, 1)) == 4.0
    assert found_in(store, begun(4, 8, 1)) == 3.0


class Watched(MemoryStore):
    """Counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.num_read = 0
        self.lists: list[tuple[str, str]] = []

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        self.num_read += 1
        return super().get_range(name, start, into)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        self.lists.append((prefix, after))
        return super().list(prefix, after=after)


def test_of_very_many_parts_few_are_read() -> None:
    store = Watched()
    leave(store, begun(1, 0, None), 5000, 1.0)
    assert found_in(store, begun(2, 3332, 1)) == 1.0
    assert 0 < store.num_read <= 10
    assert store.lists == [("runs/r/parts/steps", "runs/r/parts/steps/00001-00000-")]


def test_only_attempts_that_exist_are_asked(tmp_path: Path) -> None:
    """Terms of a billion are reached where somebody planted one."""
    store = LocalStore(tmp_path)
    leave(store, begun(1, 0, None), 2, 1.0)
    leave(store, begun(10**9, 2, 1), 4, 3.0)
    (found,) = told_by(task_of(10**9 + 2, str(tmp_path)), 3.0)
    assert found.agrees


@pytest.mark.parametrize("limit", ["MOST_NAMES", "MOST_PARTS", "MOST_BYTES"])
def test_beyond_the_limits_nothing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    store = LocalStore(tmp_path)
    leave(store, begun(1, 0, None), 2, 1.0)
    for term, step in ((2, 2), (3, 1), (4, 1)):
        leave(store, begun(term, step, 1), step + 1, 2.0)
    sizes = [store.size(name) for name in store.list("runs/r/parts/steps")]
    needed = sum(sizes) if limit == "MOST_BYTES" else len(sizes)
    monkeypatch.setattr(replay, limit, needed)
    assert len(told_by(task_of(5, str(tmp_path)))) == 1
    monkeypatch.setattr(replay, limit, needed - 1)
    with pytest.raises(TooLarge):
        found_in(store, begun(5, 2, 1))
    assert told_by(task_of(5, str(tmp_path))) == []


class _Broken(Exception):
    pass


def breaking(*_: object) -> Any:
    raise _Broken


def test_nothing_that_goes_wrong_reaches_the_training(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    escaped: list[object] = []
    monkeypatch.setattr(threading, "excepthook", escaped.append)
    run = Replay(task_of(2, place), 2, 1, 3, breaking, repeats=True)
    run.start()
    wait_for_readers()
    run.told(3, 2.0)
    for broken in ("list", "get_range"):
        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, broken, breaking)
            assert told_by(task_of(2, place)) == []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", breaking)
        assert told_by(task_of(2, place)) == []
    assert escaped == []


class _Gate:
    """Lets nobody read a store before it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_reached, self.is_open = threading.Event(), threading.Event()
        read: Callable[..., Iterator[str]] = LocalStore.list

        def waiting(store: LocalStore, prefix: str, *, after: str = "") -> Iterator[str]:
            self.is_reached.set()
            assert self.is_open.wait(_DEADLINE_S)
            return read(store, prefix, after=after)

        monkeypatch.setattr(LocalStore, "list", waiting)


def test_a_training_waits_for_no_store_and_hears_nothing_after_its_end(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, told = _Gate(monkeypatch), list[Replayed]()
    of_one, of_another = (Replay(task_of(2, place), 2, 1, 3, told.append, repeats=True) for _ in range(2))
    for run in (of_one, of_another):
        run.start()
        run.told(3, 2.0)
    assert gate.is_reached.wait(_DEADLINE_S)
    of_one.close()
    gate.is_open.set()
    wait_for_readers()
    assert len(told) == 1
