"""A disk that is really full: saves to it fail and say so, the others go on, and room that is made is used.

Needs root, who may mount a small file system of its own.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from checkpointing.format.digests import digests
from checkpointing.format.manifest import Cut, FilePart, Shard, TensorInfo, file_name
from checkpointing.generations.repository import Repository
from checkpointing.log.history import Stop
from checkpointing.log.log import Log
from checkpointing.saving.local_tier import LocalTier
from checkpointing.saving.publishing.publisher import Publisher, SavingAttempt
from checkpointing.saving.save import Save, SaveNote, Tally
from checkpointing.saving.writer import Writer
from checkpointing.stores.contract import Full
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from tests.live.attempts import Wanted, attempt_each
from tests.live.ranks import run_ranks
from tests.live.trainings import recipe_for
from tests.unit.small_generations import Letters, Memory

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a disk of 8 MiB")

DISK_BYTES = 8 << 20
DEADLINE_S = 30.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disk_of(DISK_BYTES, tmp_path / "disk") as folder:
        yield folder


@contextmanager
def disk_of(num_bytes: int, folder: Path) -> Iterator[Path]:
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(folder)],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode != 0:
        pytest.skip(f"root here may not mount: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def save_of(number: int, num_bytes: int) -> Save:
    room = Memory(memoryview(bytearray(num_bytes)))
    cut = Cut(
        generation=f"{number:012d}-t1-s{number}",
        run="r",
        step=number,
        term=1,
        number=number,
        strategy="ddp",
        world_size=1,
        created_s=0.0,
    )
    part = FilePart(
        rank=0,
        file=file_name(0),
        num_bytes=num_bytes,
        chunks=digests(room.data),
        tensors=(TensorInfo(name="w", dtype="U8", shape=(num_bytes,)),),
        shards=(Shard(tensor="w", start=0, length=num_bytes, offset=0),),
    )
    return Save(cut=cut, part=part, room=room, to_disk=True, to_store=True, blocked_s=0.0)


def keep(disk: LocalTier, save: Save) -> None:
    disk.keep(save.cut, save.part, save.room.data)


def steps_on(disk: LocalTier) -> list[int]:
    return sorted(cut.step for cut, _ in disk.inventory())


def test_a_write_that_finds_no_room_is_full_and_leaves_nothing_behind(small_disk: Path) -> None:
    store = LocalStore(small_disk)
    store.put("a/b", b"whole")
    for write in (store.put, store.create):
        with pytest.raises(Full, match=r"No space left on device.*mend it"):
            write("a/c", bytes(2 * DISK_BYTES))
    assert [path.name for path in small_disk.rglob("*") if path.is_file()] == ["b"]
    assert store.get("a/b") == b"whole"


def test_older_shares_make_room_for_the_newest_and_the_newest_whole_one_never_goes(small_disk: Path) -> None:
    disk = LocalTier(small_disk, "r", 3)
    for number in range(1, 6):
        keep(disk, save_of(number, 3 << 20))
    assert steps_on(disk) == [4, 5]
    with pytest.raises(Full, match="no room for a save of"):
        keep(disk, save_of(6, 7 << 20))
    assert steps_on(disk) == [4, 5]


def test_training_goes_on_with_a_full_disk_and_saves_get_to_the_store(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(7 << 20))
    repository = Repository(MemoryStore(), "r")
    tally, notes = Tally(), list[SaveNote]()
    attempt = SavingAttempt(rank=0, term=repository.take_over("me"), deadline_s=DEADLINE_S)
    disk = LocalTier(small_disk, "r", 2)
    writer = Writer(disk, Publisher(repository, Letters(), attempt, tally), tally, notes.append)
    writer.start()
    for number in (1, 2, 3):
        if number == 3:
            (small_disk / "ballast").unlink()
        writer.hand_over(save_of(number, 2 << 20))
        assert writer.finish(DEADLINE_S)
    failed = [(note.step, note.place) for note in notes if note.problem]
    assert failed == [(1, "disk"), (2, "disk")]
    assert all("no room for a save" in (note.problem or "") for note in notes if note.problem)
    assert [found.step for found in repository.view.generations if found.is_good] == [1, 2, 3]
    assert steps_on(disk) == [3]


def test_a_log_on_a_full_disk_is_as_it_was_and_goes_on_once_there_is_room(small_disk: Path) -> None:
    store = LocalStore(small_disk)
    log = Log(store, "r")
    log.lease("me")
    ballast = small_disk / "ballast"
    with pytest.raises(OSError), ballast.open("wb") as file:
        while True:
            file.write(bytes(1 << 16))
            file.flush()
    with pytest.raises(Full):
        for _ in range(100):
            log.append(Stop(), term=1)
    before = Log(store, "r").read()
    assert before == log.view
    ballast.unlink()
    log.append(Stop(), term=1)
    assert Log(store, "r").read().stop_asked


# A generation of the smallest model has 10.4 MB, all ranks' shares together.
ROOM_FOR_ALL, ROOM_FOR_NONE = 96 << 20, 6 << 20


@pytest.mark.soak
def test_a_run_on_a_full_store_goes_on_and_saves_again_once_there_is_room(tmp_path: Path) -> None:
    with disk_of(ROOM_FOR_ALL, tmp_path / "disk") as store:
        ballast = store / "ballast"
        ballast.write_bytes(bytes(ROOM_FOR_ALL - ROOM_FOR_NONE))
        wanted = long_run_on(store, ballast=ballast)
        (story,), _ = run_ranks(attempt_each, [wanted], num_ranks=2, tmp_path=tmp_path)
        repository = Repository(LocalStore(store), "r")
        saved = {found.step for found in repository.refresh().generations if found.is_good}
        left = {name.split("/")[3] for name in LocalStore(store).list("runs/r/gen")}
    failed = [note for note in story.saves if note.problem]
    assert [note.step for note in failed] == [2]
    assert "No space left on device" in str(failed[0].problem)
    assert (saved, story.end.step, story.end.problem) == ({4, 6, 8}, 8, None)
    assert left == {found.name for found in repository.view.generations}


@pytest.mark.soak
def test_a_run_on_a_store_that_stays_full_does_all_its_steps_and_says_what_is_missing(tmp_path: Path) -> None:
    with disk_of(ROOM_FOR_NONE, tmp_path / "disk") as store:
        (story,), _ = run_ranks(attempt_each, [long_run_on(store)], num_ranks=2, tmp_path=tmp_path)
    assert {note.step for note in story.saves if note.problem} == {2, 4, 6, 8}
    assert (story.end.step, story.end.problem) == (8, "step 8 could not be saved to the store")


@pytest.mark.soak
def test_a_run_whose_nodes_disks_are_full_saves_to_the_store(tmp_path: Path, small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(7 << 20))
    wanted = long_run_on(tmp_path / "store", disk=small_disk)
    (story,), _ = run_ranks(attempt_each, [wanted], num_ranks=2, tmp_path=tmp_path)
    places = {(note.step, note.place) for note in story.saves if note.problem}
    assert places == {(step, "disk") for step in (2, 4, 6, 8)}
    assert (story.end.step, story.end.problem) == (8, None)


def long_run_on(store: Path, *, disk: Path | None = None, ballast: Path | None = None) -> Wanted:
    recipe = recipe_for("ddp", world_size=2, grad_accum=1)
    return Wanted(
        name="r", recipe=recipe, num_steps=8, store=store, disk=disk, every_steps=2, ballast=ballast
    )
