"""What every store must do, whatever it is made of: subclass it as ``Test...`` with a fixture ``store``."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Conflict, Missing, Store, StoreError

NUM_THREADS = 16
MANY = 300_000  # more than the first request of a bounded read takes
LARGE = 11 << 20  # more than one request can carry, where requests have a bound
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


def at_once(action: Callable[[int], object], num_threads: int = NUM_THREADS) -> list[object]:
    """What each of many threads got that start together: a result, or the exception as a value."""
    barrier = threading.Barrier(num_threads, timeout=10)

    def start(index: int) -> object:
        barrier.wait()
        try:
            return action(index)
        except Exception as error:
            return error

    with ThreadPoolExecutor(num_threads) as pool:
        return list(pool.map(start, range(num_threads)))


class ReplacedWhenAsked:
    """A store in which an object is replaced as soon as somebody asked for its size."""

    def __init__(self, inner: Store, new: bytes) -> None:
        self._inner = inner
        self.new: bytes | None = new

    def size(self, name: str) -> int:
        found = self._inner.size(name)
        if self.new is not None:
            self._inner.put(name, self.new)
            self.new = None
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class StoreContract:
    """One writer per name at a time; readers and listers at any time."""

    def test_what_was_put_is_got(self, store: Store) -> None:
        store.put("sweeps/a/result.json", b"\x00\xff")
        assert store.get("sweeps/a/result.json") == b"\x00\xff"

    def test_put_replaces(self, store: Store) -> None:
        store.put("a", b"old and longer")
        store.put("a", b"new")
        assert store.get("a") == b"new"

    def test_create_refuses_a_taken_name_and_leaves_what_is_there(self, store: Store) -> None:
        store.create("a", b"first")
        with pytest.raises(Conflict):
            store.create("a", b"second")
        assert store.get("a") == b"first"

    def test_create_also_refuses_what_was_put(self, store: Store) -> None:
        store.put("a", b"first")
        with pytest.raises(Conflict):
            store.create("a", b"second")

    def test_a_reader_never_sees_half_an_object(self, store: Store) -> None:
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

    def test_listing_while_others_write_names_only_whole_objects(self, store: Store) -> None:
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

    def test_what_is_not_there_is_missing(self, store: Store) -> None:
        store.put("a/b", b"")
        for name in ("x", "a", "a/c", "a/b/c"):
            with pytest.raises(Missing):
                store.get(name)

    def test_a_list_has_all_names_below_a_folder_and_no_others(self, store: Store) -> None:
        for name in (
            "runs/a/result.json",
            "runs/a/attempts/001.json",
            "runs/b/result.json",
            "runsx/c",
            "other",
        ):
            store.put(name, b"")
        assert sorted(store.list("runs")) == [
            "runs/a/attempts/001.json",
            "runs/a/result.json",
            "runs/b/result.json",
        ]

    def test_a_list_of_no_folder_is_empty(self, store: Store) -> None:
        store.put("a", b"")
        assert list(store.list("nowhere")) == []
        assert list(store.list("a")) == []

    def test_its_contents_are_all_that_was_put_there(self, store: Store) -> None:
        assert list(store.contents()) == []
        for name in ("a", "runs/b", "runs/c/d"):
            store.put(name, b"")
        assert sorted(store.contents()) == ["a", "runs/b", "runs/c/d"]

    def test_delete_removes_and_does_not_mind_what_is_not_there(self, store: Store) -> None:
        store.put("a/b", b"")
        store.delete("a/b")
        store.delete("a/b")
        store.delete("a/b/c")
        assert list(store.list("a")) == []

    @pytest.mark.parametrize("name", ESCAPES)
    def test_no_name_escapes(self, store: Store, name: str) -> None:
        for refused in (
            lambda: store.put(name, b""),
            lambda: store.create(name, b""),
            lambda: store.get(name),
            lambda: store.size(name),
            lambda: store.delete(name),
            lambda: list(store.list(name)),
        ):
            with pytest.raises(StoreError, match="is not a name"):
                refused()

    def test_a_range_is_what_lies_there_and_shorter_only_at_the_end(self, store: Store) -> None:
        store.put("a", b"0123456789")
        for start, length, expected in ((0, 10, b"0123456789"), (3, 4, b"3456"), (8, 5, b"89"), (99, 3, b"")):
            into = bytearray(b"." * length)
            assert store.get_range("a", start, memoryview(into)) == len(expected)
            assert bytes(into) == expected.ljust(length, b".")

    @pytest.mark.parametrize("length", [0, 1])
    def test_a_range_of_what_is_not_there_is_missing(self, store: Store, length: int) -> None:
        with pytest.raises(Missing):
            store.get_range("x", 0, memoryview(bytearray(length)))

    def test_of_what_grows_meanwhile_no_more_is_read_than_the_bound(self, store: Store) -> None:
        old, new = b"o" * MANY, b"n" * (2 * MANY)
        store.put("f/a", old)
        assert get_bounded(store, "f/a", most_bytes=MANY) == old
        growing = ReplacedWhenAsked(store, new)
        with pytest.raises(TooLarge, match="has grown beyond"):
            get_bounded(growing, "f/a", most_bytes=MANY)
        store.put("f/a", old)
        growing.new = new
        assert get_bounded(growing, "f/a", most_bytes=len(new)) == new

    def test_a_size_is_that_of_what_lies_there_now(self, store: Store) -> None:
        store.put("f/a", b"")
        assert store.size("f/a") == 0
        store.put("f/a", b"0123456789")
        assert store.size("f/a") == 10

    def test_what_is_not_there_has_no_size_and_neither_has_a_folder(self, store: Store) -> None:
        store.put("f/a", b"1")
        for name in ("x", "f", "f/b", "f/a/b"):
            with pytest.raises(Missing):
                store.size(name)
        store.delete("f/a")
        with pytest.raises(Missing):
            store.size("f/a")

    def test_an_empty_object_is_one(self, store: Store) -> None:
        store.create("f/a", b"")
        store.put("f/b", memoryview(b""))
        assert store.get("f/a") == store.get("f/b") == b""
        assert store.get_range("f/a", 0, memoryview(bytearray(3))) == 0
        assert sorted(store.list("f")) == ["f/a", "f/b"]

    def test_a_list_begins_behind_a_name(self, store: Store) -> None:
        for name in ("log/001", "log/002", "log/010", "log/b/1"):
            store.put(name, b"")
        assert sorted(store.list("log", after="log/002")) == ["log/010", "log/b/1"]
        assert sorted(store.list("log", after="log/0015")) == ["log/002", "log/010", "log/b/1"]
        assert list(store.list("log", after="log/z")) == []
        assert sorted(store.list("log", after="a")) == ["log/001", "log/002", "log/010", "log/b/1"]

    @pytest.mark.parametrize("write", ["put", "create"])
    def test_a_large_object_comes_back_whole_and_in_any_range(self, store: Store, write: str) -> None:
        data = memoryview(random.Random(7).randbytes(LARGE))
        getattr(store, write)("f/large", data)
        assert store.get("f/large") == data
        assert store.size("f/large") == LARGE
        into = bytearray(LARGE)
        assert store.get_range("f/large", 1, memoryview(into)) == LARGE - 1
        assert into[:-1] == data[1:]
        assert list(store.list("f")) == ["f/large"]

    def test_a_large_create_refuses_a_taken_name_and_leaves_what_is_there(self, store: Store) -> None:
        store.create("f/a", b"first")
        with pytest.raises(Conflict):
            store.create("f/a", bytes(LARGE))
        assert store.get("f/a") == b"first"
        assert list(store.list("f")) == ["f/a"]

    def test_a_store_that_works_passes_its_probe_and_holds_nothing_of_it(self, store: Store) -> None:
        store.probe()
        assert list(store.list("probe")) == []


class RaceContract:
    """``create`` is won by exactly one, also of many in the same moment: what the commit log stands on."""

    def test_of_many_who_create_at_once_exactly_one_wins_and_its_bytes_stay(self, store: Store) -> None:
        answers = at_once(lambda index: store.create("runs/r/result.json", b"%d" % index))
        winners = [index for index, answer in enumerate(answers) if answer is None]
        assert len(winners) == 1
        assert sum(isinstance(answer, Conflict) for answer in answers) == NUM_THREADS - 1
        assert store.get("runs/r/result.json") == b"%d" % winners[0]

    def test_of_many_large_ones_that_are_created_at_once_one_wins(self, store: Store) -> None:
        answers = at_once(lambda index: store.create("f/a", bytes([index]) * LARGE), num_threads=3)
        winners = [index for index, answer in enumerate(answers) if answer is None]
        assert len(winners) == 1
        assert store.get("f/a") == bytes(winners) * LARGE
