"""A driver's words reach the store however long it was away, and hold nobody up."""

import threading

from checkpointing.stores.contract import Buffer
from checkpointing.stores.memory import MemoryStore
from jobs.run_progress.incident_outbox import IncidentOutbox
from reporting.recording.attempts import Incident, IncidentKind
from tests.unit.recorded import attempt
from tests.unit.results.test_recorder import AwayStore, rows, wait_until

ALARM = Incident(kind="alarm", text="stale checkpoint: for long")


class Stuck(MemoryStore):
    """Whoever writes to it waits until it ``goes_on``."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()
        self.num_writes = 0

    def create(self, name: str, data: Buffer) -> None:
        self.num_writes += 1
        self.goes_on.wait()
        super().create(name, data)


def told(store: MemoryStore) -> list[tuple[float, str]]:
    return [(row["happened_s"], row["kind"]) for row in rows(store, "incidents")]


def test_a_driver_leaves_several_words_of_one_attempt_and_none_hides_another() -> None:
    store = MemoryStore()
    words = IncidentOutbox(store)
    left: list[tuple[float, IncidentKind]] = [
        (5.0, "failure"),
        (5.0, "restart"),
        (5.1, "alarm"),
        (5.2, "alarm"),
    ]
    for now_s, kind in left:
        words.leave(attempt(), Incident(kind=kind), now_s=now_s)
    assert told(store) == left
    assert {row["rank"] for row in rows(store, "incidents")} == {-1}


def test_what_the_store_did_not_take_is_there_with_a_later_word_and_says_when_it_happened() -> None:
    store = AwayStore()
    store.is_away = True
    words = IncidentOutbox(store)
    words.leave(attempt(), ALARM, now_s=5.0)
    words.leave(attempt(term=2), Incident(kind="failure"), now_s=6.0)
    assert told(store) == []
    store.is_away = False
    words.leave(attempt(term=3), Incident(kind="restart"), now_s=7.0)
    assert told(store) == [(5.0, "alarm"), (6.0, "failure"), (7.0, "restart")]
    assert [row["term"] for row in rows(store, "incidents")] == [1, 2, 3]


def test_what_the_store_did_not_take_is_tried_once_more_when_the_driver_ends() -> None:
    store = AwayStore()
    store.num_failing = 1
    with IncidentOutbox(store) as words:
        words.leave(attempt(), ALARM, now_s=5.0)
        assert told(store) == []
    assert told(store) == [(5.0, "alarm")]


def test_a_word_that_landed_although_the_answer_got_lost_holds_no_other_up() -> None:
    store = AwayStore()
    store.num_lost = 1
    words = IncidentOutbox(store)
    words.leave(attempt(), ALARM, now_s=5.0)
    words.leave(attempt(), ALARM, now_s=6.0)
    assert told(store) == [(5.0, "alarm"), (6.0, "alarm")]


def test_a_store_that_never_answers_is_waited_for_by_one_alone_who_writes_all_once_it_does() -> None:
    store = Stuck()
    with IncidentOutbox(store, timeout_s=0.05) as words:
        for now_s in range(5):
            words.leave(attempt(), ALARM, now_s=now_s)
    assert store.num_writes == 1
    store.goes_on.set()
    wait_until(lambda: len(told(store)) == 5)


def test_a_driver_that_ends_waits_for_who_is_still_writing() -> None:
    store = Stuck()
    with IncidentOutbox(store) as words:
        threading.Thread(target=lambda: words.leave(attempt(), ALARM, now_s=5.0)).start()
        wait_until(lambda: store.num_writes == 1)
        threading.Timer(0.5, store.goes_on.set).start()
    assert told(store) == [(5.0, "alarm")]


def test_of_more_words_than_can_be_kept_the_oldest_go() -> None:
    store = AwayStore()
    store.num_failing = 3
    words = IncidentOutbox(store, most_unsent=2)
    for now_s in range(4):
        words.leave(attempt(), ALARM, now_s=now_s)
    assert told(store) == [(2.0, "alarm"), (3.0, "alarm")]
