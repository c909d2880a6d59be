"""The nodes' own disks: whole shares only, few of them, and nothing of what a killed save leaves stays."""

import os
from pathlib import Path

import pytest

from checkpointing.errors import Corrupt
from checkpointing.format.manifest import (
    MOST_MANIFEST_BYTES,
    Cut,
    Manifest,
    encode_part,
    manifest_of,
    part_name,
)
from checkpointing.log.history import Generation
from checkpointing.saving.budget import Budget
from checkpointing.saving.local_tier import LocalTier, local_tier_name
from checkpointing.stores.contract import Buffer, Denied, Full, StoreError, Unavailable
from checkpointing.stores.local import LocalStore
from tests.unit.other_user import NOBODY, needs_root
from tests.unit.small_generations import content, cut_of, file_of, generation, load_from, part_of


def keep(disk: LocalTier, cut: Cut, *ranks: int) -> None:
    for rank in ranks or range(cut.world_size):
        disk.keep(cut, part_of(cut, rank), memoryview(file_of(cut, rank)))


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def steps_of(disk: LocalTier, rank: int = 0) -> list[int]:
    return sorted(cut.step for cut, part in disk.inventory() if part.rank == rank)


def whole(disk: LocalTier, cut: Cut) -> Manifest:
    return manifest_of(cut, [part for found, part in disk.inventory() if found == cut])


def cuts(num: int, *, world_size: int = 1) -> list[Cut]:
    return [cut_of(10 * number, term=1, number=number, world_size=world_size) for number in range(1, num + 1)]


def test_what_was_kept_comes_back(tmp_path: Path) -> None:
    cut = cut_of(10, term=1, number=1, world_size=3)
    keep(LocalTier(tmp_path, "r", 2), cut)
    disk = LocalTier(tmp_path, "r", 2)
    assert load_from(whole(disk, cut), [disk.place(cut.generation)]) == content(cut.generation, 3)


def test_a_tilde_is_the_home_of_the_node_that_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    keep(LocalTier(Path("~/disk"), "r", 2), *cuts(1))
    assert steps_of(LocalTier(tmp_path / "disk", "r", 2)) == [10]


def test_each_rank_keeps_its_newest_few_and_no_folder_is_left_of_the_others(tmp_path: Path) -> None:
    disk = LocalTier(tmp_path, "r", 2)
    for cut in cuts(5, world_size=2):
        keep(disk, cut, 0)
        if cut.step != 50:
            keep(disk, cut, 1)
    assert (steps_of(disk, 0), steps_of(disk, 1)) == ([40, 50], [30, 40])
    assert {path.name for path in (tmp_path / "runs/r/gen").iterdir()} == {
        cut.generation for cut in cuts(5)[2:]
    }


def test_the_newest_are_those_of_the_latest_attempt_whatever_their_step(tmp_path: Path) -> None:
    disk = LocalTier(tmp_path, "r", 2)
    for term, step in ((1, 50), (1, 60), (2, 10), (2, 20)):
        keep(disk, cut_of(step, term=term, number=step))
    assert steps_of(disk) == [10, 20]


def test_runs_do_not_see_each_other(tmp_path: Path) -> None:
    keep(LocalTier(tmp_path, "r", 2), cuts(1)[0])
    other = LocalTier(tmp_path, "other", 2)
    assert other.inventory() == []
    other.tidy()
    assert len(LocalTier(tmp_path, "r", 2).inventory()) == 1


def test_a_run_of_the_same_name_in_another_log_has_another_place() -> None:
    names = [local_tier_name("r", "a"), local_tier_name("r", "b"), local_tier_name("s", "a")]
    assert len({*names, "r", "s"}) == 5


