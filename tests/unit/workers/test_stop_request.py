"""That a run is to stop or to move on: who asks, which request counts, and what becomes of the attempt."""

import os
import signal
import threading
from collections.abc import Iterator
from itertools import permutations

import pytest

from checkpointing.generations.repository import Repository
from checkpointing.log.history import Stop
from checkpointing.stores.contract import Unavailable
from checkpointing.stores.memory import MemoryStore
from jobs.execution.messages import Heartbeat
from jobs.execution.outcomes import Cancelled, Completed, Failed, LastWord, Outcome, StoreAway, crashed
from jobs.launch.ray_train.stop_listener import hearing
from jobs.runs.stop_signals import StopSignals
from jobs.training.task.events import Ended, RunEvent, Withdrawn
from jobs.training.task.stop_request import Aim, StopRequest, aim_of, strength, stronger

MOVE_ON = StopRequest(aim="move on", why="draining: n1")
STOP = StopRequest(aim="stop", why="Ctrl-C")
DEADLINE_S = 20.0
SOON_S = 0.005


@pytest.fixture
def stop_signals() -> Iterator[StopSignals]:
    # These tests may have been started by nohup.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with StopSignals(look_every_s=SOON_S, ask_every_s=SOON_S) as found:
            yield found
    finally:
        signal.signal(signal.SIGHUP, before)


