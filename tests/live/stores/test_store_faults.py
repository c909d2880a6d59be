"""A store on its bad days: real servers behind a proxy that kills, hangs, slows, refuses, loses answers."""

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from checkpointing.log.history import Commit
from checkpointing.log.log import Log
from checkpointing.stores.buckets import open_objects
from checkpointing.stores.contract import Missing, Unavailable
from checkpointing.stores.objects import ObjectStore, TransferPace
from checkpointing.stores.retrying import RetryingStore, RetryLimits
from tests.live import servers
from tests.live.servers import BUCKET, HOST, S3_KEYS, SWIFT_KEYS
from tests.proxy import Busy, Conflicted, Failing, Fault, Hung, Killed, Mute, Nothing, Proxy, Slow
from tests.unit.small_generations import generation

MIB = 1 << 20
LARGE = 16 * MIB
HASTY = TransferPace(chunk_bytes=5 * MIB, at_once=2, stall_s=1)
# Where haste is not what is tested: a slow machine must not be taken for a server that stalls.
CALM = TransferPace(chunk_bytes=5 * MIB, at_once=2, stall_s=60)
MIDWAY = 7 * MIB
TOLD_WITHIN_S = HASTY.stall_s + 5
OPENINGS = 5  # on a busy machine a server may take longer than the hasty second to open an upload


@dataclass
class Clock:
    """Sleeping moves it and takes no time; what ``wakes`` does happens during the sleep."""

    wakes: Callable[[], None] = lambda: None
    now_s: float = 0
    waits: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, wait_s: float) -> None:
        self.waits.append(wait_s)
        self.now_s += wait_s
        self.wakes()


