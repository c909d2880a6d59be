"""The contract over a directory, the memory and what wraps them; a directory when things stand in its way."""

import os
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.stores.contract import (
    Conflict,
    Denied,
    Missing,
    NotAFile,
    Store,
    StoreError,
    Unavailable,
    Upload,
    check_name,
)
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from checkpointing.stores.opening import open_store
from checkpointing.stores.retrying import RetryingStore, RetryLimits
from tests.contract import RaceContract, StoreContract
from tests.faults import FaultyStore
from tests.unit.deep_folders import deep_folders
from tests.unit.hostile import MILD, Clock, HostileStore, Sky, Weather
from tests.unit.other_user import as_nobody, common_folder, needs_root


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
        return RetryingStore(MemoryStore())


class TestFaultyWithoutFault(StoreContract, RaceContract):
    @pytest.fixture
    def store(self) -> Store:
        return FaultyStore(MemoryStore())


class TestHostileInPages(StoreContract, RaceContract):
    """What its pages and its slowness alone do to nobody."""

    @pytest.fixture
    def store(self) -> Store:
        return under(Weather(page=1, slow_s=2.0))


class TestHostileAndPatience(StoreContract, RaceContract):
    """Whoever waits for it keeps the contract."""

    @pytest.fixture
    def store(self) -> Store:
        clock = Clock()
        # All threads' waits add up on this clock.
        limits = RetryLimits(budget_s=3600)
        return RetryingStore(under(MILD, clock), limits, clock=clock, sleep=clock.sleep)


def under(weather: Weather, clock: Clock | None = None) -> Store:
    base, seed = MemoryStore(), random.randrange(10**9)
    print(f"seed {seed}")
    sky = Sky(base=base, rng=random.Random(seed), weather=weather, clock=clock or Clock())
    return HostileStore(base, sky)


def test_what_others_put_there_under_names_that_are_none_is_contents_but_no_object(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "my texts").mkdir()
    for name in ("my texts/part 1", ".hidden", "plain"):
        (tmp_path / name).write_bytes(b"")
    assert sorted(store.contents()) == [".hidden", "my texts/part 1", "plain"]


def test_folders_in_one_another_without_an_end_are_one_line(tmp_path: Path) -> None:
    store, now = LocalStore(tmp_path), datetime.now(UTC)
    with deep_folders(tmp_path / "a", 63):
        assert len(list(store.list("a"))) == len(list(store.contents())) == 1
    says = r"b/d/d.* has more than 64 folders in one another; remove"
    for ask in (store.list, lambda prefix: store.abandoned_uploads(prefix, before=now)):
        with deep_folders(tmp_path / "b", 1500), pytest.raises(NotAFile, match=says) as told:
            list(ask("b"))
        assert len(str(told.value)) < 500


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


UNREADABLE = """
from pathlib import Path
from checkpointing.stores.local import LocalStore
from checkpointing.stores.contract import Unavailable
become()
try:
    print(list(LocalStore(Path(sys.argv[1])).list("runs")))
except Unavailable as error:
    print(error)
"""


@needs_root
def test_a_folder_that_cannot_be_read_is_an_error_and_not_empty() -> None:
    with common_folder() as place:
        (place / "runs" / "a").mkdir(parents=True)
        (place / "runs" / "a").chmod(0)
        assert "Permission denied" in as_nobody(UNREADABLE, place)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Somebody's folder that looks like a part of a store."""
    place = tmp_path / "elsewhere"
    for name in ("g1/rank", "g2/rank", "rank"):
        LocalStore(place).put(name, b"precious")
    half = place / "g1" / ".tmp-0123456789abcdef"
    half.write_bytes(b"half")
    return place


