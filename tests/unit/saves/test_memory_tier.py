"""The hosts' memory: two saves at most, closed to others, and given back."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from checkpointing.format.manifest import manifest_of
from checkpointing.saving.local_tier import local_tier_name
from checkpointing.saving.memory_tier import MOST_SAVES, MemoryTier
from checkpointing.stores.contract import Denied
from checkpointing.stores.local import LocalStore
from tests.unit.other_user import NOBODY, needs_root
from tests.unit.saves.test_local_tier import cuts, files_in, keep, steps_of
from tests.unit.small_generations import content, file_of, load_from, part_of

OURS = f"longhaul-{os.geteuid()}"


def test_the_save_before_the_last_one_goes_before_a_new_one_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, most = MemoryTier(tmp_path, "r"), 0
    put = LocalStore.put

    def counted(store: LocalStore, name: str, data: bytes) -> None:
        nonlocal most
        put(store, name, data)
        most = max(most, len(list(tmp_path.rglob("*.safetensors"))))

    monkeypatch.setattr(LocalStore, "put", counted)
    keep(memory, *cuts(1, world_size=2))
    for cut in cuts(5, world_size=2)[1:]:
        keep(memory, cut)
    assert steps_of(memory) == steps_of(memory, rank=1) == [40, 50]
    assert most == MOST_SAVES * 2


def test_what_came_everywhere_stays_and_not_the_save_after_it_that_did_not(tmp_path: Path) -> None:
    for whole, kept in ((0, [10, 30]), (1, [20, 30]), (None, [20, 30])):
        memory, [first, second, third] = MemoryTier(tmp_path / str(whole), "r"), cuts(3)
        for cut in (first, second):
            keep(memory, cut)
        generation = None if whole is None else (first, second)[whole].generation
        memory.keep(third, part_of(third, 0), memoryview(file_of(third, 0)), whole=generation)
        assert steps_of(memory) == kept
        # What is whole elsewhere alone keeps nothing here.
        memory.keep(third, part_of(third, 0), memoryview(file_of(third, 0)), whole="another")
        assert steps_of(memory) == kept


def test_a_save_that_comes_late_deletes_neither_what_survivors_left_nor_what_was_whole_before(
    tmp_path: Path,
) -> None:
    memory, [first, second, third, fourth] = MemoryTier(tmp_path, "r"), cuts(4)
    keep(memory, first)
    for cut in (third, fourth):
        left = replace(cut, number=10**9)
        memory.keep_beside(left, part_of(left, 0), memoryview(file_of(left, 0)))
    keep(memory, second)
    assert steps_of(memory) == [10, 20, 30, 40]


def test_what_survivors_leave_deletes_nothing(tmp_path: Path) -> None:
    memory, [first, second, third] = MemoryTier(tmp_path, "r"), cuts(3)
    for cut in (first, second):
        keep(memory, cut)
    memory.keep_beside(third, part_of(third, 0), memoryview(file_of(third, 0)))
    assert steps_of(memory) == [10, 20, 30]


def test_what_ranks_saved_that_are_no_more_goes_with_the_save_it_belongs_to(tmp_path: Path) -> None:
    memory = MemoryTier(tmp_path, "r")
    keep(memory, *cuts(1, world_size=2))
    for cut in cuts(3)[1:]:
        keep(memory, cut)
    assert (steps_of(memory), steps_of(memory, rank=1)) == ([20, 30], [])


def test_shares_and_copies_of_other_ranks_are_read_as_those_on_a_disk(tmp_path: Path) -> None:
    memory, [cut] = MemoryTier(tmp_path, "r"), cuts(1, world_size=3)
    keep(memory, cut)
    manifest = manifest_of(cut, [part for _, part in memory.inventory()])
    assert load_from(manifest, [memory.place(cut.generation)]) == content(cut.generation, 3)


def test_it_is_closed_to_other_users_from_the_folder_on_that_has_this_users_name(tmp_path: Path) -> None:
    keep(MemoryTier(tmp_path, "r"), *cuts(1))
    assert {path.name for path in tmp_path.iterdir()} == {OURS}
    below = [tmp_path / OURS, *(tmp_path / OURS).rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in below if path.is_dir()} == {0o700}


@needs_root
def test_what_another_user_has_planted_under_that_name_is_neither_used_nor_deleted(tmp_path: Path) -> None:
    (tmp_path / OURS).mkdir()
    os.chown(tmp_path / OURS, NOBODY, NOBODY)
    memory = MemoryTier(tmp_path, "r")
    for call in (lambda: keep(memory, *cuts(1)), memory.inventory, memory.forget):
        with pytest.raises(Denied, match="belongs to user"):
            call()
    assert (tmp_path / OURS).exists()


def test_it_is_given_back_but_for_what_is_still_wanted(tmp_path: Path) -> None:
    memory, [first, second] = MemoryTier(tmp_path, "r"), cuts(2)
    other = MemoryTier(tmp_path, local_tier_name("r", "elsewhere"))
    for cut in (first, second):
        keep(memory, cut)
    keep(other, first)
    memory.forget(but=first.generation)
    assert steps_of(memory) == [10]
    memory.forget()
    assert (steps_of(memory), steps_of(other)) == ([], [10])


def test_what_runs_have_left_that_saved_nothing_for_a_day_is_deleted(tmp_path: Path) -> None:
    [cut] = cuts(1)
    old, own = MemoryTier(tmp_path, "old"), MemoryTier(tmp_path, "r")
    keep(old, cut)
    theirs = tmp_path / "theirs/runs/old/gen"
    theirs.mkdir(parents=True)
    own.forget_old_runs(now_s=cut.created_s + 86_399)
    assert steps_of(old) == [10]
    own.forget_old_runs(now_s=cut.created_s + 86_401)
    assert steps_of(old) == []
    assert theirs.exists() and not any(OURS in path for path in files_in(tmp_path))


def test_a_run_that_comes_back_after_a_day_keeps_what_it_has_resumed(tmp_path: Path) -> None:
    [cut] = cuts(1)
    own = MemoryTier(tmp_path, "r")
    keep(own, cut)
    own.forget_old_runs(now_s=cut.created_s + 90_000)
    assert steps_of(own) == [10]


def test_there_is_no_more_room_than_the_machine_has_memory(tmp_path: Path) -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < MemoryTier(tmp_path / "not/there/yet", "r").free_bytes() < total