@pytest.mark.parametrize("damage", ["emptied", "another generation's", "another rank's", "file gone"])
def test_a_share_that_is_not_what_it_should_be_is_left_out_and_tidied_away(
    tmp_path: Path, damage: str
) -> None:
    disk = LocalTier(tmp_path, "r", 2)
    old, new = cuts(2, world_size=2)
    keep(disk, old)
    keep(disk, new)
    folder = tmp_path / "runs/r/gen" / new.generation
    match damage:
        case "emptied":
            (folder / part_name(0)).write_bytes(b"")
        case "another generation's":
            (folder / part_name(0)).write_bytes(encode_part(old, part_of(old, 0)))
        case "another rank's":
            (folder / part_name(0)).write_bytes(encode_part(new, part_of(new, 1)))
        case _:
            (folder / part_of(new, 0).file).unlink()
    assert (steps_of(disk, 0), steps_of(disk, 1)) == ([10], [10, 20])
    disk.tidy()
    assert (steps_of(disk, 0), steps_of(disk, 1)) == ([10], [10, 20])
    assert len(files_in(tmp_path)) == 6


def test_a_part_without_an_end_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, endless = cuts(2)
    disk = LocalTier(tmp_path, "r", 2)
    keep(disk, good, 0)
    keep(disk, endless, 0)
    os.truncate(tmp_path / "runs/r/gen" / endless.generation / part_name(0), MOST_MANIFEST_BYTES + 1)
    most_read, read = [0], LocalStore.read

    def noting(store: LocalStore, name: str, start: int, into: memoryview) -> tuple[int, str | None]:
        most_read.append(len(into))
        return read(store, name, start, into)

    monkeypatch.setattr(LocalStore, "read", noting)
    monkeypatch.setattr(LocalStore, "get", lambda store, name: pytest.fail(f"all of {name} was read"))
    assert steps_of(disk) == [10]
    assert 0 < max(most_read) < MOST_MANIFEST_BYTES
    disk.tidy()
    assert {name.split("/")[3] for name in files_in(tmp_path)} == {good.generation}


def test_a_damaged_file_is_found_when_it_is_read(tmp_path: Path) -> None:
    disk = LocalTier(tmp_path, "r", 2)
    (cut,) = cuts(1)
    keep(disk, cut)
    path = tmp_path / "runs/r/gen" / cut.generation / part_of(cut, 0).file
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(Corrupt):
        load_from(whole(disk, cut), [disk.place(cut.generation)])


def test_tidying_leaves_nothing_of_saves_that_were_killed_halfway(tmp_path: Path) -> None:
    disk = LocalTier(tmp_path, "r", 2)
    kept, killed = cuts(2)
    keep(disk, kept)
    folder = tmp_path / "runs/r/gen" / killed.generation
    folder.mkdir()
    (folder / ".tmp-0123456789abcdef").write_bytes(b"half")
    (folder / part_of(killed, 0).file).write_bytes(file_of(killed, 0))
    disk.tidy()
    assert steps_of(disk) == [10]
    assert len(files_in(tmp_path)) == 2
    assert not folder.exists()


def test_a_share_does_not_count_before_its_file_is_there(tmp_path: Path) -> None:
    (cut,) = cuts(1)
    folder = tmp_path / "runs/r/gen" / cut.generation
    (folder / part_of(cut, 0).file).mkdir(parents=True)  # in the way of the file
    with pytest.raises(Unavailable):
        keep(LocalTier(tmp_path, "r", 2), cut)
    assert files_in(tmp_path) == set()


