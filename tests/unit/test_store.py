"""One contract for every store, and what a directory does when the disk or the user stands in the way."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.store import (
    Conflict,
    LocalStore,
    MemoryStore,
    Missing,
    Store,
    StoreError,
    Unavailable,
    check_name,
    open_store,
)

NUM_THREADS = 16
ESCAPES = (
    "",
    ".",
    "..",
    "../x",
    "a/../b",
    "/etc/passwd",
    "a//b",
    "a/",
    ".hidden",
    "a/.tmp-1",
    "a\\b",
    "a b",
    "a\n",
)


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(tmp_path / "store") if request.param == "local" else MemoryStore()


def at_once(action: Callable[[int], object]) -> list[object]:
    """What each of many threads got that start together: a result, or the exception as a value."""
    barrier = threading.Barrier(NUM_THREADS, timeout=10)

    def start(index: int) -> object:
        barrier.wait()
        try:
            return action(index)
        except Exception as error:
            return error

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        return list(pool.map(start, range(NUM_THREADS)))


def test_what_was_put_is_got(store: Store) -> None:
    store.put("sweeps/a/result.json", b"\x00\xff")
    assert store.get("sweeps/a/result.json") == b"\x00\xff"


def test_put_replaces(store: Store) -> None:
    store.put("a", b"old and longer")
    store.put("a", b"new")
    assert store.get("a") == b"new"


def test_create_refuses_a_taken_name_and_leaves_what_is_there(store: Store) -> None:
    store.create("a", b"first")
    with pytest.raises(Conflict):
        store.create("a", b"second")
    assert store.get("a") == b"first"


def test_create_also_refuses_what_was_put(store: Store) -> None:
    store.put("a", b"first")
    with pytest.raises(Conflict):
        store.create("a", b"second")


def test_of_many_who_create_at_once_exactly_one_wins_and_its_bytes_stay(store: Store) -> None:
    answers = at_once(lambda index: store.create("runs/r/result.json", b"%d" % index))
    winners = [index for index, answer in enumerate(answers) if answer is None]
    assert len(winners) == 1
    assert sum(isinstance(answer, Conflict) for answer in answers) == NUM_THREADS - 1
    assert store.get("runs/r/result.json") == b"%d" % winners[0]


def test_a_reader_never_sees_half_an_object(store: Store) -> None:
    sizes = (1, 200_000)
    store.put("a", b"x" * sizes[0])

    def read_or_write(index: int) -> object:
        if index % 4 == 0:
            for _ in range(3):
                store.put("a", bytes([index]) * sizes[1])
            return None
        return [store.get("a") for _ in range(20)]

    answers = at_once(read_or_write)
    seen = [data for answer in answers if isinstance(answer, list) for data in answer]
    assert not [answer for answer in answers if isinstance(answer, Exception)]
    assert all(len(data) in sizes and data == data[:1] * len(data) for data in seen)


def test_listing_while_others_write_names_only_whole_objects(store: Store) -> None:
    store.put("runs/0/result.json", b"{}")

    def list_or_write(index: int) -> object:
        if index % 2:
            for number in range(10):
                store.put(f"runs/{index}-{number}/result.json", b"{}")
            return None
        return [name for _ in range(10) for name in store.list("runs")]

    answers = at_once(list_or_write)
    assert not [answer for answer in answers if isinstance(answer, Exception)]
    listed = [name for names in answers if isinstance(names, list) for name in names]
    assert {name.split("/")[-1] for name in listed} == {"result.json"}


def test_what_is_not_there_is_missing(store: Store) -> None:
    store.put("a/b", b"")
    for name in ("x", "a", "a/c", "a/b/c"):
        with pytest.raises(Missing):
            store.get(name)


def test_a_list_has_all_names_below_a_folder_and_no_others(store: Store) -> None:
    for name in ("runs/a/result.json", "runs/a/attempts/001.json", "runs/b/result.json", "runsx/c", "other"):
        store.put(name, b"")
    assert sorted(store.list("runs")) == [
        "runs/a/attempts/001.json",
        "runs/a/result.json",
        "runs/b/result.json",
    ]


def test_a_list_of_no_folder_is_empty(store: Store) -> None:
    store.put("a", b"")
    assert list(store.list("nowhere")) == []
    assert list(store.list("a")) == []


def test_delete_removes_and_does_not_mind_what_is_not_there(store: Store) -> None:
    store.put("a/b", b"")
    store.delete("a/b")
    store.delete("a/b")
    store.delete("a/b/c")
    assert list(store.list("a")) == []


@pytest.mark.parametrize("name", ESCAPES)
def test_no_name_escapes(store: Store, name: str) -> None:
    for refused in (
        lambda: store.put(name, b""),
        lambda: store.create(name, b""),
        lambda: store.get(name),
        lambda: store.delete(name),
        lambda: list(store.list(name)),
    ):
        with pytest.raises(StoreError, match="is not a name"):
            refused()


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
        ("s3://bucket/path", "s3:// is not supported yet"),
        ("gs://user:secret@bucket", "gs:// is not supported yet"),
        ("file://results", "names a host"),
        ("http://[", "http:// is not supported yet"),
        ("~nobody-of-that-name/results", "without a home"),
    ],
)
def test_a_store_that_is_none_is_refused_in_one_line_without_its_secrets(url: str, says: str) -> None:
    with pytest.raises(StoreError, match=says) as refused:
        open_store(url)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)
