"""A store that refuses deletions costs room: no save, nothing behind what is refused, one line an hour."""

import subprocess
import sys
import time
from _thread import interrupt_main
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier

import pytest

from checkpointing.format.manifest import MANIFEST, file_name
from checkpointing.generations.deletion import delete_objects
from checkpointing.generations.garbage import find_garbage, remove
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention
from checkpointing.saving.publishing.publisher import Publisher, SavingAttempt
from checkpointing.saving.save import Tally
from checkpointing.stores.contract import Denied, Store, StoreError, Unavailable
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from jobs.cli.__main__ import main
from tests.house import ROOT
from tests.unit.small_generations import RUN, Letters, Ranks, cut_of, file_of, names, save_of

pytestmark = pytest.mark.usefixtures("each_form")

TWO = Retention(last=2, best=0)
NOW = datetime.now(UTC)


class KeepingStore(MemoryStore):
    """Refuses with ``error`` to delete what contains one of ``keeps``. ``asked`` is what it was to delete."""

    def __init__(self, *keeps: str, error: type[StoreError] = Denied) -> None:
        super().__init__()
        self.keeps = keeps
        self.error = error
        self.asked: list[str] = []

    def delete(self, name: str) -> None:
        self.asked.append(name)
        if any(part in name for part in self.keeps):
            raise self.error(f"store: {name}: 403 AccessDenied")
        super().delete(name)


class Attempt:
    """One rank's publisher, whose clock is ``now``. ``found`` is what it told beside each save."""

    def __init__(self, store: Store) -> None:
        self.now = 0.0
        self.repository = Repository(store, RUN, ticks=lambda: self.now)
        self.tally = Tally()
        attempt = SavingAttempt(rank=0, term=self.repository.take_over("me"), deadline_s=0.0, retention=TWO)
        self._publisher = Publisher(self.repository, Letters(), attempt, self.tally, ticks=lambda: self.now)
        self._number = 0

    def save(self) -> str | None:
        self._number += 1
        cut = cut_of(10 * self._number, term=self.repository.view.term, number=self._number)
        return self._publisher.publish(save_of(cut), lambda: None)


def payload(store: Store) -> set[int]:
    """Steps of which there are objects."""
    return {int(name.split("/")[3].split("-")[0]) for name in store.list(f"runs/{RUN}/gen")}


def test_of_eight_saves_over_a_store_that_denies_deletes_all_are_verified_and_none_is_told_failed() -> None:
    attempt = Attempt(KeepingStore("gen/"))
    found = [attempt.save() for _ in range(8)]
    assert [one.is_good for one in attempt.repository.view.generations] == [True, True]
    assert attempt.tally.num_committed == 8
    assert found[:2] == [None, None]
    assert "000000000010-t1-s1 could not be deleted, tried again after an hour: store: " in str(found[2])
    assert found[3:] == [None] * 5


def test_while_the_store_denies_each_generation_costs_one_request_an_hour() -> None:
    store = KeepingStore("gen/")
    attempt = Attempt(store)
    for _ in range(8):
        attempt.save()
    assert len(store.asked) == 6
    attempt.now = 3600.0
    finding = attempt.save()
    assert finding and "7 generations such as" in finding
    assert len(store.asked) == 13


@pytest.mark.parametrize("error", [Denied, Unavailable])
@pytest.mark.parametrize("kept", ["manifest.json", file_name(0)])
def test_behind_an_object_that_cannot_be_deleted_all_others_are(error: type[StoreError], kept: str) -> None:
    store = KeepingStore(f"000000000010-t1-s1/{kept}", error=error)
    attempt = Attempt(store)
    for _ in range(6):
        attempt.save()
    assert payload(store) == {10, 50, 60}
    store.keeps = ()
    attempt.now = 3600.0
    assert attempt.save() is None
    assert payload(store) == {60, 70}


def test_a_refusal_that_comes_back_is_told_at_once() -> None:
    store = KeepingStore("gen/")
    attempt = Attempt(store)
    for _ in range(3):
        attempt.save()
    store.keeps, attempt.now = (), 3600.0
    assert attempt.save() is None
    store.keeps = ("gen/",)
    assert attempt.save() is not None


def test_a_store_that_is_away_is_not_asked_for_everything_that_waits() -> None:
    store = KeepingStore("gen/", error=Unavailable)
    repository = Repository(store, RUN)
    ranks = Ranks(repository, repository.take_over("me"))
    for step in range(10, 80, 10):
        ranks.save(step)
    assert repository.retire(TWO, term=1) == ()
    assert len(store.asked) == 2


def test_what_an_attempt_before_left_and_the_store_keeps_fails_no_save() -> None:
    store = KeepingStore()
    Attempt(store)
    left = Repository(store, RUN)
    for number in (1, 2):
        cut = cut_of(number, term=1, number=number)
        left.put_file(cut.generation, file_name(0), file_of(cut, 0))
    store.keeps = ("000000000001-",)
    attempt = Attempt(store)
    assert "000000000001-t1-s1 could not be deleted" in str(attempt.save())
    assert payload(store) == {1, 10}


def test_a_store_that_lists_no_uploads_is_asked_once_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    class Uploads(MemoryStore):
        num_asked = 0

        def abandoned_uploads(self, prefix: str, *, before: datetime) -> list[object]:
            self.num_asked += 1
            raise Denied("store: listing uploads: 403")

        def abort_uploads(self, uploads: object) -> None: ...

    store = Uploads()
    attempt = Attempt(store)
    assert "room could not be made: store: listing uploads: 403" in str(attempt.save())
    assert attempt.save() is None
    assert store.num_asked == 1
    attempt.now = 3600.0
    attempt.save()
    assert store.num_asked == 2


