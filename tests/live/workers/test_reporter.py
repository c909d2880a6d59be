"""What Train's controller has workers do when their group is to end. Ray's answers are given here."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from jobs.execution.board import Lost
from jobs.launch.ray_train import trainer
from jobs.launch.ray_train.trainer import Reporter


class Told:
    """A method of the board, as an actor's."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.remote = method


class FakeBoard:
    """Answers of ``is_condemned`` are there at the next look."""

    def __init__(self) -> None:
        self.is_over, self.posts = False, list[Any]()
        self.is_condemned = Told(lambda group: self.is_over)
        self.post = Told(lambda group, post: self.posts.append(post))


class Workers:
    def __init__(self, errors: Mapping[int, BaseException] | None = None) -> None:
        self.errors, self.called = errors or {}, list[tuple[int, ...]]()

    def call(
        self, act: Callable[[], None], without: Collection[int], within_s: float
    ) -> Mapping[int, BaseException]:
        assert act is trainer.leave_last_state
        self.called.append(tuple(rank for rank in range(3) if rank not in without))
        return self.errors


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> FakeBoard:
    monkeypatch.setattr(trainer.ray, "wait", lambda answers, timeout: (answers, []))
    monkeypatch.setattr(trainer.ray, "get", lambda answer: answer)
    return FakeBoard()


def test_a_condemned_group_is_told_at_the_second_look_at_the_latest_and_once(board: FakeBoard) -> None:
    reporter, workers = Reporter(board, "g"), Workers()
    reporter.looked(workers.call)
    board.is_over = True
    reporter.looked(workers.call)
    assert workers.called == []
    reporter.looked(workers.call)
    assert workers.called == [(0, 1, 2)]
    reporter.looked(workers.call)
    assert workers.called == [(0, 1, 2)]


def test_at_an_orderly_end_nobody_is_asked_for_a_last_state(board: FakeBoard) -> None:
    reporter, workers = Reporter(board, "g"), Workers()
    reporter.looked(workers.call)
    reporter.ends(workers.call)
    assert workers.called == []


def test_after_a_death_all_others_are_asked_and_those_that_are_dead_too_are_told(board: FakeBoard) -> None:
    reporter, workers = Reporter(board, "g"), Workers({2: ActorDiedError()})
    reporter.failed(1, ActorDiedError())
    reporter.failed(0, RuntimeError("Connection closed by peer"))
    reporter.ends(workers.call)
    assert workers.called == [(0, 2)]
    assert [(post.rank, post.is_death) for post in board.posts] == [(1, True), (0, False), (2, True)]


def test_a_rank_that_only_could_not_leave_is_not_told_as_lost(board: FakeBoard) -> None:
    failed = RayTaskError("leave_last_state", "a traceback", RuntimeError("no board"))
    reporter, workers = Reporter(board, "g"), Workers({2: failed})
    reporter.failed(1, ActorDiedError())
    reporter.ends(workers.call)
    assert [post.rank for post in board.posts if isinstance(post, Lost)] == [1]
