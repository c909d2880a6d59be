"""Another user of a node exchanges the folders that a run's saves lie in, at any moment after a look."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from checkpointing.format.manifest import Cut
from checkpointing.saving.local_tier import LocalTier
from checkpointing.stores.contract import Denied, StoreError
from tests.unit.other_user import NOBODY, as_nobody, common_folder, needs_root
from tests.unit.small_generations import cut_of, file_of, part_of

ANOTHER = 12345
OLD, NEW, PLANTED = (cut_of(10 * number, term=1, number=number) for number in (1, 2, 9))


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A disk for everybody. No power cut comes, so nothing has to wait for it."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    with common_folder() as common:
        yield common


def keep(disk: LocalTier, cut: Cut) -> None:
    disk.keep(cut, part_of(cut, 0), memoryview(file_of(cut, 0)))


def plant(folder: Path, cut: Cut = PLANTED, *, user: int = NOBODY) -> None:
    keep(LocalTier(folder, "r", 2), cut)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user)


def offered_by(disk: LocalTier) -> list[Cut]:
    with suppress(StoreError):
        return [cut for cut, _ in disk.inventory()]
    return []


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# The folder that the user named, the one of all runs, the run's, and that of its saves.
@needs_root
@pytest.mark.parametrize("below", ["", "runs", "runs/r", "runs/r/gen"])
def test_nothing_that_is_exchanged_before_any_call_is_offered_or_written_to(
    below: str, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, num_calls = 1, 1
    while number <= num_calls:
        ours, theirs = node / f"{number}/disk", node / f"{number}/planted"
        disk = LocalTier(ours, "r", 2)
        keep(disk, OLD)
        plant(theirs)
        planted = files_in(theirs / below)

        def exchange(ours: Path = ours / below, theirs: Path = theirs / below) -> None:
            ours.rename(ours.with_name("away"))
            theirs.rename(ours)

        with monkeypatch.context() as patch:
            calls = exchange_before_call(number, exchange, patch)
            offered = offered_by(disk)
            for act in (partial(keep, disk, NEW), disk.tidy):
                with suppress(StoreError):
                    act()
            offered += offered_by(disk)
        num_calls = len(calls)
        assert PLANTED not in offered
        assert files_in(ours / below) == planted
        number += 1
    assert number > 20


def exchange_before_call(number: int, exchange: Callable[[], None], patch: pytest.MonkeyPatch) -> list[int]:
    """Lets ``exchange`` happen before the ``number``-th folder or file is opened. Returns the calls."""
    inner, calls = os.open, []

    def opened(*args: Any, **more: Any) -> int:
        calls.append(1)
        if len(calls) == number:
            exchange()
        return inner(*args, **more)

    patch.setattr(os, "open", opened)
    return calls


@needs_root
def test_what_is_planted_in_a_folder_for_everybody_after_the_first_look_is_not_offered(node: Path) -> None:
    disk = LocalTier(node, "r", 2)
    assert disk.inventory() == []
    plant(node / "planted")
    (node / "planted/runs").rename(node / "runs")
    with pytest.raises(Denied, match="runs: belongs to user 65534, and may hold anything"):
        disk.inventory()


@needs_root
def test_a_share_is_not_read_from_what_was_exchanged_after_it_was_listed(node: Path) -> None:
    disk = LocalTier(node / "disk", "r", 2)
    keep(disk, OLD)
    [(_, part)] = disk.inventory()
    plant(node / "planted", OLD)
    (node / "disk/runs").rename(node / "away")
    (node / "planted/runs").rename(node / "disk/runs")
    place = disk.place(OLD.generation)
    with pytest.raises(Denied, match="runs: belongs to user 65534, and may hold anything"):
        place.store.get(f"{place.folder}/{part.file}")


def test_a_run_s_folder_that_others_may_write_to_is_refused_until_it_is_closed(tmp_path: Path) -> None:
    disk = LocalTier(tmp_path, "r", 2)
    keep(disk, OLD)
    (tmp_path / "runs/r").chmod(0o770)
    with pytest.raises(Denied, match="runs/r: has mode 0770: others may write to it"):
        disk.inventory()
    (tmp_path / "runs/r").chmod(0o755)
    assert [cut for cut, _ in disk.inventory()] == [OLD]


SAVES = """
from pathlib import Path
from checkpointing.saving import own_store
from checkpointing.saving.local_tier import LocalTier
from checkpointing.stores.contract import Denied
from tests.unit.small_generations import cut_of, file_of, part_of
become()
cut, disk = cut_of(10, term=1, number=1), LocalTier(Path(sys.argv[1]), "r", 2)
try:
    disk.keep(cut, part_of(cut, 0), memoryview(file_of(cut, 0)))
    print(len(disk.inventory()))
except Denied as error:
    print(error)
"""


@needs_root
def test_a_folder_whose_owner_could_exchange_what_lies_in_it_is_refused_with_its_owner(node: Path) -> None:
    theirs, named = node / "theirs", node / "theirs/open"
    named.mkdir(parents=True)
    named.chmod(0o777)
    (node / "link").symlink_to(named)
    assert as_nobody(SAVES, named) == as_nobody(SAVES, node / "link") == "1\n"
    os.chown(theirs, ANOTHER, ANOTHER)
    assert as_nobody(SAVES, node / "link") == (
        f"store: {node}/link: {theirs} belongs to user {ANOTHER}, who could exchange what lies in it; "
        "name a folder that is yours, below folders of yours or root's\n"
    )
    fresh = theirs / "fresh"
    fresh.mkdir()
    fresh.chmod(0o777)
    assert f"{theirs} belongs to user {ANOTHER}" in as_nobody(SAVES, fresh)
    assert not any(fresh.iterdir())
    os.chown(theirs, 0, 0)
    os.chown(node / "link", ANOTHER, ANOTHER, follow_symlinks=False)
    assert f"{node}/link belongs to user {ANOTHER}" in as_nobody(SAVES, node / "link")
    assert as_nobody(SAVES, named) == "1\n"


@needs_root
def test_root_in_a_container_takes_a_volume_of_any_user_and_closes_its_own_folder_in_it(node: Path) -> None:
    os.chown(node, ANOTHER, ANOTHER)
    disk = LocalTier(node, "r", 2)
    keep(disk, OLD)
    assert [cut for cut, _ in disk.inventory()] == [OLD]
    found = (node / "runs/r").stat()
    assert (found.st_uid, found.st_mode & 0o777) == (0, 0o700)


@needs_root
def test_who_is_shown_for_everybody_outside_a_container_is_not_taken_for_a_user(node: Path) -> None:
    """Without root's powers a container shows the machine's root as it shows any other user of outside."""
    named, ids = node / "volume/open", node / "uid_map"
    named.mkdir(parents=True)
    named.chmod(0o777)
    os.chown(node / "volume", ANOTHER, ANOTHER)
    ids.write_text(f"{NOBODY:>10} {NOBODY:>10} {1:>10}\n")
    ids.chmod(0o644)
    in_container = SAVES.replace("become()", f"become()\nown_store._UID_MAP = Path({str(ids)!r})")
    assert as_nobody(in_container, named) == "1\n"
    ids.write_text(f"{0:>10} {0:>10} {ANOTHER + 1:>10}\n")
    assert f"{named.parent} belongs to user {ANOTHER}" in as_nobody(in_container, named)
