"""Saves in the background: none holds up the training, none ends it, and none gets another one's memory."""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest

from checkpointing.format.manifest import Cut, FilePart
from checkpointing.generations.repository import Repository
from checkpointing.saving.local_tier import LocalTier
from checkpointing.saving.publishing import publisher
from checkpointing.saving.publishing.publisher import Publisher, SavingAttempt
from checkpointing.saving.save import KeptInMemory, Save, SaveFailed, SaveMemory, SaveNote, Tally, Upload
from checkpointing.saving.writer import Writer
from checkpointing.stores.contract import Buffer, Denied, Full, Store, Unavailable
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from tests.unit.small_generations import (
    HEADER,
    RUN,
    Letters,
    Memory,
    content,
    cut_of,
    file_of,
    load,
    load_from,
    names,
    save_of,
)

DEADLINE_S = 20.0


class GatedStore(MemoryStore):
    """Calls whose name contains ``holds`` wait until ``open`` is set; ``reached`` tells that one waits."""

    def __init__(self) -> None:
        super().__init__()
        self.holds = ""
        self.open = threading.Event()
        self.reached = threading.Event()

    def put(self, name: str, data: Buffer) -> None:
        self._pass(f"put {name}")
        super().put(name, data)

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        self._pass(f"get_range {name}")
        return super().get_range(name, start, into)

    def _pass(self, call: str) -> None:
        if self.holds and self.holds in call:
            self.reached.set()
            assert self.open.wait(DEADLINE_S)


class DownStore(MemoryStore):
    """Away as long as ``is_down``."""

    is_down = True

    def put(self, name: str, data: Buffer) -> None:
        if self.is_down:
            raise Unavailable("the store is down")
        super().put(name, data)


class Bench:
    """A writer with all that it needs, on one rank; ``notes`` is what it told."""

    def __init__(
        self, store: Store, disk: LocalTier | None = None, memory: KeptInMemory | None = None
    ) -> None:
        self.repository = Repository(store, RUN)
        self.term = self.repository.take_over("me")
        self.tally = Tally()
        self.notes: list[SaveNote] = []
        self.rooms: Sequence[SaveMemory] = [_room(), _room()]
        attempt = SavingAttempt(rank=0, term=self.term, deadline_s=DEADLINE_S)
        publisher = Publisher(self.repository, Letters(), attempt, self.tally)
        self.writer = Writer(disk, publisher, self.tally, self.notes.append, memory)
        self.writer.start()
        self._number = 0

    def save(
        self,
        step: int,
        *,
        to_disk: bool = False,
        to_store: bool = True,
        to_memory: bool = False,
        epoch_end: int | None = None,
        timeout_s: float = 0.0,
    ) -> Cut | None:
        """What the training does: None where it had to skip."""
        is_alone = to_memory and not to_disk and not to_store
        room = self.writer.room(
            self.rooms, to_store=to_store, is_for_memory_alone=is_alone, timeout_s=timeout_s
        )
        if room is None:
            return None
        self._number += 1
        cut = replace(cut_of(step, term=self.term, number=self._number), epoch_end=epoch_end)
        room.data[:] = file_of(cut, 0)
        save = save_of(cut, room=room, to_disk=to_disk, to_store=to_store)
        self.writer.hand_over(replace(save, to_memory=to_memory))
        return cut

    def finish(self) -> None:
        assert self.writer.finish(DEADLINE_S)

    def problems(self) -> list[tuple[int, str, bool]]:
        return [(note.step, note.place, note.problem is not None) for note in self.notes]


def _room() -> SaveMemory:
    return Memory(memoryview(bytearray(len(HEADER) + len(content("", 1)))))


@pytest.fixture
def gated() -> Iterator[GatedStore]:
    store = GatedStore()
    yield store
    store.open.set()


def wait_for(event: threading.Event) -> None:
    assert event.wait(DEADLINE_S)


def test_an_epochs_end_counts_until_the_store_has_it_and_not_for_longer_than_asked(gated: GatedStore) -> None:
    bench = Bench(gated)
    cut = bench.save(10, epoch_end=1)
    assert cut is not None
    assert bench.writer.has_epochs_end(3600.0)
    assert not bench.writer.has_epochs_end(0.0)
    gated.open.set()
    bench.finish()
    assert not bench.writer.has_epochs_end(3600.0)
    gated.open.clear()
    bench.save(11)
    assert not bench.writer.has_epochs_end(3600.0)
    gated.open.set()
    bench.finish()


