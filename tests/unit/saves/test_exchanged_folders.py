"""Another user of a node exchanges the folders that a run's saves lie in, at any moment after a look."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from errno import EPERM
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from checkpointing.format.manifest import Cut
from checkpointing.saving import own_store
from checkpointing.saving.local_tier import LocalTier
from checkpointing.stores import folders
from checkpointing.stores.contract import Denied, NotAFile, StoreError
from tests.unit.foreign_mounts import mounted
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
            calls = do_before_call(number, exchange, patch, "open")
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


def do_before_call(
    number: int, act: Callable[[], object], patch: pytest.MonkeyPatch, *names: str
) -> list[int]:
    """Calls ``act`` before the ``number``-th call of those functions of ``os``. Returns their calls."""
    calls: list[int] = []

    def counted(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            calls.append(1)
            if len(calls) == number:
                act()
            return inner(*args, **more)

        return call

    for name in names:
        patch.setattr(os, name, counted(getattr(os, name)))
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


@pytest.fixture
def group_umask() -> Iterator[None]:
    before = os.umask(0o002)
    yield
    os.umask(before)


@pytest.mark.usefixtures("group_umask")
def test_under_a_groups_umask_the_run_s_folder_is_closed_from_the_start(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another rank looks right after each folder is made. Those above the root may be for the group."""
    disk, inner, made = LocalTier(node / "new/disk", "r", 2), os.mkdir, []

    def mkdir(*args: Any, **more: Any) -> None:
        inner(*args, **more)
        made.append(args[0])
        assert LocalTier(node / "new/disk", "r", 2).inventory() == []

    monkeypatch.setattr(os, "mkdir", mkdir)
    keep(disk, OLD)
    assert made[-4:] == ["runs", "r", "gen", OLD.generation]
    modes = [(node / name).stat().st_mode & 0o777 for name in ("new/disk", "new/disk/runs/r")]
    assert modes == [0o775, 0o700]


def left_open(folder: Path) -> bytes:
    """As earlier versions left it under a group's umask. Somebody of the group planted a save."""
    keep(LocalTier(folder, "r", 2), PLANTED)
    for path in (folder / "runs", *(folder / "runs").rglob("*")):
        path.chmod(0o775 if path.is_dir() else 0o664)
    return next((folder / "runs/r/gen").rglob("*.json")).read_bytes()


def test_a_run_s_folder_that_was_left_open_is_set_aside_by_the_next_save_and_never_offered(
    node: Path,
) -> None:
    planted, disk = left_open(node), LocalTier(node, "r", 2)
    assert offered_by(disk) == []
    told = disk.keep(NEW, part_of(NEW, 0), memoryview(file_of(NEW, 0)))
    [aside] = (node / "runs").glob("r.open-*")
    assert told == (
        f"others could write to {node}/runs/r, and what lay there may be theirs: it is {aside.name} now, "
        "and saves begin anew; look at it and remove it"
    )
    assert planted in files_in(aside).values()
    assert offered_by(disk) == [NEW]
    assert disk.keep(OLD, part_of(OLD, 0), memoryview(file_of(OLD, 0))) is None
    assert offered_by(disk) == [OLD, NEW]
    assert [*(node / "runs").glob("r.open-*")] == [aside]


def test_of_what_was_set_aside_at_each_start_of_a_pod_only_the_newest_fills_the_disk(node: Path) -> None:
    """``fsGroup`` opens the folder each time. Another user of the group put a link among what is deleted."""
    disk, theirs = LocalTier(node / "disk", "r", 2), node / "theirs"
    theirs.mkdir()
    (theirs / "file").touch()
    for number in range(1, 5):
        keep(disk, cut_of(10 * number, term=1, number=number))
        (node / "disk/runs/r/link").symlink_to(theirs)
        (node / "disk/runs/r").chmod(0o2770)
    keep(LocalTier(node / "disk", "r.open", 2), OLD)
    keep(disk, NEW)
    [aside] = (node / "disk/runs").glob("r.open-*")
    assert len(list((aside / "gen").iterdir())) == 1
    assert {path.name for path in (node / "disk/runs").iterdir()} == {"r", "r.open", aside.name}
    assert (theirs / "file").exists()