@pytest.fixture(scope="module", params=["moto", "swift"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    start, keys = (servers.moto, S3_KEYS) if request.param == "moto" else (servers.swift, SWIFT_KEYS)
    with start(tmp_path_factory.mktemp(request.param)) as port, pytest.MonkeyPatch.context() as patch:
        servers.make_bucket(f"http://{HOST}:{port}", keys)
        for name, value in keys.items():
            patch.setenv(name, value)
        yield port


@pytest.fixture
def proxy(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with Proxy(server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


@pytest.fixture
def store(proxy: Proxy) -> ObjectStore:
    return fresh(HASTY)


def fresh(pace: TransferPace) -> ObjectStore:
    return open_objects(f"s3://{BUCKET}/{secrets.token_hex(8)}", pace=pace)


def later(store: ObjectStore, proxy: Proxy) -> ObjectStore:
    """The same objects once all is well, seen without haste."""
    proxy.become(Nothing())
    return open_objects(store.url)


def patient(store: ObjectStore, clock: Clock, budget_s: float = 300) -> RetryingStore:
    """As patient each time: how many attempts fit a budget must not be drawn."""
    return RetryingStore(
        store, RetryLimits(budget_s=budget_s), clock=clock, sleep=clock.sleep, spread=lambda: 0.5
    )


@pytest.mark.parametrize("fault", [Killed(after_bytes=MIDWAY), Hung(after_bytes=MIDWAY)], ids=str)
@pytest.mark.parametrize("write", ["put", "create"])
def test_an_upload_that_breaks_half_way_is_told_in_time_and_leaves_nothing_of_its_name(
    store: ObjectStore, proxy: Proxy, fault: Fault, write: str
) -> None:
    for _ in range(OPENINGS):
        proxy.become(fault)
        began = time.monotonic()
        with pytest.raises(Unavailable):
            getattr(store, write)("gen/a", bytes(LARGE))
        assert time.monotonic() - began < 2 * TOLD_WITHIN_S  # a large create also tries to clean up
        if proxy.num_bytes > MIDWAY:
            break
    else:
        pytest.fail(f"none of {OPENINGS} uploads got half way before the server stalled by itself")
    with pytest.raises(Missing):
        later(store, proxy).get("gen/a")
    assert list(later(store, proxy).list("gen")) == []


@pytest.mark.parametrize("fault", [Killed(after_bytes=MIDWAY), Hung(after_bytes=MIDWAY)], ids=str)
def test_a_server_that_comes_back_gets_the_whole_object(
    store: ObjectStore, proxy: Proxy, fault: Fault
) -> None:
    data = secrets.token_bytes(LARGE)
    proxy.become(fault)
    clock = Clock(wakes=lambda: proxy.become(Nothing()))
    patient(store, clock).put("gen/a", data)
    assert clock.waits
    assert later(store, proxy).get("gen/a") == data


def test_what_is_written_into_the_buffer_after_a_failed_upload_is_never_stored(
    store: ObjectStore, proxy: Proxy
) -> None:
    arena = bytearray(b"1" * LARGE)
    proxy.become(Hung(after_bytes=MIDWAY))
    with pytest.raises(Unavailable):
        store.put("gen/a", memoryview(arena))
    arena[:] = b"2" * LARGE
    with pytest.raises(Missing):
        later(store, proxy).get("gen/a")


@pytest.mark.parametrize("call", ["get", "get_range", "size", "list", "delete", "probe", "put", "create"])
def test_no_call_waits_longer_than_its_deadline_for_a_server_that_hangs(
    store: ObjectStore, proxy: Proxy, call: str
) -> None:
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: store.get("f/a"),
        "get_range": lambda: store.get_range("f/a", 0, memoryview(bytearray(3))),
        "size": lambda: store.size("f/a"),
        "list": lambda: list(store.list("f")),
        "delete": lambda: store.delete("f/a"),
        "probe": store.probe,
        "put": lambda: store.put("f/b", b"1"),
        "create": lambda: store.create("f/b", b"1"),
    }
    open_objects(store.url).put("f/a", b"123")
    proxy.become(Hung())
    began = time.monotonic()
    with pytest.raises(Unavailable, match=r"nothing moved for 1 s"):
        calls[call]()
    assert time.monotonic() - began < TOLD_WITHIN_S


def test_writes_that_stand_still_together_make_the_next_one_wait_twice_as_long_once(proxy: Proxy) -> None:
    store = fresh(TransferPace(stall_s=60, quiet_s=0.5))
    proxy.become(Hung())
    for at_once, told in ((1, "0.5"), (4, "1"), (1, "2")):
        with ThreadPoolExecutor(at_once) as pool:
            writes = [pool.submit(store.create, f"f/{number}", b"1") for number in range(at_once)]
        for write in writes:
            with pytest.raises(Unavailable, match=f"nothing moved for {told} s"):
                write.result()


def test_a_slow_link_is_borne_for_as_long_as_it_takes(store: ObjectStore, proxy: Proxy) -> None:
    pace = TransferPace(chunk_bytes=5 * MIB, at_once=1, stall_s=5)
    carry_slowly(fresh(pace), proxy, rate=3 * MIB, size=LARGE)


@pytest.mark.soak
def test_a_link_of_one_megabyte_per_second_is_borne(proxy: Proxy) -> None:
    carry_slowly(fresh(TransferPace(stall_s=60)), proxy, rate=1e6, size=64 * MIB)


def carry_slowly(store: ObjectStore, proxy: Proxy, *, rate: float, size: int) -> None:
    """There and back, each in more time than the deadline of a stall, and sent once only."""
    data, into = secrets.token_bytes(size), bytearray(size)
    proxy.become(Slow(bytes_per_s=rate))
    began = time.monotonic()
    store.put("gen/a", data)
    uploaded = time.monotonic()
    assert store.get_range("gen/a", 0, memoryview(into)) == size
    assert min(uploaded - began, time.monotonic() - uploaded) > 0.9 * size / rate
    assert into == data
    assert proxy.num_bytes < 1.05 * size


@pytest.mark.parametrize(
    ("fault", "num_parts", "most"),
    [
        (Failing(every=2), 4, 2.5),
        pytest.param(Failing(every=20), 25, 1.1, marks=pytest.mark.soak),
        # Longer than the library repeats a request by itself.
        pytest.param(Failing(every=5, takes_s=11), 4, 1.5, marks=pytest.mark.soak),
    ],
    ids=str,
)
def test_a_request_that_fails_sends_its_own_part_again_and_no_whole_file(
    proxy: Proxy, fault: Failing, num_parts: int, most: float
) -> None:
    store, size = fresh(CALM), num_parts * CALM.chunk_bytes
    data, into = secrets.token_bytes(size), bytearray(size)
    proxy.become(fault)
    patient(store, clock := Clock()).put("gen/a", data)
    assert size < proxy.num_bytes < most * size
    assert proxy.num_faults >= fault.every  # so that at least one has failed
    proxy.become(fault)
    assert patient(store, clock).get_range("gen/a", 0, memoryview(into)) == size
    assert not clock.waits
    assert into == data


def test_a_server_that_is_busy_for_a_while_is_waited_out(proxy: Proxy) -> None:
    store = fresh(CALM)
    proxy.become(Busy(num_requests=10))
    clock = Clock()
    patient(store, clock).create("log/1", b"mine")
    assert proxy.num_faults == 10
    assert later(store, proxy).get("log/1") == b"mine"
    assert clock.waits  # the library's own few repetitions were not enough


def test_a_server_that_stays_busy_is_given_up_within_the_budget(proxy: Proxy) -> None:
    store = fresh(CALM)
    proxy.become(Busy())
    clock = Clock()
    with pytest.raises(Unavailable, match=r"503 SlowDown; it may work again later \(tried 3 times\)"):
        patient(store, clock, budget_s=2).put("log/1", b"")
    assert clock.now_s <= 2


@pytest.mark.soak
def test_a_minute_of_503_is_waited_out(store: ObjectStore, proxy: Proxy) -> None:
    proxy.become(Busy())
    recovery = threading.Timer(60, lambda: proxy.become(Nothing()))
    recovery.start()
    began = time.monotonic()
    try:
        RetryingStore(store).put("gen/a", bytes(LARGE))
    finally:
        recovery.cancel()
    assert 60 < time.monotonic() - began < 120
    assert later(store, proxy).get("gen/a") == bytes(LARGE)


def test_a_put_whose_answer_was_lost_is_done_again_and_whole(store: ObjectStore, proxy: Proxy) -> None:
    proxy.become(Mute(num_answers=1))
    patient(store, Clock()).put("a", b"1")
    assert proxy.num_faults == 1
    assert later(store, proxy).get("a") == b"1"


def test_a_create_whose_answer_was_lost_is_done_once_it_has_found_its_own_object(
    store: ObjectStore, proxy: Proxy
) -> None:
    proxy.become(Mute(num_answers=1))
    patient(store, Clock()).create("log/1", b"mine")
    assert proxy.num_faults == 1
    assert later(store, proxy).get("log/1") == b"mine"


def begin_and_save(proxy: Proxy, fault: Fault) -> tuple[list[str], int]:
    """A driver's lease, three commits and a large object; what the log holds, how many writes."""
    proxy.become(fault)
    store, clock, data = fresh(CALM), Clock(), secrets.token_bytes(6 * MIB)
    waiting = patient(store, clock)
    log = Log(waiting, "r")
    term = log.lease("me")
    for number in (1, 2, 3):
        log.append(Commit(generation=generation(number)), term=term)
    waiting.create("gen/large", data)
    num_writes = proxy.num_faults
    calm = later(store, proxy)
    assert calm.get("gen/large") == data
    assert sorted(calm.list("gen")) == ["gen/large"]
    reader = Log(calm, "r")
    assert (reader.read().term, reader.view.num_lost) == (1, 0)
    return [type(record.entry).__name__ for record in reader.records()], num_writes


@pytest.mark.parametrize(
    ("code", "of_all"),
    # All writes have the conditional ones among them.
    [
        pytest.param("ConditionalRequestConflict", False, marks=pytest.mark.soak),
        ("OperationAborted", True),
    ],
)
@pytest.mark.parametrize("lands", [False, True], ids=["without effect", "with effect"])
# A server of the second kind takes three times as long; for each kind of refusal see `test_refusals`.
@pytest.mark.parametrize(
    "server", ["moto", pytest.param("swift", marks=pytest.mark.soak)], indirect=True, scope="module"
)
def test_one_409_at_any_write_ends_no_run_and_loses_nothing(
    proxy: Proxy, code: str, lands: bool, of_all: bool
) -> None:
    expected, num_writes = begin_and_save(proxy, Conflicted(at=0, code=code, lands=lands, of_all=of_all))
    assert expected == ["Lease", "Commit", "Commit", "Commit"]
    assert num_writes >= (12 if of_all else 5)
    for at in range(1, num_writes + 1):
        kinds, _ = begin_and_save(proxy, Conflicted(at=at, code=code, lands=lands, of_all=of_all))
        assert kinds == expected, at


@pytest.mark.parametrize("lands", [False, True], ids=["without effect", "with effect"])
@pytest.mark.parametrize("server", ["moto"], indirect=True, scope="module")
def test_one_409_at_any_write_of_the_probe_refuses_no_store_and_leaves_nothing(
    proxy: Proxy, lands: bool
) -> None:
    # One client's create, create again and delete; then a race of four, and the delete of what they made.
    for at in range(1, 9):
        proxy.become(Conflicted(at=at, code="ConditionalRequestConflict", lands=lands, of_all=True))
        store = fresh(CALM)
        patient(store, Clock()).probe()
        assert proxy.num_faults >= 8
        assert [*later(store, proxy).contents()] == []
