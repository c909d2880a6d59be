"""A report in the store and its copies: whole, verified, and only what changed travels."""

import errno
import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpointing.stores.contract import Store, StoreError, Unavailable
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from reporting.results.publishing import Pulled, PullError, publish, pull, reports_of
from tests.unit.other_user import NOBODY, needs_root

FILES = {"metrics.csv": b"a,b\n1,2\n", "plots/one.png": b"picture" * 1000, "empty.txt": b""}


class Counting(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0
        self.puts: list[str] = []

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        count = super().get_range(name, start, into)
        self.num_bytes += 0 if name.endswith("/manifest.json") else count
        return count

    def put(self, name: str, data: bytes | memoryview) -> None:
        self.puts.append(name)
        super().put(name, data)


def pulled(store: Store, folder: Path) -> Pulled:
    return pull(store, "all", folder, sleep=lambda seconds: None)


def contents(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_a_copy_is_the_report(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    publish(store, "all", FILES)

    found = pulled(store, tmp_path / "copy")

    copy = contents(tmp_path / "copy")
    assert copy.pop("manifest.json") == store.get("reports/all/manifest.json")
    assert copy == FILES
    assert found.fetched == tuple(sorted(FILES))


def test_only_what_changed_is_fetched_and_what_is_gone_goes(tmp_path: Path) -> None:
    store = Counting()
    publish(store, "all", FILES)
    pulled(store, tmp_path)
    (tmp_path / "mine.txt").write_text("not the report's")
    publish(store, "all", {"metrics.csv": b"new", "plots/one.png": FILES["plots/one.png"]})
    store.num_bytes = 0

    found = pulled(store, tmp_path)

    assert (found.fetched, found.unchanged) == (("metrics.csv",), ("plots/one.png",))
    assert found.removed == ("empty.txt",)
    assert store.num_bytes == len(b"new")
    assert contents(tmp_path).keys() == {"metrics.csv", "plots/one.png", "manifest.json", "mine.txt"}


def test_only_what_changed_is_published(tmp_path: Path) -> None:
    store = Counting()
    publish(store, "all", FILES)
    store.puts.clear()

    publish(store, "all", {**FILES, "metrics.csv": b"new"})

    assert store.puts == ["reports/all/metrics.csv", "reports/all/manifest.json"]


@pytest.mark.parametrize("damaged", [None, b"", b"ol", b"old and more"])
def test_a_file_that_lost_or_gained_bytes_in_the_store_is_published_again(damaged: bytes | None) -> None:
    store = MemoryStore()
    publish(store, "all", {"metrics.csv": b"old"})
    if damaged is None:
        store.delete("reports/all/metrics.csv")
    else:
        store.put("reports/all/metrics.csv", damaged)
    publish(store, "all", {"metrics.csv": b"old"})
    assert store.get("reports/all/metrics.csv") == b"old"


def test_a_damaged_copy_is_fetched_again(tmp_path: Path) -> None:
    store = MemoryStore()
    publish(store, "all", FILES)
    pulled(store, tmp_path)
    (tmp_path / "metrics.csv").write_bytes(b"a,b\n1,3\n")

    assert pulled(store, tmp_path).fetched == ("metrics.csv",)
    assert (tmp_path / "metrics.csv").read_bytes() == FILES["metrics.csv"]


class Breaking(Counting):
    """Gives at most ``most`` bytes at a time, and breaks after ``num_reads`` reads."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.num_reads = 10**9

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        if name.endswith("/manifest.json"):
            return super().get_range(name, start, into)
        self.num_reads -= 1
        if self.num_reads < 0:
            raise Unavailable("store: gone")
        return super().get_range(name, start, into[: self.most])


def test_a_pull_that_broke_off_is_gone_on_with(tmp_path: Path) -> None:
    store = Breaking(most=1000)
    publish(store, "all", FILES)
    store.num_reads = 5
    with pytest.raises(Unavailable):
        pulled(store, tmp_path)
    assert not (tmp_path / "plots/one.png").exists()
    store.num_reads = 10**9

    pulled(store, tmp_path)

    copy = contents(tmp_path)
    assert copy.pop("manifest.json")
    assert copy == FILES
    assert store.num_bytes == sum(map(len, FILES.values()))


def test_a_pull_that_breaks_off_leaves_the_report_that_was_there(tmp_path: Path) -> None:
    store = MemoryStore()
    publish(store, "all", FILES)
    pulled(store, tmp_path)
    before = contents(tmp_path)
    publish(store, "all", {file: b"new " + data for file, data in FILES.items()})
    store.delete("reports/all/plots/one.png")

    with pytest.raises(PullError):
        pulled(store, tmp_path)

    assert contents(tmp_path).items() >= before.items()


def test_bytes_that_the_manifest_does_not_know_never_get_their_name(tmp_path: Path) -> None:
    store = MemoryStore()
    publish(store, "all", FILES)
    store.put("reports/all/metrics.csv", b"a,b\n9,9\n")

    with pytest.raises(PullError, match="is not what its manifest says; make the report again"):
        pulled(store, tmp_path)

    assert not (tmp_path / "metrics.csv").exists()


def test_a_report_that_is_replaced_meanwhile_is_pulled_in_its_new_form(tmp_path: Path) -> None:
    store = MemoryStore()
    publish(store, "all", FILES)
    store.put("reports/all/metrics.csv", b"new")

    def go_on(seconds: float) -> None:
        publish(store, "all", {"metrics.csv": b"new"})

    found = pull(store, "all", tmp_path, sleep=go_on)

    assert found.fetched == ("metrics.csv",)
    assert (tmp_path / "metrics.csv").read_bytes() == b"new"


def test_a_damaged_manifest_is_replaced_by_the_next_report(tmp_path: Path) -> None:
    store = MemoryStore()
    store.put("reports/all/manifest.json", b"{")
    with pytest.raises(PullError, match="is no manifest"):
        pulled(store, tmp_path)

    publish(store, "all", FILES)

    assert pulled(store, tmp_path).fetched == tuple(sorted(FILES))


@pytest.mark.parametrize("file", ["../escape", "/etc/passwd", "a/../../b", ".hidden"])
def test_a_manifest_never_leads_out_of_the_folder(tmp_path: Path, file: str) -> None:
    store = MemoryStore()
    manifest = {"schema_version": 1, "files": {file: {"num_bytes": 1, "sha256": "0"}}}
    store.put("reports/all/manifest.json", json.dumps(manifest).encode())

    with pytest.raises(PullError, match="would not stay in the folder"):
        pulled(store, tmp_path / "copy")


def test_a_report_that_is_not_there_is_an_error_that_names_the_others(tmp_path: Path) -> None:
    store = MemoryStore()
    with pytest.raises(PullError, match="there is no report 'all'; `longhaul report` makes one"):
        pulled(store, tmp_path)
    publish(store, "smoke", FILES)

    with pytest.raises(PullError, match="there is no report 'all'; there are smoke"):
        pulled(store, tmp_path)

    assert reports_of(store) == ("smoke",)


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(StoreError, match="is not a name"):
        publish(MemoryStore(), "../escape", FILES)


# In the folder that a report is copied to: what people and other programs put there.
THEIRS = (
    ".unfinished-novel",
    "plots/.unfinished-0123456789abcdef-two.png",
    "plots/.unfinished-0123456789abcdex-one.png",
    "chapters/.unfinished-0123456789abcdef-one.png",
    "plots/mine.png",
)


def test_a_copy_removes_only_what_a_pull_put_there(tmp_path: Path) -> None:
    store = MemoryStore()
    publish(store, "all", FILES | {"notes.txt": b"the report's"})
    pulled(store, tmp_path)
    for name in THEIRS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("theirs")
    (tmp_path / "notes.txt").write_text("changed by hand")
    begun = tmp_path / "plots" / ".unfinished-0123456789abcdef-one.png"
    begun.write_text("of a pull that broke off")
    publish(store, "all", {"metrics.csv": FILES["metrics.csv"]})

    found = pulled(store, tmp_path)

    assert found.removed == ("empty.txt", "plots/one.png")
    assert contents(tmp_path).keys() == {*THEIRS, "notes.txt", "metrics.csv", "manifest.json"}


def test_a_copy_removes_nothing_through_a_link(tmp_path: Path) -> None:
    store, copy, elsewhere = MemoryStore(), tmp_path / "copy", tmp_path / "elsewhere"
    publish(store, "all", FILES)
    pulled(store, copy)
    (copy / "plots").rename(elsewhere)
    (copy / "plots").symlink_to(elsewhere)
    (elsewhere / ".unfinished-0123456789abcdef-one.png").write_text("begun there")
    before = contents(elsewhere)
    publish(store, "all", {"metrics.csv": FILES["metrics.csv"]})

    assert pulled(store, copy).removed == ("empty.txt",)
    assert contents(elsewhere) == before


PLANTS: dict[str, Callable[[Path, Path], None]] = {
    "link": lambda path, victim: path.symlink_to(victim),
    "hard link": lambda path, victim: path.hardlink_to(victim),
    "pipe": lambda path, victim: os.mkfifo(path),
}


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("planted", ["manifest.json", "metrics.csv"])
@pytest.mark.parametrize("is_unfinished", [True, False])
def test_a_copy_harms_nobody_through_what_was_there_first(
    plant: str, planted: str, is_unfinished: bool, tmp_path: Path
) -> None:
    store, copy, victim = MemoryStore(), tmp_path / "copy", tmp_path / "victim"
    publish(store, "all", {"metrics.csv": FILES["metrics.csv"]})
    victim.write_text("mine alone")
    digest = hashlib.sha256(FILES["metrics.csv"]).hexdigest()[:16]
    copy.mkdir()
    unfinished = f".unfinished-{planted if planted == 'manifest.json' else f'{digest}-{planted}'}"
    PLANTS[plant](copy / (unfinished if is_unfinished else planted), victim)

    pulled(store, copy)

    assert victim.read_text() == "mine alone"
    assert contents(copy).keys() == {"metrics.csv", "manifest.json"}
    assert (copy / "metrics.csv").read_bytes() == FILES["metrics.csv"]
    assert not any(path.is_symlink() for path in copy.iterdir())


def test_a_copy_replaces_no_file_that_no_pull_put_there(tmp_path: Path) -> None:
    """A manifest may name any file, such as one of the programs in the folder that somebody pulls into."""
    store = MemoryStore()
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "sweep.py").write_bytes(b"mine")
    # First it is named with its right digest, as if an earlier pull had fetched it.
    publish(store, "all", {**FILES, "jobs/sweep.py": b"mine"})
    assert "jobs/sweep.py" in pulled(store, tmp_path).unchanged
    before = contents(tmp_path)
    publish(store, "all", {"metrics.csv": b"new", "empty.txt": b"x", "jobs/sweep.py": b"evil"})

    with pytest.raises(PullError, match=r"jobs/sweep.py: is there already, and no pull put it there"):
        pulled(store, tmp_path)
    assert contents(tmp_path) == before

    publish(store, "all", {"metrics.csv": b"new"})
    assert "jobs/sweep.py" not in pulled(store, tmp_path).removed
    assert contents(tmp_path)["jobs/sweep.py"] == b"mine"


def test_a_copy_replaces_no_manifest_of_something_else(tmp_path: Path) -> None:
    """Such as that of a browser's extension, whose folder somebody pulls into."""
    store = MemoryStore()
    publish(store, "all", FILES)
    (tmp_path / "manifest.json").write_bytes(b'{"manifest_version": 3}')
    with pytest.raises(PullError, match=r"manifest.json: is there already, and no pull put it there"):
        pulled(store, tmp_path)
    assert contents(tmp_path) == {"manifest.json": b'{"manifest_version": 3}'}


@needs_root
def test_a_manifest_that_another_user_planted_has_nothing_removed_or_replaced(tmp_path: Path) -> None:
    """Into a folder for everybody, where each may remove only files of his own."""
    store = MemoryStore()
    publish(store, "other", {"notes.txt": b"mine"})
    publish(store, "all", {"metrics.csv": b"1"})
    (tmp_path / "notes.txt").write_bytes(b"mine")
    (tmp_path / "manifest.json").write_bytes(store.get("reports/other/manifest.json"))
    os.chown(tmp_path / "manifest.json", NOBODY, NOBODY)

    assert pulled(store, tmp_path).removed == ()

    assert contents(tmp_path).keys() == {"notes.txt", "metrics.csv", "manifest.json"}
    assert (tmp_path / "manifest.json").stat().st_uid == os.geteuid()


def test_a_pull_that_broke_off_while_files_got_their_names_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    publish(store, "all", FILES)
    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", fails_after(2))
        with pytest.raises(PullError):
            pulled(store, tmp_path)
    publish(store, "all", {file: b"new " + data for file, data in FILES.items()})

    pulled(store, tmp_path)

    copy = contents(tmp_path)
    assert copy.pop("manifest.json") == store.get("reports/all/manifest.json")
    assert copy == {file: b"new " + data for file, data in FILES.items()}


def fails_after(number: int) -> Callable[..., None]:
    replace, left = os.replace, [number]

    def failing(*args: Any, **more: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "no room")
        replace(*args, **more)

    return failing


def test_a_folder_that_becomes_a_link_meanwhile_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, copy, theirs = MemoryStore(), tmp_path / "copy", tmp_path / "theirs"
    publish(store, "all", FILES)
    pulled(store, copy)
    publish(store, "all", {"metrics.csv": FILES["metrics.csv"]})
    theirs.mkdir()
    (theirs / "one.png").write_bytes(FILES["plots/one.png"])
    digest = hashlib.file_digest

    def exchanging(file: Any, name: str) -> Any:
        found = digest(file, name)
        if found.digest() == hashlib.sha256(FILES["plots/one.png"]).digest() and not (copy / "gone").exists():
            (copy / "plots").rename(copy / "gone")
            (copy / "plots").symlink_to(theirs)
        return found

    monkeypatch.setattr(hashlib, "file_digest", exchanging)
    pulled(store, copy)
    assert contents(theirs) == {"one.png": FILES["plots/one.png"]}


def test_a_copy_writes_nothing_into_a_folder_that_a_link_leads_to(tmp_path: Path) -> None:
    store, copy, theirs = MemoryStore(), tmp_path / "copy", tmp_path / "theirs"
    publish(store, "all", FILES)
    theirs.mkdir()
    (theirs / "one.png").write_text("mine alone")
    copy.mkdir()
    (copy / "plots").symlink_to(theirs)

    with pytest.raises(PullError, match=re.escape(f"{copy}/plots: can't be written (is a link)")):
        pulled(store, copy)

    assert contents(theirs) == {"one.png": b"mine alone"}


@pytest.mark.parametrize(
    "entry",
    [
        {"num_bytes": -5, "sha256": "0" * 64},
        {"num_bytes": 1, "sha256": "../../../../escape"},
        {"num_bytes": 1, "sha256": "0" * 63 + "\0"},
    ],
)
def test_a_manifest_of_impossible_entries_is_told_in_one_line(
    tmp_path: Path, entry: dict[str, object]
) -> None:
    store = MemoryStore()
    manifest = {"schema_version": 1, "files": {"a": entry}}
    store.put("reports/all/manifest.json", json.dumps(manifest).encode())
    with pytest.raises(PullError, match="has a size or a digest that is none; make the report again"):
        pulled(store, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_manifest_without_an_end_is_not_read(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    publish(store, "all", FILES)
    os.truncate(tmp_path / "store/reports/all/manifest.json", 1 << 40)
    with pytest.raises(PullError, match=r"manifest.json has 1,099,511,627,776 bytes, at most"):
        pulled(store, tmp_path / "copy")


def test_a_folder_that_can_not_be_written_is_named_without_an_error_number(tmp_path: Path) -> None:
    store = MemoryStore()
    publish(store, "a", {"index.html": b"page"})
    taken = tmp_path / "taken"
    taken.touch()
    says = "can't be written (File exists); give another folder, or make room there"
    with pytest.raises(PullError, match=re.escape(f"{taken}: {says}")):
        pull(store, "a", taken)
    (tmp_path / "copy" / "index.html").mkdir(parents=True)
    with pytest.raises(PullError, match=r"copy/index.html: can't be written \(Is a directory\)"):
        pull(store, "a", tmp_path / "copy")


def test_publishing_again_deletes_only_what_the_earlier_report_named() -> None:
    store = MemoryStore()
    publish(store, "all", FILES)
    publish(store, "other", FILES)
    store.put("reports/all/mine.txt", b"mine")
    publish(store, "all", {"metrics.csv": b"new"})
    assert set(store.list("reports/all")) == {
        f"reports/all/{name}" for name in ("mine.txt", "metrics.csv", "manifest.json")
    }
    assert {name.removeprefix("reports/other/") for name in store.list("reports/other")} == {
        *FILES,
        "manifest.json",
    }