def test_tidying_where_nothing_is_does_nothing(tmp_path: Path) -> None:
    LocalTier(tmp_path / "nowhere", "r", 2).tidy()
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_of_the_folder_costs_that_save_only(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    disk = LocalTier(tmp_path, "r", 2)
    with pytest.raises(Unavailable, match="runs"):
        keep(disk, cuts(1)[0])
    (tmp_path / "runs").unlink()
    keep(disk, cuts(1)[0])
    assert steps_of(disk) == [10]


# Beside what a killed save left: what people and other programs put there.
THEIRS = (
    "notes.txt",
    "runs/notes.txt",
    "runs/r/notes.txt",
    "runs/r/gen/notes.txt",
    "runs/r/gen/my-copy/rank-00000.json",
    "runs/r/gen/before-t1-crash/rank-00000.json",
    "runs/r/gen/000000000020-t1-s2/notes.txt",
    "runs/r/gen/000000000020-t1-s2/rank-0.json",
    "runs/r/gen/000000000020-t1-s2/copy/rank-00000.json",
    "runs/r/gen/000000000020-t1-s2/.tmp-mine",
    "runs/r@other/gen/000000000020-t1-s2/rank-00000.json",
    "longhaul-tokens-0/0123456789abcdef/00000.bin",
)


def test_what_others_put_on_the_disk_outlives_every_save_and_tidying(tmp_path: Path) -> None:
    for name in THEIRS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("theirs")
    disk = LocalTier(tmp_path, "r", 2)
    left = tmp_path / "runs/r/gen/000000000020-t1-s2"
    for name in ("rank-00000.safetensors", "rank-00001.json", "manifest.json", ".tmp-0123456789abcdef"):
        (left / name).write_text("left by a killed save")
    disk.tidy()
    for cut in cuts(4):
        keep(disk, cut)
    assert steps_of(disk) == [30, 40]
    ours = {
        str(path)
        for path in files_in(tmp_path)
        if path.startswith(("runs/r/gen/00000000003", "runs/r/gen/00000000004"))
    }
    assert files_in(tmp_path) - ours == set(THEIRS)


def test_the_disk_of_saves_is_not_left_by_a_link(tmp_path: Path) -> None:
    disk, moved = tmp_path / "disk", tmp_path / "moved"
    keep(LocalTier(disk, "r", 2), cuts(1)[0])
    (disk / "runs/r/gen").rename(moved)
    (disk / "runs/r/gen").symlink_to(moved)
    (moved / "000000000090-t1-s9").mkdir()
    (moved / "000000000090-t1-s9" / "rank-00000.json").write_text("half a save, as it seems")
    before = files_in(moved)
    with pytest.raises(StoreError, match="runs/r/gen is a link"):
        LocalTier(disk, "r", 2).tidy()
    with pytest.raises(StoreError, match="runs/r/gen is a link"):
        keep(LocalTier(disk, "r", 2), cuts(2)[1])
    assert files_in(moved) == before


def unreadable(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Reading what contains ``text`` fails from now on, as on a disk with an error."""
    read = LocalStore.read

    def fails(store: LocalStore, name: str, start: int, into: memoryview) -> tuple[int, str | None]:
        if text in name:
            raise Unavailable(f"store: {name}: Input/output error")
        return read(store, name, start, into)

    monkeypatch.setattr(LocalStore, "read", fails)


def test_what_cannot_be_read_just_now_is_kept_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LocalTier(tmp_path, "r", 2)
    old, *new = cuts(4)
    keep(disk, old)
    with monkeypatch.context() as patch:
        unreadable(patch, old.generation)
        disk.tidy()
        assert len(files_in(tmp_path)) == 2
        findings = [disk.keep(cut, part_of(cut, 0), memoryview(file_of(cut, 0))) for cut in new]
    assert all("rank-00000.json can't be read and is kept: store: " in str(one) for one in findings)
    assert steps_of(disk) == [10, 30, 40]
    assert load_from(whole(disk, old), [disk.place(old.generation)]) == content(old.generation, 1)
    disk.tidy()
    assert steps_of(disk) == [10, 30, 40]


def test_a_host_frees_what_is_older_than_what_the_store_has_verified_whichever_rank_wrote_it(
    tmp_path: Path,
) -> None:
    disk = LocalTier(tmp_path, "r", 2)
    moved = [cut_of(10 * number, term=1, number=number, world_size=9) for number in range(1, 5)]
    for cut in moved:
        keep(disk, cut, 7, 8)
    for cut in (cut_of(50, term=2, number=1, world_size=9), cut_of(60, term=2, number=2, world_size=9)):
        keep(disk, cut, 0)
    disk.free_before(None)
    assert (steps_of(disk, 7), steps_of(disk, 0)) == ([30, 40], [50, 60])
    disk.free_before(generation(4, term=1))
    assert (steps_of(disk, 7), steps_of(disk, 8), steps_of(disk, 0)) == ([40], [40], [50, 60])
    disk.free_before(generation(1, term=2))
    assert (steps_of(disk, 7), steps_of(disk, 8), steps_of(disk, 0)) == ([], [], [50, 60])
    disk.free_before(generation(9, term=2))
    assert steps_of(disk, 0) == [50, 60]


def test_an_older_save_that_cannot_be_deleted_fails_no_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LocalTier(tmp_path, "r", 2)

    def denied(_store: LocalStore, name: str) -> None:
        raise Denied(f"store: {name}: Operation not permitted")

    monkeypatch.setattr(LocalStore, "delete", denied)
    findings = [disk.keep(cut, part_of(cut, 0), memoryview(file_of(cut, 0))) for cut in cuts(3)]
    assert findings[:2] == [None, None]
    assert "older saves could not be deleted: store: " in str(findings[2])
    assert steps_of(disk) == [10, 20, 30]


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.safetensors"))


FILE_BYTES = len(file_of(cut_of(10, term=1, number=1), 0))


def tier(folder: Path, max_bytes: int, *, verified: Generation | None = None, ranks: int = 1) -> LocalTier:
    budget = Budget(max_bytes=max_bytes, num_ranks=ranks)
    return LocalTier(folder, "r", 3, budget, verified=lambda: verified)


def test_a_budget_is_kept_to_before_a_save_is_written_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, peaks = tier(tmp_path, 2 * FILE_BYTES), list[int]()
    put = LocalStore.put

    def seen(store: LocalStore, name: str, data: Buffer) -> None:
        put(store, name, data)
        peaks.append(bytes_in(tmp_path))

    monkeypatch.setattr(LocalStore, "put", seen)
    findings = [disk.keep(cut, part_of(cut, 0), memoryview(file_of(cut, 0))) for cut in cuts(4)]
    assert (max(peaks), steps_of(disk)) == (2 * FILE_BYTES, [30, 40])
    assert findings[:2] == [None, None]
    assert f"2 of 3 saves stay in {tmp_path}: checkpoint.local.max_bytes" in str(findings[2])


def test_a_save_that_fits_into_no_budget_is_refused_and_deletes_nothing(tmp_path: Path) -> None:
    keep(tier(tmp_path, 9 * FILE_BYTES), cuts(1)[0])
    with pytest.raises(Full, match=r"no room for a save .* checkpoint\.local\.max_bytes"):
        keep(tier(tmp_path, 2 * FILE_BYTES - 1), cuts(2)[1])
    assert steps_of(tier(tmp_path, 1)) == [10]


def test_what_the_store_has_verified_makes_room_also_where_it_is_a_ranks_last(tmp_path: Path) -> None:
    moved, new = cuts(2, world_size=9)
    keep(tier(tmp_path, 9 * FILE_BYTES), moved, 7, 8)
    with pytest.raises(Full):
        keep(tier(tmp_path, 2 * FILE_BYTES, verified=generation(1)), new, 0)
    disk = tier(tmp_path, 2 * FILE_BYTES, verified=generation(2))
    keep(disk, new, 0)
    assert sorted((cut.step, part.rank) for cut, part in disk.inventory()) == [(10, 8), (20, 0)]


def test_ranks_that_save_side_by_side_keep_to_one_budget(tmp_path: Path) -> None:
    disk = tier(tmp_path, 5 * FILE_BYTES, ranks=2)
    for cut in cuts(3, world_size=2):
        keep(disk, cut, 0)
        assert bytes_in(tmp_path) <= 4 * FILE_BYTES  # there is room for rank 1, which writes meanwhile
        keep(disk, cut, 1)
    assert (steps_of(disk, 0), steps_of(disk, 1)) == ([20, 30], [10, 20, 30])


def test_without_a_budget_a_tenth_of_the_disk_stays_free(tmp_path: Path) -> None:
    def free_bytes(_folder: Path) -> int:
        return 4 * FILE_BYTES - bytes_in(tmp_path)

    disk = LocalTier(tmp_path, "r", 9, free_bytes=free_bytes)
    for cut in cuts(5):
        keep(disk, cut)
    assert steps_of(disk) == [30, 40, 50]
    unknown = LocalTier(tmp_path, "r", 9, free_bytes=lambda _folder: None)
    for cut in cuts(8)[5:]:
        keep(unknown, cut)
    assert len(steps_of(unknown)) == 6


def test_what_cannot_be_read_just_now_takes_of_the_budget_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *later = cuts(3)
    keep(tier(tmp_path, 9 * FILE_BYTES), first)
    unreadable(monkeypatch, first.generation)
    taken = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    disk = tier(tmp_path, taken + FILE_BYTES)
    keep(disk, later[0])
    with pytest.raises(Full):
        keep(disk, later[1])
    assert steps_of(disk) == [20]


def test_other_users_of_the_node_enter_no_folder_of_a_run(tmp_path: Path) -> None:
    """The folder that the user named may be for everybody, and an earlier version made ours so too."""
    (tmp_path / "runs/r").mkdir(parents=True, mode=0o777)
    disk = LocalTier(tmp_path, "r", 1)
    for cut in cuts(2):
        keep(disk, cut)
        assert (tmp_path / "runs/r").stat().st_mode & 0o777 == 0o700
    keep(LocalTier(tmp_path / "new", "r", 1), *cuts(1))
    assert (tmp_path / "new/runs/r").stat().st_mode & 0o777 == 0o700


@needs_root
def test_what_another_user_planted_on_the_node_is_neither_resumed_nor_written_to(tmp_path: Path) -> None:
    disk = LocalTier(tmp_path, "r", 2)
    keep(disk, *cuts(1))
    os.chown(tmp_path / "runs/r", NOBODY, NOBODY)
    with pytest.raises(Denied, match="runs/r: belongs to user 65534, and may hold anything"):
        disk.inventory()
    with pytest.raises(Denied, match="belongs to user"):
        keep(disk, cuts(2)[1])
    assert not [name for name in files_in(tmp_path) if cuts(2)[1].generation in name]


@needs_root
def test_the_folder_of_runs_belongs_to_nobody_else_who_could_exchange_what_was_looked_at(
    tmp_path: Path,
) -> None:
    """It may be for everybody and sticky: its owner renames all that lies in it."""
    disk = LocalTier(tmp_path, "r", 2)
    keep(disk, *cuts(1))
    os.chown(tmp_path / "runs", NOBODY, NOBODY)
    (tmp_path / "runs").chmod(0o1777)
    with pytest.raises(Denied, match="runs: belongs to user 65534, and may hold anything"):
        disk.inventory()
    with pytest.raises(Denied, match="runs: belongs to user"):
        keep(disk, cuts(2)[1])


def test_a_link_in_the_place_of_the_runs_folder_is_no_folder_of_the_run(tmp_path: Path) -> None:
    disk = LocalTier(tmp_path / "disk", "r", 2)
    keep(LocalTier(tmp_path / "other", "r", 2), *cuts(1))
    (tmp_path / "disk/runs").mkdir(parents=True)
    (tmp_path / "disk/runs/r").symlink_to(tmp_path / "other/runs/r")
    with pytest.raises(Denied, match="is a link"):
        disk.inventory()


def test_a_run_that_saved_nothing_here_has_nothing_to_check(tmp_path: Path) -> None:
    LocalTier(tmp_path / "none", "r", 2).inventory()
    assert not (tmp_path / "none").exists()