def test_only_what_was_set_aside_is_deleted_whatever_somebody_gives_its_name(node: Path) -> None:
    """Who may write to the folder of all runs renames another run's folder, and plants a link beside it."""
    disk, runs = LocalTier(node, "r", 2), node / "runs"
    keep(LocalTier(node, "other", 2), OLD)
    keep(disk, OLD)
    for name in ("r.open-1", "r.open-3", "r.open-kept", "r.open-4-kept"):
        (runs / name / "gen").mkdir(parents=True)
        (runs / name).chmod(0o770)
    (runs / "other").rename(runs / "r.open-2")
    (runs / "r.open-0").symlink_to(runs / "r.open-2")
    (runs / "r").chmod(0o770)
    keep(disk, NEW)
    left = {path.name for path in runs.iterdir() if not path.name.endswith(str(path.stat().st_ino))}
    assert left == {"r", "r.open-0", "r.open-2", "r.open-kept", "r.open-4-kept"}
    assert files_in(runs / "r.open-2")


def test_another_run_s_folder_that_takes_the_name_while_it_is_deleted_stays(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in count(1):
        place = node / f"{number}"
        disk, runs = LocalTier(place, "r", 2), place / "runs"
        keep(LocalTier(place, "other", 2), OLD)
        keep(disk, OLD)
        (runs / "r.open-1/gen").mkdir(parents=True)
        (runs / "r.open-1").chmod(0o770)
        (runs / "r").chmod(0o770)
        before = files_in(runs / "other")

        def exchange(runs: Path = runs) -> None:
            if (runs / "r.open-1").exists():
                (runs / "r.open-1").rename(runs / "away")
                (runs / "other").rename(runs / "r.open-1")

        with monkeypatch.context() as patch:
            calls = do_before_call(number, exchange, patch, "open", "mkdir", "fstat", "lstat", "rename")
            keep(disk, NEW)
        assert before in (files_in(runs / "other"), files_in(runs / "r.open-1"))
        if len(calls) < number:
            break
    assert number > 20


@pytest.mark.parametrize("problem", [RecursionError(), OSError("too many open files")])
def test_folders_in_one_another_without_end_in_what_was_set_aside_keep_no_save_back(
    problem: Exception, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of these ``rmtree`` raises for them depends on Python's version."""

    def rmtree(*_: Any, **__: Any) -> None:
        raise problem

    monkeypatch.setattr(own_store, "rmtree", rmtree)
    disk = LocalTier(node, "r", 2)
    keep(disk, OLD)
    (node / "runs/r.open-1").mkdir()
    (node / "runs/r.open-1").chmod(0o770)
    (node / "runs/r").chmod(0o770)
    keep(disk, NEW)
    assert offered_by(disk) == [NEW]


def test_nothing_is_written_into_a_run_s_folder_that_was_opened_since_the_save_began(node: Path) -> None:
    left_open(node)
    before = files_in(node)
    with pytest.raises(Denied, match="runs/r: has mode 0775: others may write to it"):
        own_store.OwnStore(node, closed="runs/r").put("runs/r/gen/new", b"")
    assert files_in(node) == before


def keep_no_modes(monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    """As vfat, CIFS and some programs of FUSE do: each folder has the mode that the mount was given."""
    mkdir, chmod = os.mkdir, os.chmod

    def made(path: Any, _: int = 0o777, *, dir_fd: int | None = None) -> None:
        mkdir(path, dir_fd=dir_fd)
        chmod(path, mode, dir_fd=dir_fd)

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(EPERM, os.strerror(EPERM))

    monkeypatch.setattr(os, "mkdir", made)
    monkeypatch.setattr(os, "chmod", refused)


def test_where_the_file_system_keeps_no_modes_each_save_says_so_and_nothing_is_set_aside(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier version saved there stays as well."""
    keep(LocalTier(node, "r", 2), OLD)
    (node / "runs/r").chmod(0o777)
    before = files_in(node)
    keep_no_modes(monkeypatch, 0o777)
    for name in ("r", "new", "r", "new"):
        with pytest.raises(Denied) as error:
            keep(LocalTier(node, name, 2), NEW)
        assert str(error.value) == (
            f"store: {node}: its file system keeps no modes, so others may write to any folder there and "
            "plant what a run resumes; name another checkpoint.local.dir"
        )
        with pytest.raises(Denied, match="others may write to it"):
            LocalTier(node, name, 2).inventory()
    assert files_in(node) == before
    assert {path.name for path in (node / "runs").iterdir()} == {"r", "new"}
    assert {path.name for path in (node / "runs/r").iterdir()} == {"gen"}


def test_where_the_file_system_keeps_no_modes_but_others_may_not_write_saves_stay(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_no_modes(monkeypatch, 0o755)
    disk = LocalTier(node, "r", 2)
    for cut in (OLD, NEW):
        keep(disk, cut)
    assert offered_by(disk) == [OLD, NEW]


def test_what_goes_wrong_on_a_node_s_disk_names_the_key_that_leads_there(node: Path) -> None:
    disk = LocalTier(node, "r", 2)
    keep(disk, OLD)
    [part] = (node / "runs/r/gen").rglob("*.json")
    part.unlink()
    part.symlink_to("elsewhere")
    with pytest.raises(NotAFile, match=r"or name another checkpoint\.local\.dir$"):
        own_store.OwnStore(node, closed="runs/r").get(str(part.relative_to(node)))
    (node / "file").touch()
    with pytest.raises(StoreError, match=r"mend it, or name another checkpoint\.local\.dir$"):
        keep(LocalTier(node / "file", "r", 2), OLD)


@needs_root
def test_another_user_s_folder_is_not_set_aside_for_being_open(node: Path) -> None:
    left_open(node)
    os.chown(node / "runs/r", ANOTHER, ANOTHER)
    with pytest.raises(Denied, match=f"runs/r: belongs to user {ANOTHER}"):
        keep(LocalTier(node, "r", 2), NEW)
    assert {path.name for path in (node / "runs").iterdir()} == {"r"}
    assert {path.name for path in (node / "runs/r").iterdir()} == {"gen"}


@pytest.mark.parametrize("is_empty", [False, True])
def test_of_ranks_that_find_a_folder_left_open_none_sets_aside_what_another_began(
    is_empty: bool, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank saves before each call of another's first save."""
    cut = cut_of(20, term=1, number=2, world_size=2)
    for number in count(1):
        disk = LocalTier(node / f"{number}", "r", 2)
        left_open(node / f"{number}")
        if is_empty:
            shutil.rmtree(node / f"{number}/runs/r/gen")
        with monkeypatch.context() as patch:
            rank_1 = partial(disk.keep, cut, part_of(cut, 1), memoryview(file_of(cut, 1)))
            calls = do_before_call(number, rank_1, patch, "open", "mkdir", "fstat", "rename")
            keep(disk, cut)
        if len(calls) < number:
            break
        assert sorted(part.rank for _, part in disk.inventory()) == [0, 1]
    assert number > 20


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_run_s_folder_that_others_may_write_to_is_refused_until_it_is_closed(
    mode: int, tmp_path: Path
) -> None:
    disk = LocalTier(tmp_path, "r", 2)
    keep(disk, OLD)
    (tmp_path / "runs/r").chmod(mode)
    with pytest.raises(Denied, match=f"runs/r: has mode {mode:04o}: others may write to it"):
        disk.inventory()
    (tmp_path / "runs/r").chmod(0o755)
    assert [cut for cut, _ in disk.inventory()] == [OLD]


SAVES = """
from pathlib import Path
from checkpointing.saving import own_store
from checkpointing.saving.local_tier import LocalTier
from checkpointing.stores.contract import StoreError
from tests.unit.small_generations import cut_of, file_of, part_of
become()
cut, disk = cut_of(10, term=1, number=1), LocalTier(Path(sys.argv[1]), "r", 2)
try:
    disk.keep(cut, part_of(cut, 0), memoryview(file_of(cut, 0)))
    print(len(disk.inventory()))
except StoreError as error:
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
    named, ids, shown = node / "volume/open", node / "uid_map", node / "overflowuid"
    named.mkdir(parents=True)
    named.chmod(0o777)
    os.chown(node / "volume", ANOTHER, ANOTHER)
    shown.write_text(f"{ANOTHER}\n")
    told = f"own_store._UID_MAP = Path({str(ids)!r}); own_store._SHOWN_FOR_OUTSIDE = Path({str(shown)!r})"
    in_container = SAVES.replace("become()", f"become(); {told}")
    # The second has a user of that number as well, as Docker's and Podman's 65,536 users include 65534.
    for ranges in (f"{NOBODY:>10} {NOBODY:>10} {1:>10}\n", f"{0:>10} {100_000:>10} {65_536:>10}\n"):
        ids.write_text(ranges)
        assert as_nobody(in_container, named) == "1\n"
    ids.write_text(f"{0:>10} {0:>10} {2**32 - 1:>10}\n")
    assert f"{named.parent} belongs to user {ANOTHER}" in as_nobody(in_container, named)
    ids.write_text(ranges)
    shown.write_text("65534\n")
    assert f"{named.parent} belongs to user {ANOTHER}" in as_nobody(in_container, named)


READS = (
    SAVES[: SAVES.index("try:")]
    + """
place = disk.place(cut.generation)
try:
    place.store.get(f"{place.folder}/{part_of(cut, 0).file}")
    print("read")
except StoreError as error:
    print(error)
"""
)


@needs_root
def test_a_share_is_not_read_below_a_folder_that_became_another_user_s_after_it_was_listed(
    node: Path,
) -> None:
    named = node / "theirs/disk"
    named.mkdir(parents=True)
    named.chmod(0o777)
    assert as_nobody(SAVES, named) == "1\n"
    assert as_nobody(READS, named) == "read\n"
    os.chown(node / "theirs", ANOTHER, ANOTHER)
    assert f"{node}/theirs belongs to user {ANOTHER}, who could exchange" in as_nobody(READS, named)


@needs_root
def test_links_that_lead_in_a_circle_are_one_store_error(node: Path) -> None:
    (node / "one").symlink_to(node / "other")
    (node / "other").symlink_to(node / "one")
    assert "Too many levels of symbolic links" in as_nobody(SAVES, node / "one")
    os.chown(node / "one", ANOTHER, ANOTHER, follow_symlinks=False)
    assert f"{node}/one belongs to user {ANOTHER}" in as_nobody(SAVES, node / "one")


def test_nothing_is_offered_from_or_written_to_what_another_user_s_program_answers_for(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that the folder is this user's, of mode 0700."""
    disk = LocalTier(node, "r", 2)
    keep(disk, OLD)
    before = files_in(node)
    says = f"runs: is mounted by a program of user {ANOTHER}, and may hold anything; "
    says += "name another checkpoint.local.dir"
    with mounted(node, f"fuse.sshfs any rw,user_id={ANOTHER},group_id=0,allow_other", monkeypatch):
        for act in (disk.inventory, partial(keep, disk, NEW), disk.tidy):
            with pytest.raises(Denied, match=says):
                act()
    assert files_in(node) == before


@pytest.mark.parametrize("below", ["runs", "runs/r"])
def test_each_folder_that_another_user_could_mount_something_on_is_looked_at(
    below: str, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LocalTier(node, "r", 2)
    keep(disk, OLD)
    number = (node / below).stat().st_ino
    monkeypatch.setattr(
        own_store, "foreign_mount", lambda folder: "is it" if os.fstat(folder).st_ino == number else None
    )
    with pytest.raises(Denied, match=f"{node}/{below}: is it, and may hold anything"):
        disk.inventory()


# Root's, one's own, and file systems of the kernel.
@pytest.mark.parametrize(
    "system",
    [
        "fuse.gcsfuse any rw,user_id=0,group_id=0,allow_other",
        f"fuse  rw,user_id={os.geteuid()},group_id=0",
        f"ext4 user_id={ANOTHER} rw,user_id={ANOTHER}",
    ],
)
def test_what_root_or_the_user_mounted_holds_saves(
    system: str, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LocalTier(node, "r", 2)
    with mounted(node, system, monkeypatch):
        keep(disk, OLD)
        assert disk.inventory()


def test_no_name_that_the_mounting_user_chooses_passes_for_another_mount(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LocalTier(node, "r", 2)
    keep(disk, OLD)
    for name in ("x\r27", "user_id=0", "x,user_id=0", "\x1c1", "\\040-\\040ext4"):
        system = f"fuse.{name} {name} rw,user_id={ANOTHER}"
        with mounted(node, system, monkeypatch), pytest.raises(Denied, match="is mounted by"):
            disk.inventory()


def test_a_program_whose_user_is_not_told_is_refused(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = LocalTier(node, "r", 2)
    keep(disk, OLD)
    says = "is mounted by a program of user unknown"
    with mounted(node, "fuse any rw,group_id=0", monkeypatch), pytest.raises(Denied, match=says):
        disk.inventory()


def test_a_folder_whose_mount_is_gone_once_it_was_opened_is_refused(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LocalTier(node, "r", 2)
    keep(disk, OLD)
    with mounted(node, None, monkeypatch):
        monkeypatch.setattr(folders, "_ROOT", node)  # The root's own mount is not listed after ``chroot``.
        assert disk.inventory()
        monkeypatch.setattr(folders, "_ROOT", Path("/proc"))
        with pytest.raises(Denied, match="runs: lies on a mount that is gone"):
            disk.inventory()