def test_a_save_arrives_at_both_places(tmp_path: Path) -> None:
    disk = LocalTier(tmp_path, RUN, 2)
    bench = Bench(MemoryStore(), disk)
    cut = bench.save(10, to_disk=True)
    bench.finish()
    assert cut is not None
    (found,) = bench.repository.view.generations
    manifest = bench.repository.manifest(found)
    for place in (disk.place(cut.generation), bench.repository.place(cut.generation)):
        assert load_from(manifest, [place]) == content(cut.generation, 1)
    assert bench.problems() == [(10, "disk", False), (10, "store", False)]
    assert bench.tally.durable_step == 10


def test_while_a_save_is_on_its_way_to_the_store_the_next_one_is_skipped(gated: GatedStore) -> None:
    bench = Bench(gated)
    gated.holds = "put runs/r/gen"
    assert bench.save(10) is not None
    wait_for(gated.reached)
    assert bench.save(20) is None
    gated.open.set()
    bench.finish()
    assert bench.save(30) is not None
    bench.finish()
    assert [found.step for found in bench.repository.view.generations] == [10, 30]


def test_or_waited_for_if_the_training_wants_that(gated: GatedStore) -> None:
    bench = Bench(gated)
    gated.holds = "put runs/r/gen"
    bench.save(10)
    wait_for(gated.reached)
    threading.Timer(0.05, gated.open.set).start()
    assert bench.save(20, timeout_s=DEADLINE_S) is not None
    bench.finish()
    assert [found.step for found in bench.repository.view.generations] == [10, 20]


def test_a_slow_store_does_not_hold_up_the_disk(tmp_path: Path, gated: GatedStore) -> None:
    disk = LocalTier(tmp_path, RUN, 3)
    bench = Bench(gated, disk)
    gated.holds = "put runs/r/gen"
    bench.save(10, to_disk=True)
    wait_for(gated.reached)
    for step in (20, 30):
        assert bench.save(step, to_disk=True, to_store=False, timeout_s=DEADLINE_S) is not None
    assert bench.writer.room(bench.rooms, to_store=False, timeout_s=DEADLINE_S) is not None
    assert {cut.step for cut, _ in disk.inventory()} == {10, 20, 30}
    gated.open.set()
    bench.finish()


def test_memory_is_given_out_again_once_it_is_uploaded_and_not_before(
    tmp_path: Path, gated: GatedStore
) -> None:
    disk = LocalTier(tmp_path, RUN, 2)
    bench = Bench(gated, disk)
    bench.rooms = bench.rooms[:1]
    gated.holds = "put runs/r/gen"
    bench.save(10)
    wait_for(gated.reached)
    assert bench.save(20, to_disk=True, to_store=False) is None
    gated.holds = "get_range runs/r/gen"
    gated.reached.clear()
    gated.open.set()
    gated.open.clear()
    wait_for(gated.reached)  # Uploaded, but still read back.
    second = bench.save(20, to_disk=True, to_store=False, timeout_s=DEADLINE_S)
    gated.open.set()
    bench.finish()
    assert second is not None
    assert [found.step for found in bench.repository.view.generations if found.is_good] == [10]
    assert bench.rooms[0].data == file_of(second, 0)
    assert {cut.step for cut, _ in disk.inventory()} == {20}


def test_a_store_that_is_down_costs_saves_and_nothing_else(tmp_path: Path) -> None:
    store = DownStore()
    store.is_down = False
    disk = LocalTier(tmp_path, RUN, 9)
    bench = Bench(store, disk)
    for step, is_down in ((10, False), (20, True), (30, True), (40, False)):
        store.is_down = is_down
        assert bench.save(step, to_disk=True) is not None
        bench.finish()
    assert [note.step for note in bench.notes if note.problem] == [20, 30]
    assert all("the store is down" in note.problem for note in bench.notes if note.problem)
    assert [found.step for found in bench.repository.view.generations if found.is_good] == [10, 40]
    assert {cut.step for cut, _ in disk.inventory()} == {10, 20, 30, 40}
    assert (bench.tally.num_committed, bench.tally.num_failed, bench.tally.durable_step) == (2, 2, 40)


