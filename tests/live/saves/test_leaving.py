"""When a rank may leave its last state, and when it may not. The other ranks of the run are not needed."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from checkpointing.errors import taken_over
from checkpointing.saving.memory_tier import MemoryTier
from checkpointing.saving.snapshot import Piece
from jobs.training.health.failures import InvalidLoss
from jobs.training.loop import last_state
from jobs.training.loop.attempt import _Attempt
from jobs.training.loop.last_state import LastState, PeersLost, last_state_of
from jobs.training.state.saved_run import SavedOrder, SavedRun
from jobs.training.strategies.contract import Counters, Engine
from jobs.training.task.context import Context
from jobs.training.task.position import StepPoint
from jobs.training.task.task import Task

SAVED = SavedRun(
    run="r", term=1, attempt="a", lineage="l", strategy="ddp", world_size=1, ranks_per_copy=1, about={}
)
POINT = StepPoint(step=7, position=14, epoch_end=None)


class Held:
    """An engine with one tensor."""

    holds: tuple[int, ...] = (0,)

    def __init__(self) -> None:
        self.weights = torch.zeros(1000)

    def pieces_of(self, rank: int) -> list[Piece]:
        return [Piece(name="param/w", shape=(1000,), start=0, values=self.weights)]

    def counters(self) -> Counters:
        return Counters(num_updates=7, num_skipped_updates=0)


class Leaver:
    """A rank's last state; what is left of it can be read."""

    def __init__(self, folder: Path, max_bytes: int | None = None) -> None:
        self.engine, self.will_leave = Held(), list[float]()
        self.tier = MemoryTier(folder, "r")
        context = Context(rank=0, world_size=1, local_rank=0, device=torch.device("cpu"))
        self.state = LastState(
            SAVED,
            self.tier,
            context,
            cast(Engine, self.engine),
            SavedOrder(),
            self.will_leave.append,
            max_bytes,
        )

    def left(self) -> list[tuple[int, bool, object]]:
        """The step of what is there, whether an evaluation is due, and its position."""
        cuts = [cut for cut, _ in self.tier.inventory()]
        return [(cut.step, cut.state["is_evaluation_due"], cut.state["position"]) for cut in cuts]


@pytest.fixture
def leaver(tmp_path: Path) -> Leaver:
    return Leaver(tmp_path)


def test_before_the_first_update_and_amid_one_there_is_nothing_whole_to_leave(leaver: Leaver) -> None:
    assert not leaver.state.leave()
    leaver.state.is_whole(POINT, is_crossed=True)
    leaver.state.changes()
    assert not leaver.state.leave()
    assert leaver.left() == []


def test_who_waits_for_the_end_of_an_update_leaves_what_came_of_it(leaver: Leaver) -> None:
    found = list[bool]()
    leaver.state.changes()
    waiting = threading.Thread(target=lambda: found.append(leaver.state.leave(within_s=60.0)))
    waiting.start()
    leaver.state.is_whole(POINT, is_crossed=True)
    waiting.join(60.0)
    assert found == [True]
    assert leaver.left() == [(7, False, 14)]
    assert len(leaver.will_leave) == 1


def test_once_left_nothing_changes_any_more_and_nothing_is_left_again(leaver: Leaver) -> None:
    leaver.state.is_whole(POINT, is_crossed=True)
    assert leaver.state.leave()
    with pytest.raises(PeersLost):
        leaver.state.changes()
    leaver.state.is_whole(StepPoint(step=8, position=16, epoch_end=None), is_crossed=True)
    assert leaver.state.leave()
    assert leaver.left() == [(7, False, 14)]


def test_an_evaluation_that_was_to_follow_is_due_and_an_epochs_end_is_known_as_one(leaver: Leaver) -> None:
    leaver.state.is_whole(StepPoint(step=8, position=16, epoch_end=2, is_evaluated=True), is_crossed=False)
    assert leaver.state.leave()
    assert leaver.left() == [(8, True, 16)]
    assert [cut.epoch_end for cut, _ in leaver.tier.inventory()] == [2]