def test_a_payload_of_which_one_object_is_denied_goes_but_for_that_one() -> None:
    store = KeepingStore("rank-00001")
    for rank in range(3):
        store.put(f"runs/r/gen/g/{file_name(rank)}", b"")
    with pytest.raises(Denied, match="rank-00001"):
        delete_objects(store, list(store.list("runs/r/gen/g")))
    assert list(store.list("runs/r/gen/g")) == ["runs/r/gen/g/rank-00001.safetensors"]


def test_objects_of_many_ranks_are_deleted_several_at_a_time_behind_the_manifest() -> None:
    together = Barrier(16)

    class Slow(KeepingStore):
        def delete(self, name: str) -> None:
            # With fewer at a time this would break after its time.
            if not name.endswith(MANIFEST):
                together.wait(timeout=30)
            super().delete(name)

    store = Slow()
    objects = [f"runs/r/gen/g/{file_name(rank)}" for rank in range(128)] + [f"runs/r/gen/g/{MANIFEST}"]
    for name in objects:
        store.put(name, b"")
    delete_objects(store, objects)
    assert store.asked[0] == objects[-1] and sorted(store.asked) == sorted(objects)
    assert not list(store.list("runs/r/gen/g"))


def test_of_the_objects_of_many_ranks_those_that_are_denied_stay_alone() -> None:
    store = KeepingStore("rank-00007", "rank-00008", "rank-00130")
    objects = [f"runs/r/gen/g/{file_name(rank)}" for rank in range(256)]
    for name in objects:
        store.put(name, b"")
    with pytest.raises(Denied, match="rank-00007"):
        delete_objects(store, objects)
    assert sorted(store.list("runs/r/gen/g")) == [objects[7], objects[8], objects[130]]


def test_where_a_store_fails_at_one_of_many_objects_few_more_are_asked_for() -> None:
    class Away(KeepingStore):
        def delete(self, name: str) -> None:
            time.sleep(0.001)
            super().delete(name)

    store = Away("rank-00000", error=Unavailable)
    with pytest.raises(Unavailable):
        delete_objects(store, [f"runs/r/gen/g/{file_name(rank)}" for rank in range(20_000)])
    asked = len(store.asked)
    assert asked < 2_000
    time.sleep(0.1)
    assert len(store.asked) < asked + 100


def test_an_interrupt_ends_the_deletion_of_many_objects() -> None:
    class Interrupting(KeepingStore):
        def delete(self, name: str) -> None:
            if name.endswith("/0"):
                interrupt_main()
            time.sleep(0.001)
            super().delete(name)

    store = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        delete_objects(store, [f"runs/r/gen/g/{number}" for number in range(20_000)])
    # Each of the threads may have been about to ask once more.
    asked = len(store.asked)
    time.sleep(0.2)
    assert len(store.asked) <= asked + 16


def test_a_store_that_does_not_answer_holds_up_no_process_that_ends() -> None:
    """Deletions run in a thread that nobody waits for, and so must the threads that they start."""
    script = """
import threading
from checkpointing.generations.deletion import delete_objects
from checkpointing.stores.memory import MemoryStore

asked = threading.Event()

class Silent(MemoryStore):
    def delete(self, name):
        asked.set()
        threading.Event().wait()

names = [f"runs/r/gen/g/{number}" for number in range(128)]
threading.Thread(target=delete_objects, args=(Silent(), names), daemon=True).start()
assert asked.wait(20)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 0


def test_a_manifest_that_is_denied_keeps_the_objects_of_many_ranks() -> None:
    store = KeepingStore(MANIFEST)
    objects = [f"runs/r/gen/g/{file_name(rank)}" for rank in range(128)] + [f"runs/r/gen/g/{MANIFEST}"]
    with pytest.raises(Denied):
        delete_objects(store, objects)
    assert store.asked == [objects[-1]]


@pytest.mark.parametrize("error", [Denied, Unavailable])
def test_a_tidying_goes_on_behind_what_is_refused_and_names_it(error: type[StoreError]) -> None:
    store = KeepingStore(error=error)
    repository = Repository(store, RUN)
    repository.take_over("me")
    for number in range(1, 5):
        cut = cut_of(number, term=1, number=number)
        repository.put_file(cut.generation, file_name(0), file_of(cut, 0))
    repository.take_over("me")
    found = find_garbage(repository, now=NOW + timedelta(days=2))
    store.keeps = ("000000000001-",)
    refused = remove(repository, found)
    assert (list(refused), payload(store)) == (["000000000001-t1-s1"], {1})
    store.keeps = ("gen/",)
    assert list(remove(repository, found)) == [one.generation for one in found.remainders]


def test_gc_says_what_could_not_be_deleted_and_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = Repository(LocalStore(tmp_path), RUN)
    repository.take_over("me")
    for number in (1, 2):
        cut = cut_of(number, term=1, number=number)
        repository.put_file(cut.generation, file_name(0), file_of(cut, 0))
    repository.take_over("me")
    delete = LocalStore.delete

    def denied(store: LocalStore, name: str) -> None:
        if "000000000001-" in name:
            raise Denied("store: 403 AccessDenied")
        delete(store, name)

    monkeypatch.setattr(LocalStore, "delete", denied)
    assert main(["checkpoints", "gc", "--yes", "--run", RUN, "--store", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "000000000001-t1-s1: could not be deleted: store: 403 AccessDenied",
        "1 object of 31 B deleted",
    ]
    assert names(repository.refresh().generations) == []