def test_a_disk_that_fails_does_not_keep_a_save_from_the_store(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    bench = Bench(MemoryStore(), LocalTier(tmp_path, RUN, 2))
    bench.save(10, to_disk=True)
    bench.finish()
    assert bench.problems() == [(10, "disk", True), (10, "store", False)]
    assert bench.tally.num_failed == 1
    (found,) = bench.repository.view.generations
    assert load(bench.repository, found) == content(found.name, 1)


class PanicException(BaseException):
    """As libraries in Rust raise it: no Exception."""


@pytest.mark.parametrize("surprise", [ZeroDivisionError, PanicException])
def test_what_nobody_thought_of_costs_one_save_too(tmp_path: Path, surprise: type[BaseException]) -> None:
    class Surprising(LocalTier):
        def keep(self, *args: object) -> None:
            raise surprise

    bench = Bench(MemoryStore(), Surprising(tmp_path, RUN, 2))
    for step in (10, 20):
        bench.save(step, to_disk=True)
        bench.finish()
    assert [note.problem for note in bench.notes if note.place == "disk"] == [surprise.__name__] * 2
    assert [found.step for found in bench.repository.view.generations] == [10, 20]


def test_one_who_cannot_be_told_does_not_end_the_saving() -> None:
    bench = Bench(MemoryStore())

    def deaf(note: SaveNote) -> None:
        bench.notes.append(note)
        raise BrokenPipeError

    publisher = Publisher(
        bench.repository, Letters(), SavingAttempt(rank=0, term=1, deadline_s=DEADLINE_S), bench.tally
    )
    bench.writer = Writer(None, publisher, bench.tally, deaf)
    bench.writer.start()
    for step in (10, 20):
        bench.save(step)
        bench.finish()
    assert [found.step for found in bench.repository.view.generations] == [10, 20]
    assert len(bench.notes) == 2


def test_a_writer_that_was_fenced_says_so_and_changes_nothing_that_counts() -> None:
    store = MemoryStore()
    bench = Bench(store)
    bench.save(10)
    bench.finish()
    later = Repository(store, RUN)
    later.take_over("later")
    records = {name: store.get(name) for name in store.list("runs/r/log")}
    for step in (20, 30):
        bench.save(step)
        bench.finish()
    assert bench.tally.is_fenced
    assert {name: store.get(name) for name in store.list("runs/r/log")} == records
    assert names(later.refresh().generations) == names(bench.repository.view.generations)
    (found,) = later.view.generations
    assert load(later, found) == content(found.name, 1)
    for name, objects in later.garbage().items():
        later.delete_objects(name, objects)
    left = {name.split("/")[3] for name in store.list("runs/r/gen")}
    assert left == {found.name}


def test_a_save_that_nobody_asked_for_anywhere_gives_its_memory_back() -> None:
    bench = Bench(MemoryStore())
    for step in (10, 20, 30):
        assert bench.save(step, to_store=False) is not None
    bench.finish()
    assert bench.notes == []


def test_waiting_for_the_end_has_an_end(gated: GatedStore) -> None:
    bench = Bench(gated)
    gated.holds = "put runs/r/gen"
    bench.save(10)
    assert not bench.writer.finish(0.05)


def test_the_digests_are_those_of_the_bytes_at_the_cut(tmp_path: Path) -> None:
    bench = Bench(LocalStore(tmp_path))
    cut = bench.save(10)
    bench.finish()
    assert cut is not None
    (found,) = bench.repository.view.generations
    assert load(bench.repository, found) == content(cut.generation, 1)


class Uncopied:
    """The memory of a rank whose copy failed."""

    def __init__(self, why: str = "the copy failed") -> None:
        self._why = why

    @property
    def data(self) -> memoryview:
        raise RuntimeError(self._why)


def problems_of_two(room: SaveMemory | None = None) -> list[str | None]:
    """What rank 1, which has ``room``, and then rank 0 tell of one save of both."""
    bench, letters = Bench(MemoryStore()), Letters()
    cut = cut_of(10, term=bench.term, number=1, world_size=2)
    for rank in (1, 0):
        attempt = SavingAttempt(rank=rank, term=bench.term, deadline_s=DEADLINE_S)
        publishing = Publisher(bench.repository, letters, attempt, bench.tally)
        bench.writer = Writer(None, publishing, bench.tally, bench.notes.append)
        bench.writer.start()
        bench.writer.hand_over(save_of(cut, rank, room=room if rank == 1 else None))
        bench.writer.finish(2 * DEADLINE_S)
    return [note.problem for note in bench.notes]


def test_rank_0_does_not_wait_for_a_rank_whose_copy_failed() -> None:
    assert problems_of_two(Uncopied()) == ["the copy failed", "rank 1 failed: the copy failed"]


@pytest.mark.parametrize(
    ("why", "told"),
    [(os.fsdecode(b"no disk at /\xff"), "no disk at /\\udcff"), ("", "RuntimeError")],
    ids=["a path that is no text", "no reason"],
)
def test_nor_for_one_whose_reason_is_no_text(why: str, told: str) -> None:
    _, problem = problems_of_two(Uncopied(why))
    assert problem == f"rank 1 failed: {told}"


@pytest.mark.parametrize(
    ("fails", "cause"),
    [("encode_receipt", "rank 1 failed: boom"), ("verify", "not verified, because rank 1 failed: boom")],
)
def test_nor_for_one_to_which_something_unthought_of_happens_later(
    fails: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(publisher, fails)

    def boom(*given: Any) -> Any:
        if any(isinstance(one, FilePart) and one.rank == 1 for one in given):
            raise PanicException("boom")
        return real(*given)

    monkeypatch.setattr(publisher, fails, boom)
    assert problems_of_two() == ["boom", cause]


def test_what_a_save_waited_for_after_the_cut_counts_too() -> None:
    bench = Bench(MemoryStore())
    save = save_of(cut_of(10, term=bench.term, number=1))
    bench.writer.hand_over(replace(save, blocked_s=0.25, waited_s=lambda: 0.5))
    bench.finish()
    assert [note.blocked_s for note in bench.notes] == [0.75]


def test_a_disk_that_fails_is_named_with_its_host_and_counts_again_once_a_save_arrives(
    tmp_path: Path,
) -> None:
    (tmp_path / "runs").write_text("in the way")
    bench = Bench(MemoryStore(), LocalTier(tmp_path, RUN, 2))
    bench.save(10, to_disk=True)
    bench.finish()
    assert bench.problems() == [(10, "disk", True), (10, "store", False)]
    assert f"on {gethostname()}: store: {tmp_path}" in str(bench.notes[0].problem)
    assert bench.writer.is_disk_failing
    (tmp_path / "runs").unlink()
    bench.save(20, to_disk=True)
    bench.finish()
    assert not bench.writer.is_disk_failing


def test_what_is_wrong_beside_a_save_is_told_and_fails_none(tmp_path: Path) -> None:
    class Denying(MemoryStore):
        def delete(self, name: str) -> None:
            raise Denied("store: 403 AccessDenied")

    store = Denying()
    bench = Bench(store, LocalTier(tmp_path, RUN, 2))
    bench.save(10)
    bench.finish()
    bench.repository.quarantine(bench.repository.view.generations[0].name, "by hand", term=bench.term)
    bench.save(20)
    bench.finish()
    assert bench.problems() == [(10, "store", False), (20, "store", False)]
    assert "could not be deleted" in str(bench.notes[1].finding)
    assert bench.tally.num_failed == 0


def test_an_upload_is_told_while_it_goes_on_and_when_it_is_done_and_not_once_it_has_failed() -> None:
    now, tally = iter((10.0, 14.0, 20.0)), Tally()
    assert tally.upload(0) is None
    with tally.uploading(7, 1000, now.__next__):
        assert tally.upload(12) == Upload(step=7, num_bytes=1000, took_s=2, is_done=False)
    for later in (15, 99):
        assert tally.upload(later) == Upload(step=7, num_bytes=1000, took_s=4, is_done=True)
    with pytest.raises(Unavailable), tally.uploading(8, 1000, now.__next__):
        raise Unavailable("away")
    assert tally.upload(99) is None


def test_a_rank_tells_of_its_upload_as_it_was() -> None:
    gate = GatedStore()
    gate.holds = "put runs/r/gen"
    bench = Bench(gate)
    bench.save(10)
    assert gate.reached.wait(DEADLINE_S)
    under_way = bench.tally.upload(time.monotonic())
    gate.open.set()
    bench.finish()
    done = bench.tally.upload(time.monotonic())
    assert under_way is not None and done is not None
    assert (under_way.step, under_way.is_done, done.step, done.is_done) == (10, False, 10, True)
    assert under_way.num_bytes == done.num_bytes == len(bench.rooms[0].data)


class Hosts:
    """Memory of hosts; ``kept`` and ``exchanged`` are the steps, None where a rank had no share."""

    def __init__(self) -> None:
        self.kept: list[int] = []
        self.exchanged: list[int | None] = []
        self.problem: Exception | None = None
        self.is_full = False
        self.may_exchange = threading.Event()
        self.may_exchange.set()

    def keep(self, save: Save) -> str | None:
        if self.is_full:
            raise Full("no room")
        assert save.part.chunks, "what has no digests can't be compared"
        self.kept.append(save.cut.step)
        return None

    def exchange(self, save: Save | None) -> str | None:
        assert self.may_exchange.wait(DEADLINE_S)
        self.exchanged.append(save and save.cut.step)
        if self.problem:
            raise self.problem
        return None


def test_memory_comes_first_and_what_is_kept_there_alone_is_told_only_where_it_fails(tmp_path: Path) -> None:
    hosts, disk = Hosts(), LocalTier(tmp_path, RUN, 2)
    bench = Bench(MemoryStore(), disk, hosts)
    assert bench.save(10, to_memory=True, to_disk=True)
    bench.finish()
    assert bench.save(20, to_memory=True, to_store=False)
    bench.finish()
    assert bench.problems() == [(10, "disk", False), (10, "store", False)]
    assert hosts.kept == hosts.exchanged == [10, 20]


def test_slow_copies_hold_up_neither_disk_nor_store_and_no_save_in_memory_begins_meanwhile(
    tmp_path: Path,
) -> None:
    hosts, disk = Hosts(), LocalTier(tmp_path, RUN, 2)
    hosts.may_exchange.clear()
    bench = Bench(MemoryStore(), disk, hosts)
    assert bench.save(10, to_memory=True, to_store=False)
    assert bench.save(20, to_memory=True, to_store=False) is None
    assert bench.save(30, to_disk=True, timeout_s=DEADLINE_S)
    assert bench.writer.room(bench.rooms, to_store=True, timeout_s=DEADLINE_S)
    assert [found.step for found in bench.repository.view.generations] == [30]
    assert not bench.writer.finish(0.0)
    hosts.may_exchange.set()
    bench.finish()
    assert bench.save(40, to_memory=True, to_store=False)
    bench.finish()


def test_a_host_that_can_keep_no_copies_says_so_once_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    hosts = Hosts()
    hosts.problem = SaveFailed("no room for copies")
    bench = Bench(MemoryStore(), memory=hosts)
    for _ in range(5):
        bench.writer.skip_in_memory()
        bench.finish()
    assert hosts.exchanged == [None] * 5
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_rank_without_a_share_takes_part_in_the_exchange_all_the_same() -> None:
    hosts = Hosts()
    bench = Bench(MemoryStore(), None, hosts)
    bench.writer.skip_in_memory()
    bench.finish()
    hosts.is_full = True
    assert bench.save(10, to_memory=True)
    bench.finish()
    assert (hosts.kept, hosts.exchanged) == ([], [None, None])
    assert bench.problems() == [(10, "memory", True), (10, "store", False)]


def test_what_is_wrong_with_copies_is_told_once_an_hour_and_counted_each_time() -> None:
    hosts = Hosts()
    hosts.problem = SaveFailed("the other host is full")
    bench = Bench(MemoryStore(), None, hosts)
    for step in (10, 20, 30):
        assert bench.save(step, to_memory=True, to_store=False, timeout_s=DEADLINE_S)
        bench.finish()
    assert bench.problems() == [(10, "memory", True)]
    assert bench.tally.num_failed == 3