def contents(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


# How something below a link may be asked for.
BELOW_A_LINK: dict[str, Callable[[LocalStore, str], object]] = {
    "put": lambda store, name: store.put(f"{name}/g1/new", b"x"),
    "create": lambda store, name: store.create(f"{name}/g1/new", b"x"),
    "get": lambda store, name: store.get(f"{name}/g1/rank"),
    "get_range": lambda store, name: store.get_range(f"{name}/g1/rank", 0, memoryview(bytearray(3))),
    "list": lambda store, name: list(store.list(name)),
    "list below it": lambda store, name: list(store.list(f"{name}/g1")),
    "delete": lambda store, name: store.delete(f"{name}/g1/rank"),
    "abandoned uploads": lambda store, name: store.abandoned_uploads(name, before=FAR_FUTURE),
    "abort uploads": lambda store, name: store.abort_uploads(
        [Upload(name=f"{name}/g1/.tmp-0123456789abcdef", id="", started=FAR_FUTURE)]
    ),
}
FAR_FUTURE = datetime(9999, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("link", ["runs", "runs/m", "runs/m/gen"])
@pytest.mark.parametrize("asked", BELOW_A_LINK)
def test_below_its_root_no_link_is_followed_and_the_error_names_it(
    tmp_path: Path, elsewhere: Path, asked: str, link: str
) -> None:
    store = LocalStore(tmp_path / "store")
    store.put("other", b"")
    (store.root / link).parent.mkdir(parents=True, exist_ok=True)
    (store.root / link).symlink_to(elsewhere)
    before = contents(elsewhere)
    with pytest.raises(Denied, match=f"^store: {store.root}: {link} is a link, .* in its place"):
        BELOW_A_LINK[asked](store, link)
    assert contents(elsewhere) == before


@pytest.mark.parametrize("asked", ["get", "get_range", "delete"])
def test_an_object_that_is_a_link_is_neither_read_nor_deleted(
    tmp_path: Path, elsewhere: Path, asked: str
) -> None:
    store = LocalStore(tmp_path / "store")
    (store.root / "a" / "g1").mkdir(parents=True)
    (store.root / "a" / "g1" / "rank").symlink_to(elsewhere / "rank")
    with pytest.raises(Denied, match=f"^store: {store.root}: a/g1/rank is a link"):
        BELOW_A_LINK[asked](store, "a")
    assert (store.root / "a" / "g1" / "rank").is_symlink()


READS: dict[str, Callable[[LocalStore, str], object]] = {
    "get": lambda store, name: store.get(name),
    "get_range": lambda store, name: store.get_range(name, 0, memoryview(bytearray(1))),
    "size": lambda store, name: store.size(name),
}


@pytest.mark.parametrize("name", ["pipe", "a/pipe"])
@pytest.mark.parametrize("asked", READS)
def test_a_pipe_in_place_of_an_object_is_refused_without_waiting_for_its_writer(
    tmp_path: Path, asked: str, name: str
) -> None:
    store = LocalStore(tmp_path / "store")
    store.put("a/b", b"")
    os.mkfifo(store.root / name)
    with pytest.raises(Denied, match=f"{name} is a pipe, a socket or a device"):
        READS[asked](store, name)


@pytest.mark.parametrize("asked", READS)
def test_in_the_root_itself_a_link_is_no_object_and_a_folder_none_either(
    tmp_path: Path, elsewhere: Path, asked: str
) -> None:
    store = LocalStore(tmp_path / "store")
    store.put("a/b", b"")
    (store.root / "link").symlink_to(elsewhere / "rank")
    with pytest.raises(Denied, match=f"^store: {store.root}: link is a link"):
        READS[asked](store, "link")
    with pytest.raises(Missing):
        READS[asked](store, "a")


def test_what_replaces_a_link_leaves_what_it_led_to(tmp_path: Path, elsewhere: Path) -> None:
    store = LocalStore(tmp_path / "store")
    store.put("a/b", b"")
    (store.root / "a" / "link").symlink_to(elsewhere / "rank")
    with pytest.raises(Conflict):
        store.create("a/link", b"new")
    store.put("a/link", b"new")
    assert (store.get("a/link"), (elsewhere / "rank").read_bytes()) == (b"new", b"precious")


def test_the_root_may_be_a_link_and_lie_behind_links(tmp_path: Path) -> None:
    (tmp_path / "disk" / "store").mkdir(parents=True)
    (tmp_path / "link").symlink_to("disk")
    (tmp_path / "store").symlink_to("link/store")
    store = LocalStore(tmp_path / "store")
    store.put("a/b", b"1")
    assert (store.get("a/b"), list(store.list("a")), list(store.contents())) == (b"1", ["a/b"], ["a/b"])
    store.delete("a/b")
    assert list((tmp_path / "disk" / "store").iterdir()) == []
    assert (tmp_path / "store").is_symlink()


@pytest.mark.parametrize(
    "name",
    ["a/.tmp-notes", "a/.tmp-0123456789abcdeg", "a/.tmp-0123456789abcdef.txt", "my a/.tmp-0123456789abcdef"],
)
def test_a_file_that_is_named_nearly_as_a_half_written_one_stays(tmp_path: Path, name: str) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b", b"")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    assert store.abandoned_uploads("a", before=FAR_FUTURE) == []
    store.abort_uploads([Upload(name=name, id="", started=FAR_FUTURE)])
    assert (tmp_path / name).read_text() == "mine"


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