def test_what_may_be_wrong_is_not_left(leaver: Leaver) -> None:
    leaver.state.is_whole(POINT, is_crossed=True)
    leaver.state.forbid()
    assert not leaver.state.leave()
    assert leaver.left() == []


def test_without_room_nothing_is_left(leaver: Leaver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryTier, "free_bytes", lambda self: 4000)
    leaver.state.is_whole(POINT, is_crossed=True)
    assert not leaver.state.leave()
    assert leaver.left() == []


@pytest.mark.parametrize("max_bytes", [10_000, 100_000])
def test_no_more_is_left_than_the_spec_allows(tmp_path: Path, max_bytes: int) -> None:
    leaver = Leaver(tmp_path, max_bytes)
    leaver.state.is_whole(POINT, is_crossed=True)
    assert leaver.state.leave() == (max_bytes == 100_000)


def test_where_random_numbers_were_drawn_nothing_is_left(leaver: Leaver) -> None:
    torch.rand(1)
    leaver.state.is_whole(POINT, is_crossed=True)
    assert not leaver.state.leave()


def test_an_error_on_the_way_ends_nothing_else(leaver: Leaver, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: MemoryTier, *_: object) -> None:
        raise ValueError("anything")

    monkeypatch.setattr(MemoryTier, "keep_beside", full)
    leaver.state.is_whole(POINT, is_crossed=True)
    assert not leaver.state.leave()


def test_a_share_that_another_rank_of_the_host_has_left_is_not_written_again(tmp_path: Path) -> None:
    first, second = Leaver(tmp_path), Leaver(tmp_path)
    second.engine.weights.fill_(1.0)
    first.state.is_whole(POINT, is_crossed=True)
    second.state.is_whole(POINT, is_crossed=True)
    assert first.state.leave()
    left = first.tier.inventory()
    assert second.state.leave()
    assert second.tier.inventory() == left


class Failing(_Attempt):
    """An attempt that is at its end at once."""

    def __init__(self, state: LastState, error: Exception) -> None:
        self._last_state = state
        self._error = error

    def _work(self) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "is_left"),
    [
        (RuntimeError("Connection closed by peer"), True),
        (PeersLost("a peer is gone"), True),
        (InvalidLoss("the loss is not a finite number"), False),
        (taken_over("r", 2, "another"), False),
        (torch.OutOfMemoryError("no more memory"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_ends_an_attempt_decides_whether_its_state_is_left(
    leaver: Leaver, error: Exception, is_left: bool
) -> None:
    leaver.state.is_whole(POINT, is_crossed=True)
    with pytest.raises(type(error)):
        Failing(leaver.state, error).work()
    assert bool(leaver.left()) == is_left


def test_what_went_wrong_on_all_ranks_is_not_left_for_anybody_who_asks_later(leaver: Leaver) -> None:
    leaver.state.is_whole(POINT, is_crossed=True)
    with pytest.raises(InvalidLoss):
        Failing(leaver.state, InvalidLoss("the loss is not a finite number")).work()
    assert not leaver.state.leave()
    assert leaver.left() == []


@pytest.mark.parametrize(
    ("device", "world_size", "holds"), [("cuda", 2, (0, 1)), ("cpu", 2, (0,)), ("cpu", 513, (0, 1))]
)
def test_on_devices_without_replicas_and_of_very_many_ranks_nothing_is_left(
    leaver: Leaver, monkeypatch: pytest.MonkeyPatch, device: str, world_size: int, holds: tuple[int, ...]
) -> None:
    monkeypatch.setattr(last_state, "memory_tier", lambda saving, saved: leaver.tier)
    monkeypatch.setattr(last_state, "saved_run", lambda task: SAVED)
    monkeypatch.setattr(leaver.engine, "holds", holds)
    task = cast(Task, SimpleNamespace(saving=object()))
    context = Context(rank=0, world_size=world_size, local_rank=0, device=torch.device(device))
    assert last_state_of(task, context, cast(Engine, leaver.engine), SavedOrder()) is None
