"""The commit log: one winner per number, fenced writers, few requests, and records that notice damage."""

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.errors import Corrupt, Fenced
from checkpointing.format.manifest import term_of
from checkpointing.generations.repository import generation_name
from checkpointing.log.codec import LogRecord, decode, encode, seal, unseal
from checkpointing.log.history import (  # fmt: skip
    Commit,
    Entry,
    Finish,
    Fresh,
    Lease,
    Load,
    LogView,
    Pin,
    Quarantine,
    Resumed,
    Stop,
    Stopped,
    Tombstone,
    Unpin,
    Verified,
    after,
)
from checkpointing.log.log import Log, read_hint
from checkpointing.stores.contract import Buffer, StoreError, Unavailable
from checkpointing.stores.memory import MemoryStore
from tests.faults import FaultyStore, PowerCut
from tests.unit.small_generations import generation, good, view_of

SLOT = "runs/r/log/{:012d}.json"
ONE_OF_EACH: tuple[Entry, ...] = (
    Lease(owner="a"),
    Commit(generation=generation(1, metrics={"val_loss": 1.5}, epoch_end=1)),
    Verified(name="g"),
    Pin(name="g"),
    Unpin(name="g"),
    Quarantine(name="g", reason="why"),
    Tombstone(names=("g", "h")),
    Load(name="g"),
    Resumed(name="g"),
    Stop(),
    Stopped(step=7, why="asked to"),
    Finish(step=7),
    Fresh(),
)


class DeafStore(MemoryStore):
    """Loses the answers to ``create`` that are numbered in ``loses``: it landed, and nobody was told."""

    def __init__(self, *loses: int) -> None:
        super().__init__()
        self._loses = loses
        self._numbers = count(1)

    def create(self, name: str, data: Buffer) -> None:
        super().create(name, data)
        if next(self._numbers) in self._loses:
            raise Unavailable("the answer got lost")


class RepeatingStore(MemoryStore):
    """Sends every ``create`` twice, as a client does whose first answer got lost."""

    def create(self, name: str, data: Buffer) -> None:
        super().create(name, data)
        super().create(name, data)


def test_a_new_log_is_empty() -> None:
    log = Log(MemoryStore(), "r")
    assert (log.read(), log.number) == (LogView(), 0)


def test_what_was_appended_is_read_by_others() -> None:
    store = MemoryStore()
    log = Log(store, "r")
    log.lease("a")
    for entry in good(1):
        log.append(entry, term=1)
    other = Log(store, "r")
    assert other.read() == log.view == view_of(Lease(owner="a"), *good(1))
    assert other.number == 3


def test_the_records_tell_everything_in_order() -> None:
    log = Log(MemoryStore(), "r", clock=lambda: 5.0)
    for entry in ONE_OF_EACH:
        log.append(entry)
    records = list(log.records())
    assert [record.entry for record in records] == list(ONE_OF_EACH)
    assert [record.number for record in records] == list(range(1, len(ONE_OF_EACH) + 1))
    assert {record.written_s for record in records} == {5.0}


def test_a_writer_is_fenced_by_a_later_lease_at_its_very_next_append() -> None:
    store = MemoryStore()
    old, new = Log(store, "r"), Log(store, "r")
    term = old.lease("old")
    new.lease("new")
    before = list(store.list("runs"))
    with pytest.raises(Fenced, match="term 1 is over: new took the run over"):
        old.append(Commit(generation=generation(1)), term=term)
    assert list(store.list("runs")) == before


def test_what_tools_write_only_means_taking_the_next_number() -> None:
    store = MemoryStore()
    writer, tool = Log(store, "r"), Log(store, "r")
    term = writer.lease("a")
    tool.read()
    tool.append(Stop())
    tool.append(Pin(name="g"))
    writer.append(Commit(generation=generation(1)), term=term)
    assert writer.number == 4
    assert writer.view.stop_asked
    assert tool.read() == writer.view


