"""What is left over goes and nothing else, and its size is known before it does."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from checkpointing.format.manifest import MANIFEST, file_name
from checkpointing.generations.garbage import find_garbage, remove, sweep
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention
from checkpointing.log.history import Stop
from checkpointing.stores.contract import Store, StoreError, Unavailable
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from tests.unit.small_generations import RUN, Ranks, content, cut_of, file_of, load

pytestmark = pytest.mark.usefixtures("each_form")

NOW = datetime.now(UTC)


class StuckStore(MemoryStore):
    """Deletes nothing while it is stuck."""

    is_stuck = False

    def delete(self, name: str) -> None:
        if self.is_stuck:
            raise Unavailable(f"stuck: {name}")
        super().delete(name)


def leave(repository: Repository, *, term: int, whole: bool = False) -> str:
    """What a save that was killed leaves."""
    cut = cut_of(90, term=term, number=9)
    repository.put_file(cut.generation, file_name(0), file_of(cut, 0))
    if whole:
        repository.put_file(cut.generation, MANIFEST, b"{}")
    return cut.generation


def begun(store: Store) -> tuple[Repository, Ranks]:
    """In its second attempt; the first one saved a generation."""
    repository = Repository(store, RUN)
    Ranks(repository, repository.take_over("me")).save(10)
    return repository, Ranks(repository, repository.take_over("me"))


def objects(store: Store) -> set[str]:
    return set(store.list("runs"))


def test_of_a_run_that_is_well_nothing_is_left_over() -> None:
    repository, ranks = begun(MemoryStore())
    ranks.save(20)
    found = find_garbage(repository, now=NOW)
    assert (found.remainders, found.uploads, found.spared) == ((), (), ())
    before = objects(repository.store)
    remove(repository, found)
    assert objects(repository.store) == before


def test_a_killed_save_of_an_attempt_that_is_over_goes_and_one_that_may_go_on_stays() -> None:
    repository, ranks = begun(MemoryStore())
    newest = ranks.save(20)
    over, going_on = leave(repository, term=1), leave(repository, term=2)
    found = find_garbage(repository, now=NOW)
    assert [(one.generation, one.why) for one in found.remainders] == [(over, "attempt is over")]
    assert (found.num_objects, found.num_bytes) == (1, len(file_of(cut_of(90, term=1, number=9), 0)))
    before = objects(repository.store)
    remove(repository, found)
    assert {name.split("/")[3] for name in before - objects(repository.store)} == {over}
    assert any(going_on in name for name in objects(repository.store))
    assert load(repository, repository.view.generations[-1]) == content(newest, 1)


def test_what_the_present_attempt_gave_up_but_could_not_delete_goes() -> None:
    store = StuckStore()
    repository, ranks = begun(store)
    given_up, *_ = [ranks.save(step) for step in (20, 30, 40)]
    store.is_stuck = True
    assert repository.retire(Retention(last=2, best=0), term=2) == ()
    store.is_stuck = False
    tool = Repository(store, RUN)
    tool.refresh()
    found = find_garbage(tool, now=NOW)
    assert {(one.generation, one.why) for one in found.remainders} >= {(given_up, "given up")}
    remove(tool, found)
    assert {name.split("/")[3] for name in store.list(f"runs/{RUN}/gen")} == {
        one.name for one in tool.view.generations
    }
    assert find_garbage(tool, now=NOW).remainders == ()


def test_after_the_log_was_damaged_what_looks_whole_is_spared() -> None:
    """Its commit may be the record that is lost."""
    store = MemoryStore()
    repository, ranks = begun(store)
    newest = ranks.save(20)
    half = leave(repository, term=1)
    for name in sorted(store.list(f"runs/{RUN}/log"))[-2:]:
        store.put(name, b"damaged")
    reader = Repository(store, RUN)
    reader.append(Stop())
    assert reader.view.generation(newest) is None
    found = find_garbage(reader, now=NOW)
    assert found.spared == (newest,)
    assert [one.generation for one in found.remainders] == [half]


def test_half_written_files_go_once_nobody_can_go_on_with_them(tmp_path: Path) -> None:
    repository, ranks = begun(LocalStore(tmp_path))
    folder = tmp_path / "runs" / RUN / "gen" / ranks.save(20)
    old, new = folder / ".tmp-0123456789abcdef", folder / ".tmp-fedcba9876543210"
    for path in (old, new):
        path.write_bytes(b"half")
    two_days_ago = (NOW - timedelta(days=2)).timestamp()
    os.utime(old, (two_days_ago, two_days_ago))
    found = find_garbage(repository, now=NOW)
    assert [one.name for one in found.uploads] == [str(old.relative_to(tmp_path))]
    remove(repository, found)
    assert (old.exists(), new.exists()) == (False, True)


# Below a run's generations: what people and other programs put there.
THEIRS = (
    "by-hand/rank-00000.json",
    "before-t1-crash/rank-00000.json",
    "000000000090-t1-s9/notes.txt",
    "000000000090-t1-s9/rank-0.json",
    "000000000090-t1-s9/copy/rank-00000.json",
    "notes.txt",
)


@pytest.mark.parametrize("clean_up", ["remove", "sweep"])
def test_what_others_put_beside_what_is_left_over_stays(clean_up: str) -> None:
    store = MemoryStore()
    repository, _ = begun(store)
    over = leave(repository, term=1)
    assert over == "000000000090-t1-s9"
    theirs = {f"runs/{RUN}/gen/{name}" for name in THEIRS}
    for name in theirs:
        store.put(name, b"theirs")
    before = objects(store)
    if clean_up == "sweep":
        sweep(repository, term=2, now=NOW)
    else:
        remove(repository, find_garbage(repository, now=NOW))
    assert before - objects(store) == {f"runs/{RUN}/gen/{over}/{file_name(0)}"}
    assert find_garbage(repository, now=NOW).remainders == ()


def test_what_others_put_into_a_generation_that_is_given_up_stays() -> None:
    repository, ranks = begun(MemoryStore())
    given_up, *_ = [ranks.save(step) for step in (20, 30, 40)]
    mine = f"runs/{RUN}/gen/{given_up}/notes.txt"
    repository.store.put(mine, b"mine")
    assert given_up in repository.retire(Retention(last=2, best=0), term=2)
    assert [name for name in objects(repository.store) if given_up in name] == [mine]
    assert find_garbage(repository, now=NOW).remainders == ()


def test_nothing_goes_where_a_link_leads_out_of_the_store(tmp_path: Path) -> None:
    """As if somebody had moved a run's generations and put a link in their place."""
    repository, _ = begun(LocalStore(tmp_path / "store"))
    leave(repository, term=1)
    gen, moved = tmp_path / "store" / "runs" / RUN / "gen", tmp_path / "moved"
    gen.rename(moved)
    gen.symlink_to(moved)
    before = set(moved.rglob("*"))
    for clean_up in (lambda: find_garbage(repository, now=NOW), lambda: sweep(repository, term=2, now=NOW)):
        with pytest.raises(StoreError, match=f": runs/{RUN}/gen is a link, "):
            clean_up()
    assert set(moved.rglob("*")) == before


