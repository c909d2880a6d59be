"""A store is tried out before anybody trusts it: what it breaks is named, and nothing of the trial stays."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from checkpointing.stores.contract import (
    Buffer,
    Conflict,
    Denied,
    Missing,
    Store,
    Unavailable,
    Undecided,
)
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from checkpointing.stores.probing import StoreFacts, examine, marker, num_winners

DEADLINE_S = 20


class OddStore(MemoryStore):
    """Keeps the contract, but for what each of the odd ones below does differently."""


class Overwrites(OddStore):
    def create(self, name: str, data: Buffer) -> None:
        self.put(name, data)


class ReadsStale(OddStore):
    """As a cache between us and the objects does."""

    def put(self, name: str, data: Buffer) -> None:
        if name not in self.list("probe"):
            super().put(name, data)


class ListsNothing(OddStore):
    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        return iter(())


class CutsOff(OddStore):
    def put(self, name: str, data: Buffer) -> None:
        super().put(name, bytes(data)[: 2**20])


class ForbidsDeleting(OddStore):
    def delete(self, name: str) -> None:
        raise Denied(f"store: {name}: access denied")


class ForbidsWriting(OddStore):
    def probe(self) -> None:
        raise Denied("store: access denied")


class BreaksDown(OddStore):
    def get_range(self, name: str, start: int, into: memoryview) -> int:
        raise Unavailable("store: slow down")


class Hangs(OddStore):
    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()

    def get(self, name: str) -> bytes:
        self.release.wait(DEADLINE_S)
        return super().get(name)


class Races(OddStore):
    """Of those who create one name at once, each gets another of the answers."""

    def __init__(self, *answers: Exception | None) -> None:
        super().__init__()
        self._answers = [*answers]

    def create(self, name: str, data: Buffer) -> None:
        if answer := self._answers.pop():
            raise answer


class Cuts(OddStore):
    """Breaks one promise after the other, each only for what is asked of it by itself."""

    def create(self, name: str, data: Buffer) -> None:
        super().create(name, data) if "verbs" not in name else self.put(name, data)

    def get(self, name: str) -> bytes:
        return b"" if "verbs" in name else super().get(name)

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        return super().get_range(name, start, into) - ("verbs" in name)

    def size(self, name: str) -> int:
        return super().size(name) + 1

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        return (name for name in super().list(prefix, after=after) if "verbs" not in name)


def left(store: Store) -> list[str]:
    return list(store.list("probe"))


@pytest.mark.parametrize("make", [lambda _: MemoryStore(), LocalStore])
def test_a_store_that_keeps_its_contract_is_measured_and_left_as_it_was(
    make: Callable[[Path], Store], tmp_path: Path
) -> None:
    store = make(tmp_path / "store")
    store.put("probe/of-somebody-else/small-0", b"theirs")
    facts = examine(store, deadline_s=DEADLINE_S)
    assert (facts.failed, facts.winners, facts.reads_what_it_wrote, facts.large_is_whole) == (
        None,
        1,
        True,
        True,
    )
    assert facts.left_behind == ()
    assert len(facts.verbs) == 15
    assert {answer.refused for answer in facts.verbs} == {""}
    assert all(answer.took_s > 0 for answer in facts.verbs)
    assert left(store) == ["probe/of-somebody-else/small-0"]
    rates = (facts.put_s, facts.get_s, facts.write_bytes_per_s, facts.read_bytes_per_s)
    assert all(rate is not None and rate > 0 for rate in rates)
    assert (facts.free_bytes is not None) == isinstance(store, LocalStore)


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        (Overwrites(), {"winners": 8}),
        (ReadsStale(), {"reads_what_it_wrote": False}),
        (ListsNothing(), {"reads_what_it_wrote": False}),
        (CutsOff(), {"large_is_whole": False}),
    ],
)
def test_what_a_store_breaks_is_seen_and_nothing_else(store: Store, expected: dict[str, object]) -> None:
    facts = examine(store, deadline_s=DEADLINE_S)
    good: dict[str, object] = {"winners": 1, "reads_what_it_wrote": True, "large_is_whole": True}
    assert {name: getattr(facts, name) for name in good} == good | expected
    assert facts.failed is None


def test_without_permission_it_says_so_and_stops() -> None:
    facts = examine(ForbidsWriting(), deadline_s=DEADLINE_S)
    assert replace(facts, verbs=()) == StoreFacts(
        url="memory:", failed="first object: store: access denied", denied=True
    )


def test_each_operation_that_is_wrong_is_named_though_others_before_it_were() -> None:
    store = Cuts()
    facts = examine(store, deadline_s=DEADLINE_S)
    assert facts.failed is None
    assert {answer.verb: answer.refused for answer in facts.verbs if answer.refused} == {
        "create what exists": "store: an object was replaced that was there already",
        "get": "store: get returns other bytes than were put",
        "get a range": "store: a range has other bytes than were put",
        "get from the end on": "store: a range has other bytes than were put",
        "get what is missing": "store: an object was read that is not there",
        "size": "store: the size is not that of what was put",
        "list": "store: what was put is not listed",
        "list after a name": "store: what was put is not listed",
    }
    assert left(store) == []


def test_a_store_that_is_away_is_not_asked_for_each_operation() -> None:
    assert examine(BreaksDown(), deadline_s=DEADLINE_S).verbs == ()


def test_a_file_in_the_way_of_the_store_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("in the way")
    facts = examine(LocalStore(tmp_path / "store"), deadline_s=DEADLINE_S)
    assert facts.failed is not None
    assert "can't be written" in facts.failed


def test_who_got_neither_yes_nor_no_has_not_won_a_race() -> None:
    taken, unsure = Conflict("store: exists already"), Undecided("store: 409 ConditionalRequestConflict")
    assert num_winners(Races(taken, None, unsure, unsure), "probe/a", 4) == 1
    assert num_winners(Races(None, None, unsure, taken), "probe/a", 4) == 2
    assert num_winners(Races(taken, taken, taken, taken), "probe/a", 4) == 0


def test_a_store_that_is_away_during_a_race_says_so() -> None:
    with pytest.raises(Unavailable, match="slow down"):
        num_winners(Races(None, Conflict(""), Unavailable("store: slow down")), "probe/a", 3)


def test_who_broke_off_has_not_won_a_race() -> None:
    with pytest.raises(RuntimeError, match="can't start new thread"):
        num_winners(Races(None, RuntimeError("can't start new thread"), Conflict("")), "probe/a", 3)


def test_what_may_not_be_deleted_is_named_where_it_could_be_written() -> None:
    store = ForbidsDeleting()
    facts = examine(store, deadline_s=DEADLINE_S)
    assert facts.failed is not None
    assert facts.failed.startswith("read after write: ")
    assert facts.denied
    assert set(facts.left_behind) < set(left(store))
    assert len(facts.left_behind) == 2
    assert {answer.verb: answer.refused for answer in facts.verbs if answer.refused} == {
        "delete": "store: access denied",
        "delete what is gone": "store: access denied",
    }


def test_a_store_that_breaks_down_on_the_way_is_cleaned_up_all_the_same() -> None:
    store = BreaksDown()
    facts = examine(store, deadline_s=DEADLINE_S)
    assert facts.failed == "large object: store: slow down"
    assert not facts.denied
    assert (facts.winners, facts.write_bytes_per_s) == (1, None)
    assert left(store) == []


def test_a_store_that_hangs_is_left_at_the_deadline_with_what_is_known_by_then() -> None:
    store = Hangs()
    facts = examine(store, deadline_s=0.2)
    store.release.set()
    assert replace(facts, free_bytes=None) == StoreFacts(
        url="memory:", winners=1, failed="read after write: no answer within 0.2 s"
    )


def test_a_marker_is_there_for_its_block_alone() -> None:
    store = MemoryStore()
    with marker(store) as (name, data):
        assert store.get(name) == data
    with pytest.raises(Missing):
        store.get(name)