def test_an_entry_is_decided_anew_after_each_lost_race() -> None:
    store = MemoryStore()
    writer, tool = Log(store, "r"), Log(store, "r")
    term = writer.lease("a")
    name = generation(1).name
    writer.append(Commit(generation=generation(1)), term=term)
    tool.read()
    seen: list[LogView] = []

    def give_up_what_is_not_pinned(view: LogView) -> Entry | None:
        if not seen:
            tool.append(Pin(name=name))  # in between
        seen.append(view)
        found = view.generation(name)
        return Tombstone(names=(name,)) if found and not found.is_pinned else None

    assert writer.decide(give_up_what_is_not_pinned, term=term).generation(name) is not None
    assert len(seen) == 2
    assert writer.number == 3


def test_a_lost_answer_and_a_retry_by_the_store_is_no_lost_race() -> None:
    log = Log(RepeatingStore(), "r")
    assert log.lease("a") == 1
    log.append(Commit(generation=generation(1)), term=1)
    assert [type(record.entry) for record in log.records()] == [Lease, Commit]


def test_appending_again_after_a_lost_answer_is_right() -> None:
    store = DeafStore(2)
    log = Log(store, "r")
    log.lease("a")
    with pytest.raises(Unavailable):
        log.append(Commit(generation=generation(1)), term=1)
    log.append(Commit(generation=generation(1)), term=1)
    assert len(Log(store, "r").read().generations) == 1


@pytest.mark.parametrize("entry", ONE_OF_EACH, ids=lambda entry: type(entry).__name__)
def test_what_is_kept_is_the_same_if_an_entry_is_folded_in_twice(entry: Entry) -> None:
    once = after(view_of(Lease(owner="a"), *good(1), *good(2)), entry)
    assert after(once, entry).generations == once.generations


@pytest.mark.parametrize("num_records", [1, 2, 1500])
def test_the_newest_is_found_in_three_requests_however_long_the_log_is(num_records: int) -> None:
    store = FaultyStore(MemoryStore())
    log = Log(store, "r")
    for _ in range(num_records):
        log.append(Stop())
    store.calls.clear()
    reader = Log(store, "r")
    reader.read()
    assert reader.number == num_records
    assert len(store.calls) == 3


def test_with_its_hint_a_long_log_is_not_listed() -> None:
    listed: list[str] = []

    class Listing(MemoryStore):
        def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
            found = [*super().list(prefix, after=after)]
            listed.extend(found)
            return iter(found)

    store = Listing()
    log = Log(store, "r")
    for _ in range(100):
        log.append(Stop())
    store.put("runs/r/hint.json", b'{"number": 98}')
    reader = Log(store, "r")
    reader.read()
    assert reader.number == 100
    # The record that the hint names too, so that no further request asks whether it is there.
    assert sorted(listed) == [SLOT.format(98), SLOT.format(99), SLOT.format(100)]


def test_appending_to_an_undisturbed_log_is_one_request_and_one_for_the_hint() -> None:
    store = FaultyStore(MemoryStore())
    log = Log(store, "r")
    log.lease("a")
    store.calls.clear()
    log.append(Stop(), term=1)
    assert store.calls == [f"create {SLOT.format(2)}", "put runs/r/hint.json"]


def test_what_an_older_version_would_take_for_damage_is_written_where_it_is_set_alone() -> None:
    record = LogRecord(
        number=1, id="i", written_s=1.0, entry=Lease(owner="a"), view=view_of(Lease(owner="a"))
    )
    assert unseal(encode(record))["entry"] == {"owner": "a"}
    entry = Lease(owner="a", term=3, is_fresh=True)
    assert unseal(encode(replace(record, entry=entry)))["entry"] == {
        "owner": "a",
        "term": 3,
        "is_fresh": True,
    }


@pytest.mark.parametrize("entry", [Pin(name="b"), None])
def test_who_soon_appends_again_leaves_one_hint_for_both(entry: Pin | None) -> None:
    store = MemoryStore()
    log = Log(store, "r")
    log.append(Lease(owner="me"))
    before = read_hint(store, "r")
    log.append(Pin(name="a"), hint_later=True)
    assert read_hint(store, "r") == before
    log.decide(lambda view: entry)
    assert read_hint(store, "r").number == log.number == (3 if entry else 2)