class Announced:
    """What was said, and a way to wait until something is."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._is_told = threading.Event()

    def __call__(self, text: str) -> None:
        self.texts.append(text)
        self._is_told.set()

    def wait(self) -> bool:
        return self._is_told.wait(DEADLINE_S)


class AskedStore(MemoryStore):
    """Says when it was listed often enough since ``watch``; the first ``num_refusals`` of them it refuses."""

    def __init__(self, num_refusals: int = 0) -> None:
        super().__init__()
        self._num_refusals = num_refusals
        self._num_lists: int | None = None
        self._is_asked = threading.Event()

    def watch(self) -> None:
        self._num_lists = 0

    def was_asked(self) -> bool:
        return self._is_asked.wait(DEADLINE_S)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        if self._num_lists is not None:
            self._num_lists += 1
            if self._num_lists > 3:
                self._is_asked.set()
            if self._num_lists <= self._num_refusals:
                raise Unavailable("the store is away")
        return super().list(prefix, after=after)


def test_in_whatever_order_ranks_are_asked_stopping_outweighs_moving_on_and_that_nothing() -> None:
    stop_requests: list[StopRequest | None] = [None, MOVE_ON, STOP]
    assert sorted(stop_requests, key=strength) == stop_requests
    for one, other in permutations(stop_requests, 2):
        assert stronger(one, other) == max(one, other, key=strength)


def test_of_two_that_wish_the_same_the_first_is_named() -> None:
    assert stronger(STOP, StopRequest(aim="stop", why="SIGTERM")) is STOP


@pytest.mark.parametrize("stop_request", [None, MOVE_ON, STOP])
def test_an_aim_survives_the_number_that_ranks_exchange(stop_request: StopRequest | None) -> None:
    expected: Aim | None = stop_request.aim if stop_request else None
    assert aim_of(strength(stop_request)) == expected


@pytest.mark.parametrize(
    ("number", "why"),
    [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGHUP")],
)
def test_the_first_signal_is_a_wish(number: int, why: str, stop_signals: StopSignals) -> None:
    os.kill(os.getpid(), number)
    assert stop_signals.stop_request() == StopRequest(aim="stop", why=why)


def test_the_second_ctrl_c_ends_what_goes_on_at_once(stop_signals: StopSignals) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_a_launcher_that_passes_on_what_its_processes_got_themselves_interrupts_nothing(
    stop_signals: StopSignals,
) -> None:
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    assert stop_signals.stop_request() == StopRequest(aim="stop", why="SIGTERM")


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.stop_request() is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("is_end", [True, False])
def test_afterwards_signals_are_whose_they_were(is_end: bool) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with StopSignals(is_end=is_end):
        assert [signal.getsignal(number) for number in numbers] != before
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_was_asked_to_stop_and_is_at_its_end_may_be_asked_again(number: signal.Signals) -> None:
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        with StopSignals(is_end=True):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), number)
        assert signal.getsignal(number) is not before[number]
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def test_waiting_ends_with_a_wish(stop_signals: StopSignals) -> None:
    assert stop_signals.pause(SOON_S) is None
    stop_signals.hear(STOP)
    assert stop_signals.pause(DEADLINE_S) == STOP


def test_what_somebody_else_asks_of_the_run_is_heard_through_its_log_even_after_an_outage(
    stop_signals: StopSignals,
) -> None:
    store, announced = AskedStore(num_refusals=2), Announced()
    repository = Repository(store, "r")
    stop_signals.began(repository.take_over("me"))
    repository.append(Stop())
    store.watch()
    stop_signals.listen(store, "r", announced)
    assert announced.wait()
    assert stop_signals.stop_request() == StopRequest(aim="stop", why="longhaul stop")
    assert announced.texts == [
        "longhaul stop: it saves and ends at the next step; Ctrl-C twice ends it at once"
    ]


def test_who_no_longer_listens_announces_nothing_and_still_heeds_signals(
    stop_signals: StopSignals,
) -> None:
    store, announced = AskedStore(), Announced()
    Repository(store, "r").take_over("me")
    store.watch()
    stop_signals.listen(store, "r", announced)
    assert store.was_asked()
    stop_signals.stop_listening()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop_signals.stop_request() == StopRequest(aim="stop", why="SIGTERM")
    assert "longhaul-stop-signals" not in [thread.name for thread in threading.enumerate()]
    assert announced.texts == []


def test_a_signal_is_announced_also_while_the_store_does_not_answer(stop_signals: StopSignals) -> None:
    asked, answers, announced = threading.Event(), threading.Event(), Announced()

    class Silent(MemoryStore):
        def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
            asked.set()
            assert answers.wait(DEADLINE_S)
            return super().list(prefix, after=after)

    stop_signals.listen(Silent(), "r", announced)
    assert asked.wait(DEADLINE_S)
    os.kill(os.getpid(), signal.SIGTERM)
    is_announced = announced.wait()
    answers.set()
    assert is_announced


def test_a_wish_of_an_earlier_attempt_or_for_a_later_one_is_not_this_drivers(
    stop_signals: StopSignals,
) -> None:
    store, announced = AskedStore(), Announced()
    repository = Repository(store, "r")
    repository.take_over("before")
    repository.append(Stop())
    stop_signals.began(repository.take_over("me"))
    repository.take_over("after")
    repository.append(Stop())
    store.watch()
    stop_signals.listen(store, "r", announced)
    assert store.was_asked()
    assert (stop_signals.stop_request(), announced.texts) == (None, [])
    stop_signals.began(repository.view.term)
    assert announced.wait()


def test_a_rank_hears_a_wish_and_then_a_stronger_one_and_never_less() -> None:
    said: list[StopRequest | None] = [None, MOVE_ON, None, STOP, MOVE_ON, None]
    is_done = threading.Event()

    def ask() -> StopRequest | None:
        if not said:
            is_done.set()
            return None
        return said.pop(0)

    with hearing(ask, interval_s=SOON_S) as stop_request:
        assert is_done.wait(DEADLINE_S)
        assert stop_request() == STOP


def test_a_rank_whose_question_got_lost_asks_again() -> None:
    answers: list[StopRequest | Exception] = [MOVE_ON, ConnectionError("no answer"), STOP]
    is_done = threading.Event()

    def ask() -> StopRequest | None:
        if not answers:
            is_done.set()
            return None
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    with hearing(ask, interval_s=SOON_S) as stop_request:
        assert is_done.wait(DEADLINE_S)
        assert stop_request() == STOP


def end(*, stop_request: StopRequest | None = None, problem: str | None = None) -> Ended:
    return Ended(step=4, loss=1.0, generation="g", stop_request=stop_request, problem=problem)


@pytest.mark.parametrize(
    "told", [[], [end()], [end(stop_request=STOP)], [end(stop_request=STOP, problem="store away")]]
)
def test_an_attempt_that_is_done_or_stopped_has_ended_well(told: list[RunEvent]) -> None:
    heard: list[RunEvent | Heartbeat] = []
    last = LastWord(heard.append)
    for one in told:
        last.hear(one)
    assert last.judge(Completed(pointer="g")) == Completed(pointer="g")
    assert heard == told


@pytest.mark.parametrize(
    "told",
    [
        end(stop_request=MOVE_ON),
        end(stop_request=MOVE_ON, problem="store away"),
        Withdrawn(stop_request=MOVE_ON),
    ],
)
def test_an_attempt_that_moves_on_was_preempted(told: RunEvent) -> None:
    last = LastWord(lambda _: None)
    last.hear(told)
    outcome = last.judge(Completed())
    assert isinstance(outcome, Failed)
    assert (outcome.reason, outcome.cause) == ("draining: n1", "preempted")


def test_an_attempt_that_was_asked_to_stop_before_it_began_has_nothing_to_judge() -> None:
    last = LastWord(lambda _: None)
    last.hear(Withdrawn(stop_request=STOP))
    assert last.judge(Completed()) == Cancelled(stop_request=STOP)


@pytest.mark.parametrize(
    "outcome", [crashed("boom", "error"), StoreAway(reason="away"), Cancelled(stop_request=STOP)]
)
def test_what_went_wrong_in_the_end_counts_more_than_what_was_told_before(outcome: Outcome) -> None:
    last = LastWord(lambda _: None)
    last.hear(end(stop_request=MOVE_ON))
    assert last.judge(outcome) == outcome