@pytest.mark.parametrize("off", [timedelta(days=3), timedelta(hours=-1)])
def test_a_clock_that_is_wrong_takes_nothing_from_a_save_that_is_going_on(
    off: timedelta, tmp_path: Path
) -> None:
    repository, _ = begun(LocalStore(tmp_path))
    going_on, over = leave(repository, term=2), leave(repository, term=1)
    halves = {
        name: tmp_path / "runs" / RUN / "gen" / name / ".tmp-0123456789abcdef" for name in (going_on, over)
    }
    for path in halves.values():
        path.write_bytes(b"half")
    sweep(repository, term=2, now=NOW + off)
    assert halves[going_on].exists()
    assert halves[over].exists() == (off < timedelta(0))
    assert any(going_on in name for name in objects(repository.store))


class VanishingStore(MemoryStore):
    """Once it ``vanishes``, somebody else removes whatever was listed before it is measured."""

    vanishes = False

    def size(self, name: str) -> int:
        if self.vanishes:
            self.delete(name)
        return super().size(name)


def test_what_is_left_is_told_to_the_byte_and_what_vanishes_meanwhile_is_nothing() -> None:
    repository, _ = begun(MemoryStore())
    left = leave(repository, term=1)
    folder = repository.place(left).folder
    repository.store.put(f"{folder}/{file_name(1)}", b"another rank's")
    (found,) = find_garbage(repository, now=NOW).remainders
    sizes = [len(repository.store.get(name)) for name in repository.store.list(folder)]
    assert len(sizes) == 2
    assert found.num_bytes == sum(sizes)

    store = VanishingStore()
    repository, _ = begun(store)
    leave(repository, term=1)
    store.vanishes = True
    (found,) = find_garbage(repository, now=NOW).remainders
    assert found.num_bytes == 0