@pytest.mark.parametrize(
    "hint",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"number": "3"}',
        b'{"number": -1}',
        b'{"number": 2}',
        b'{"number": 99}',
        b'{"number": 9e99}',
        b"[" * 100_000,
        b"\xff",
    ],
    ids=lambda hint: hint[:20].decode(errors="replace"),
)
def test_a_wrong_hint_only_costs_time(hint: bytes) -> None:
    store = MemoryStore()
    log = Log(store, "r")
    for _ in range(4):
        log.append(Stop())
    store.put("runs/r/hint.json", hint)
    reader = Log(store, "r")
    reader.read()
    assert reader.number == 4


def test_a_hint_that_cannot_be_written_does_not_undo_the_append() -> None:
    class NoHint(MemoryStore):
        def put(self, name: str, data: Buffer) -> None:
            raise Unavailable("no")

    store = NoHint()
    Log(store, "r").lease("a")
    assert Log(store, "r").read().owner == "a"


@pytest.mark.parametrize("damage", [b"", b"{}", None], ids=["emptied", "no record", "another record"])
def test_a_damaged_newest_record_counts_as_the_start_of_an_attempt(damage: bytes | None) -> None:
    store = MemoryStore()
    log = Log(store, "r")
    log.lease("a")
    for entry in good(1):
        log.append(entry, term=1)
    store.put(SLOT.format(3), store.get(SLOT.format(2)) if damage is None else damage)
    view = Log(store, "r").read()
    assert (view.term, view.num_lost) == (2, 1)
    assert [found.is_verified for found in view.generations] == [False]
    with pytest.raises(Fenced):  # It will find out when it reads on.
        Log(store, "r").lease("b")
        log.append(Stop(), term=1)


def test_a_log_all_of_whose_records_are_damaged_says_how_many_it_lost() -> None:
    store = MemoryStore()
    log = Log(store, "r")
    for number in range(1, 6):
        log.append(Stop())
        store.put(SLOT.format(number), b"damaged")
    reader = Log(store, "r")
    assert (reader.read().num_lost, reader.number) == (5, 5)
    assert reader.append(Stop()).num_lost == 5
    assert Log(store, "r").read().num_lost == 5


def test_a_term_is_never_given_twice_whatever_is_damaged() -> None:
    rng = random.Random(7)
    store = MemoryStore()
    terms = []
    for number in range(1, 40):
        log = Log(store, "r")
        terms.append(log.lease(f"owner {number}"))
        if rng.random() < 0.3:
            store.put(SLOT.format(log.number), b"damaged")
    assert terms == sorted(set(terms))


def test_every_flipped_bit_of_a_record_is_noticed() -> None:
    data = encode(_record(Commit(generation=generation(1))))
    assert decode(data, 3).entry == Commit(generation=generation(1))
    for mutated in _flipped(data):
        with pytest.raises(Corrupt):
            decode(mutated, 3)


@pytest.mark.parametrize("entry", ONE_OF_EACH, ids=lambda entry: type(entry).__name__)
def test_every_entry_comes_back_as_it_was_written(entry: Entry) -> None:
    record = _record(entry)
    assert decode(encode(record), 3) == record
    assert json.loads(encode(record))["body"]["kind"] == type(entry).__name__.lower()


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "unknown"},
        {"kind": ["lease"]},
        {"entry": {"owner": "a", "more": 1}},
        {"entry": None},
        {"view": {"term": "1"}},
        {"view": {"loads": 3}},
        {"view": {"generations": [{"name": "g"}]}},
        {"view": {"surprise": 1}},
        {"view": []},
        {"number": 4},
        {"number": None},
    ],
    ids=str,
)
def test_a_record_that_is_whole_but_says_nonsense_is_corrupt(change: dict[str, object]) -> None:
    body = unseal(encode(_record(Lease(owner="a"))))
    with pytest.raises(Corrupt):
        decode(seal(body | change), 3)


