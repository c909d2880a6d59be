"""The contract over a directory, the memory and what wraps them; a directory when things stand in its way."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.stores.contract import Conflict, Store, StoreError, Unavailable, check_name
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from checkpointing.stores.opening import open_store
from checkpointing.stores.retrying import PatientStore
from tests.contract import RaceContract, StoreContract
from tests.faults import FaultyStore


class TestDirectory(StoreContract, RaceContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore(tmp_path / "store")


class TestMemory(StoreContract, RaceContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()


class TestPatience(StoreContract, RaceContract):
    @pytest.fixture
    def store(self) -> Store:
        return PatientStore(MemoryStore())


class TestFaultyWithoutFault(StoreContract, RaceContract):
    @pytest.fixture
    def store(self) -> Store:
        return FaultyStore(MemoryStore())


def test_what_others_put_there_under_names_that_are_none_is_contents_but_no_object(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "my texts").mkdir()
    for name in ("my texts/part 1", ".hidden", "plain"):
        (tmp_path / name).write_bytes(b"")
    assert sorted(store.contents()) == [".hidden", "my texts/part 1", "plain"]


@given(st.text(st.sampled_from("ab./\\~ \n-"), max_size=8))
def test_whatever_is_a_name_stays_below_the_root(name: str) -> None:
    root = Path("/data/store")
    try:
        check_name(name)
    except StoreError:
        return
    path = root / name
    assert ".." not in path.parts
    assert path.is_relative_to(root)
    assert str(path) == f"/data/store/{name}"


def test_a_directory_holds_nothing_else_after_writes_that_failed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b", b"")
    with pytest.raises(Conflict):
        store.create("a/b", b"")
    with pytest.raises(Unavailable):
        store.put("a", b"a folder is in the way")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "a" / "b"]


def test_files_that_a_person_left_in_a_store_are_no_objects(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("runs/a/result.json", b"{}")
    for stray in ("runs/.DS_Store", "runs/copy of a/result.json", "runs/a/.tmp-0123456789abcdef"):
        (tmp_path / stray).parent.mkdir(exist_ok=True)
        (tmp_path / stray).write_text("stray")
    assert list(store.list("runs")) == ["runs/a/result.json"]


def test_probing_a_good_directory_makes_it_and_leaves_nothing_in_it(tmp_path: Path) -> None:
    LocalStore(tmp_path / "new" / "store").probe()
    assert list((tmp_path / "new" / "store").iterdir()) == []


@pytest.mark.parametrize("below", ["", "/store", "/deep/store"])
def test_a_file_in_the_way_is_named_with_what_to_do(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("in the way")
    store = LocalStore(Path(f"{tmp_path}/file{below}"))
    with pytest.raises(StoreError, match=f"^store: {tmp_path}/file.*{tmp_path}/file.*--store$"):
        store.probe()


def test_a_device_that_takes_no_files_is_refused() -> None:
    with pytest.raises(StoreError, match="choose another with --store"):
        LocalStore(Path("/proc/longhaul")).probe()


def test_a_write_that_fails_later_says_where_and_may_be_tried_again(tmp_path: Path) -> None:
    (tmp_path / "sweeps").write_text("in the way")
    with pytest.raises(Unavailable, match=f"^store: {tmp_path}: sweeps/a: .*--store$"):
        LocalStore(tmp_path).put("sweeps/a", b"")


def test_a_link_to_a_folder_is_no_file_and_is_not_followed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("runs/a", b"")
    (tmp_path / "runs" / "elsewhere").symlink_to(tmp_path)
    assert list(store.list("runs")) == ["runs/a"]


def test_a_folder_that_cannot_be_read_is_an_error_and_not_empty(tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to("runs")  # a loop: ELOOP, which also stops root
    with pytest.raises(Unavailable):
        list(LocalStore(tmp_path).list("runs"))


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("results", "/base/results"),
        ("./a/b", "/base/a/b"),
        ("/data/results", "/data/results"),
        ("file:///data/results", "/data/results"),
        ("runs:old", "/base/runs:old"),
    ],
)
def test_a_store_is_a_directory_and_a_relative_one_starts_at_the_base(url: str, root: str) -> None:
    assert open_store(url, base=Path("/base")).url == root


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("gs://user:secret@bucket", "expected s3://bucket/prefix"),
        ("s3://bucket/../secret", "expected s3://bucket/prefix"),
        ("s3://", "expected s3://bucket/prefix"),
        ("file://results", "names a host"),
        ("http://[", "http:// is no kind of store"),
        ("~nobody-of-that-name/results", "without a home"),
    ],
)
def test_a_store_that_is_none_is_refused_in_one_line_without_its_secrets(url: str, says: str) -> None:
    with pytest.raises(StoreError, match=says) as refused:
        open_store(url)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)