NO_COUNTS = (None, True, "7", 7.0, -1, 10**19, [[]])
NO_TIMES = (None, True, "7", -1.0, 1e12, float("inf"), 10**400, [[]])
NO_TEXTS = (None, True, 7, [[]], {})
NO_METRICS = (None, 7, [], {"val_loss": None}, {"val_loss": "7"}, {"val_loss": 10**400}, {"val_loss": True})
WRONG_FIELDS = {
    "written_s": NO_TIMES, "id": NO_TEXTS, "entry.reason": NO_TEXTS, "entry.name": NO_TEXTS,
    "entry.is_poison": (None, 1, "x"), "view.term": NO_COUNTS, "view.owner": NO_TEXTS,
    "view.stop_asked": (None, 1, "x"), "view.finished_step": NO_COUNTS[1:], "view.loads": ({"g": "7"}, 7),
    "view.generations.0.step": NO_COUNTS, "view.generations.0.committed_s": NO_TIMES,
    "view.generations.0.num_bytes": NO_COUNTS, "view.generations.0.manifest_digest": NO_TEXTS,
    "view.generations.0.epoch_end": NO_COUNTS[1:], "view.generations.0.metrics": NO_METRICS,
    "view.generations.0.is_verified": (None, 1, "x"), "view.generations.0.quarantined": (True, 7, {}),
}  # fmt: skip


@pytest.mark.parametrize("place", WRONG_FIELDS)
def test_a_field_of_another_type_is_damage_and_no_error_where_it_is_used(place: str) -> None:
    """Whoever may write to the store could end each command, and each start, with a traceback."""
    entry = Quarantine(name=generation(1).name, reason="why")
    record = LogRecord(number=3, id="i", written_s=1.0, entry=entry, view=view_of(*good(1)))
    decode(encode(record), 3)
    for wrong in WRONG_FIELDS[place]:
        body = unseal(encode(record))
        *names, last = place.split(".")
        holder: Any = body
        for name in names:
            holder = holder[int(name) if name.isdigit() else name]
        assert last in holder
        holder[last] = wrong
        with pytest.raises(Corrupt):
            decode(_sealed(body), 3)


@pytest.mark.parametrize("planted", [10**9 + 1, 10**9 + 2, 10**12, 2**63 - 1])
@pytest.mark.parametrize("field", ["term", "life", "life_term", "num_lost", "loads"])
def test_no_number_that_somebody_planted_ends_what_is_appended_behind_it(field: str, planted: int) -> None:
    """The largest that is believed in record 2 is 10^9 + 1, and each record may add one."""
    store = MemoryStore()
    Log(store, "r").lease("a")
    lease = Lease(owner="b")
    body = unseal(encode(LogRecord(number=2, id="b", written_s=1.0, entry=lease, view=LogView(term=2))))
    body["view"][field] = {"g": planted} if field == "loads" else planted
    store.create(SLOT.format(2), seal(body))
    log = Log(store, "r")
    term = log.lease("c")
    assert (term == planted + 1) == (field == "term" and planted == 10**9 + 1)
    for entry in (Fresh(), Load(name="g"), Stop()):
        log.append(entry, term=term)
    assert term_of(generation_name(10, term, "s")) == term
    store.create(SLOT.format(log.number + 1), b"junk")
    assert Log(store, "r").lease("d") == term + 2


def test_records_that_are_gone_behind_the_largest_term_that_is_believed_end_no_start() -> None:
    store = MemoryStore()
    view = LogView(term=10**9)
    record = LogRecord(number=1, id="b", written_s=1.0, entry=Lease(owner="b"), view=view)
    store.create(SLOT.format(1), encode(record))
    store.put("runs/r/hint.json", json.dumps({"number": 1000}).encode())
    assert Log(store, "r").lease("c") == 10**9 + 1


@pytest.mark.parametrize(
    "entry",
    [
        Commit(generation=generation(1, num_bytes=2**63)),
        Commit(generation=generation(1, name="../x")),
        Commit(generation=generation(1, metrics={"val_loss": 10**400})),
        Stopped(step=-1, why="asked"),
    ],
)
def test_what_would_be_read_as_damage_is_not_written(entry: Entry) -> None:
    """All later records would repeat it in their views."""
    store = MemoryStore()
    log = Log(store, "r")
    log.lease("a")
    with pytest.raises(ValueError, match=r"num_bytes|generation|metrics|step"):
        log.append(entry)
    log.append(Pin(name="g"))
    assert (Log(store, "r").read(), log.number) == (log.view, 2)


def test_a_tombstone_of_what_is_no_name_is_damage() -> None:
    body = unseal(encode(_record(Tombstone(names=("g",)))))
    for wrong in ([7], [["g"]], [None]):
        with pytest.raises(Corrupt):
            decode(_sealed(body | {"entry": {"names": wrong}}), 3)


def _sealed(body: object) -> bytes:
    """Also of numbers that no writer of ours writes."""
    text = json.dumps(body).encode()
    return b'{"schema":1,"sha256":"%s","body":%s}' % (hashlib.sha256(text).hexdigest().encode(), text)


@pytest.mark.parametrize(
    "change", [{"name": "../../etc"}, {"name": "a/b"}, {"name": 1}, {"step": -1}, {"num_bytes": 1.5}], ids=str
)
def test_a_record_of_an_impossible_generation_is_corrupt(change: dict[str, object]) -> None:
    body = unseal(encode(_record(Commit(generation=generation(1)))))
    body["view"]["generations"][0] |= change
    with pytest.raises(Corrupt):
        decode(seal(body), 3)


def test_a_stop_is_the_present_attempts_and_the_next_one_knows_nothing_of_it() -> None:
    log = Log(MemoryStore(), "r")
    term = log.lease("a")
    log.append(Stop())
    asked = log.append(Stop())
    stopped = log.append(Stopped(step=7, why="asked to"), term=term)
    log.lease("b")
    assert (asked.stop_asked, asked.stopped_step) == (True, None)
    assert (stopped.stop_asked, stopped.stopped_step) == (True, 7)
    assert (log.view.stop_asked, log.view.stopped_step) == (False, None)


def test_versions_that_know_nothing_of_stops_read_all_records_but_those_that_tell_of_one() -> None:
    told = [unseal(encode(_record(entry)))["view"] for entry in (Stop(), Stopped(step=7, why="x"), Stop())]
    assert ["stopped_step" in view for view in told] == [False, True, False]


def test_an_impossible_step_of_a_stop_is_corrupt() -> None:
    body = unseal(encode(_record(Stopped(step=7, why="x"))))
    body["view"]["stopped_step"] = -7
    with pytest.raises(Corrupt):
        decode(seal(body), 3)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b"\xff\xfe"], ids=str)
def test_what_is_no_record_at_all_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode(data, 1)


def test_a_record_of_another_schema_is_named_as_such() -> None:
    data = seal({}).replace(b'"schema":1,', b'"schema":2,')
    with pytest.raises(Corrupt, match="schema 2; this version reads 1"):
        unseal(data)


@given(st.lists(st.sampled_from(["a", "b", "tool"]), max_size=30), st.randoms(use_true_random=False))
def test_whoever_appends_when_all_logs_agree_in_the_end(who: list[str], rng: random.Random) -> None:
    store = MemoryStore()
    logs = {name: Log(store, "r") for name in ("a", "b", "tool")}
    numbers = count(1)
    for name in who:
        if rng.random() < 0.3:
            logs[name].read()
        logs[name].append(Commit(generation=generation(next(numbers))))
    views = [log.read() for log in logs.values()]
    assert views[0] == views[1] == views[2]
    assert [found.number for found in views[0].generations] == list(range(1, len(who) + 1))


@pytest.mark.parametrize(
    ("call", "is_after", "is_done"), [(1, False, False), (1, True, True), (2, False, True), (2, True, True)]
)
def test_a_power_cut_during_an_append_leaves_it_done_or_not_done(
    call: int, is_after: bool, is_done: bool
) -> None:
    inner = MemoryStore()
    Log(inner, "r").lease("a")
    reads = FaultyStore(inner)
    Log(reads, "r").read()
    log = Log(FaultyStore(inner, cut_at=len(reads.calls) + call, after=is_after), "r")
    log.read()
    with pytest.raises(PowerCut):
        log.append(Stop(), term=1)
    assert Log(inner, "r").read().stop_asked is is_done


def _record(entry: Entry) -> LogRecord:
    return LogRecord(number=3, id="i", written_s=1.0, entry=entry, view=view_of(*good(1), entry))


def _flipped(data: bytes) -> Iterator[bytes]:
    for place in range(len(data)):
        for bit in range(8):
            mutated = bytearray(data)
            mutated[place] ^= 1 << bit
            yield bytes(mutated)


def test_what_a_damaged_record_repeats_of_itself_is_short() -> None:
    body = unseal(encode(_record(Lease(owner="a"))))
    with pytest.raises(Corrupt) as error:
        decode(seal(body | {"entry": {"x" * 50_000: 1}}), 3)
    assert len(str(error.value)) < 500


class CountingStore(MemoryStore):
    num_reads = 0

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        self.num_reads += 1
        assert self.num_reads < 100, "reads on and on"
        return super().get_range(name, start, into)


@pytest.mark.parametrize("is_hint_right", [True, False])
def test_junk_under_a_far_number_neither_ends_a_log_nor_uses_its_numbers_up(is_hint_right: bool) -> None:
    store = CountingStore()
    Log(store, "r").lease("a")
    store.create(SLOT.format(10**12 - 1), b"junk")
    if not is_hint_right:
        store.put("runs/r/hint.json", json.dumps({"number": 10**12 - 1}).encode())
    log = Log(store, "r")
    assert (log.read().term, log.number) == (1, 1)
    log.append(Pin(name="g"))
    assert log.number == 2


def test_records_that_are_gone_between_damaged_ones_count_without_being_asked_for() -> None:
    store = CountingStore()
    Log(store, "r").lease("a")
    store.create(SLOT.format(5000), b"junk")
    log = Log(store, "r")
    view = log.read()
    assert (view.term, view.num_lost, log.number) == (5000, 4999, 5000)


def test_a_whole_record_behind_damaged_ones_is_found_though_the_hint_names_these() -> None:
    store = MemoryStore()
    writer = Log(store, "r")
    term = writer.lease("a")
    for entry in good(1):
        writer.append(entry, term=term)
    for number in (4, 5):
        store.create(SLOT.format(number), b"junk")
    store.put("runs/r/hint.json", json.dumps({"number": 6, "term": 1}).encode())
    log = Log(store, "r")
    assert log.read().generations == writer.view.generations
    assert (log.view.num_lost, log.number) == (2, 5)


def test_what_no_reader_takes_is_not_written_and_what_makes_it_smaller_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    written = Log(store, "r")
    term = written.lease("a")
    for number in range(1, 9):
        written.append(Commit(generation=generation(number)), term=term)
    bound = max(len(store.get(SLOT.format(number))) for number in range(1, 10))
    monkeypatch.setattr("checkpointing.log.log.MOST_RECORD_BYTES", bound)
    with pytest.raises(
        StoreError, match=rf"of which at most {bound - bound // 64:,} are written; let fewer saves"
    ):
        written.append(Commit(generation=generation(9)), term=term)
    assert len(list(store.list("runs/r/log"))) == 9
    names = tuple(one.name for one in written.view.generations[:4])
    written.append(Tombstone(names=names), term=term)
    written.append(Commit(generation=generation(9)), term=term)
    assert Log(store, "r").read() == written.view
