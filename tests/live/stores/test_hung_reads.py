"""A server that hangs in a read or a small write is asked again; a link that is only slow is left alone."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from checkpointing.stores import objects
from checkpointing.stores.buckets import open_objects
from checkpointing.stores.contract import Unavailable
from checkpointing.stores.objects import ObjectStore, TransferPace
from checkpointing.stores.retrying import RetryingStore, RetryLimits
from checkpointing.stores.transfers import Download, LinkRate, Stalled, TransferProgress
from tests.live.stores.test_refusals import bucket

KIB = 1024
DATA = bytes(range(256)) * 4 * KIB  # a MiB
CHUNK = 256 * KIB
PAGE = (
    b'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>p/f/a</Key>'
    b"<Size>1</Size><LastModified>2030-01-01T00:00:00.000Z</LastModified><ETag>e</ETag></Contents>"
    b"</ListBucketResult>"
)
# Scaled down: a read that is silent for a tenth of a second is asked again, for an hour at most.
HASTY = TransferPace(chunk_bytes=CHUNK, at_once=2, stall_s=3600, quiet_s=0.1, guess=100e6)


class Server(ThreadingHTTPServer):
    """Has one object. ``hangs`` says of how many requests to come no more than ``num_bytes`` are answered;
    with None not even the headers. ``pace`` is called before each piece of a body.
    """

    daemon_threads = True
    request_queue_size = 100

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.hangs = 0
        self.num_bytes: int | None = None
        self.asked: list[str] = []
        self.let_go = threading.Event()
        self.lock = threading.Lock()
        self.pace: Callable[[int], object] = lambda num_sent: None
        self.piece_bytes = len(DATA)

    def is_to_hang(self) -> bool:
        with self.lock:
            self.hangs -= 1
            return self.hangs >= 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(DATA)

    def do_GET(self) -> None:
        bounds = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if "list-type" in self.path:
            self.answer(PAGE)
        elif bounds:
            self.answer(DATA, int(bounds[1]), int(bounds[2]) + 1)
        else:
            self.answer(DATA)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.pace(0)
        self.answer(b"")

    do_DELETE = do_PUT

    def answer(self, whole: bytes, start: int = 0, stop: int | None = None) -> None:
        hangs_at = self.server.num_bytes if (hangs := self.server.is_to_hang()) else None
        self.server.asked.append(self.command)
        if hangs and hangs_at is None:
            self.server.let_go.wait()
            return
        body = whole[start:stop]
        self.send_response(206 if stop else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"e"')
        self.send_header("Last-Modified", "Tue, 01 Jan 2030 00:00:00 GMT")
        if stop:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(whole)}")
        self.end_headers()
        self.wfile.flush()
        if self.command == "GET":
            self.send(body if hangs_at is None else body[:hangs_at])
        if hangs:
            self.server.let_go.wait()

    def send(self, body: bytes) -> None:
        with suppress(OSError):
            for at in range(0, len(body), self.server.piece_bytes):
                self.server.pace(at)
                self.wfile.write(body[at : at + self.server.piece_bytes])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_address[1]}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        yield server
        server.let_go.set()
        server.shutdown()
        thread.join()


def opened(pace: TransferPace = HASTY) -> ObjectStore:
    return open_objects("s3://bucket/p", pace=pace)


def read(store: ObjectStore | RetryingStore) -> bytes:
    into = bytearray(len(DATA))
    assert store.get_range("f/a", 0, memoryview(into)) == len(DATA)
    return bytes(into)


@pytest.mark.parametrize("num_bytes", [None, 0, 100 * KIB], ids=["silent", "after headers", "half way"])
def test_a_read_in_parts_that_hangs_is_asked_again_part_by_part(
    server: Server, num_bytes: int | None
) -> None:
    server.num_bytes, server.hangs = num_bytes, 2
    assert read(opened()) == DATA
    assert len(server.asked) >= len(DATA) // CHUNK + 2
    assert server.hangs < 0


@pytest.mark.parametrize("num_bytes", [None, 0, 100 * KIB], ids=["silent", "after headers", "half way"])
def test_whole_objects_sizes_and_lists_that_hang_are_asked_again(
    server: Server, num_bytes: int | None
) -> None:
    store = RetryingStore(opened(), RetryLimits(), sleep=lambda _: None)
    server.num_bytes = num_bytes
    for ask, expected in (
        (lambda: store.get("f/a"), DATA),
        (lambda: store.size("f/a"), len(DATA)),
        (lambda: list(store.list("f")), ["f/a"]),
    ):
        server.hangs = 1
        assert ask() == expected


@pytest.mark.parametrize("num_hangs", [1, 3])
def test_writes_of_one_request_that_hang_are_asked_again(server: Server, num_hangs: int) -> None:
    store = RetryingStore(opened(replace(HASTY, quiet_s=0.5)), RetryLimits(), sleep=lambda _: None)
    for write in (
        lambda: store.create("f/a", DATA[: 8 * KIB]),
        lambda: store.put("f/a", DATA[: 8 * KIB]),
        lambda: store.delete("f/a"),
    ):
        server.hangs = num_hangs
        write()
        assert server.hangs < 0


def test_a_server_that_takes_its_time_for_each_small_write_is_waited_for_longer_each_time(
    server: Server,
) -> None:
    store = RetryingStore(opened(replace(HASTY, quiet_s=0.2)), RetryLimits(budget_s=60), sleep=lambda _: None)
    server.pace = lambda _: time.sleep(0.7)
    store.put("f/a", DATA[: 8 * KIB])


@pytest.mark.parametrize("kind", ["azure", "google"])
def test_other_clouds_are_asked_again_too(server: Server, kind: str) -> None:
    url = f"http://127.0.0.1:{server.server_address[1]}"
    store = ObjectStore(bucket(kind, url), f"{kind}://bucket", pace=HASTY)
    for num_bytes in (None, 100 * KIB):
        server.num_bytes, server.hangs = num_bytes, 2
        assert read(store) == DATA
        assert server.hangs < 0
        server.hangs = 1
        assert store.get("f/a") == DATA
        assert server.hangs < 0


def test_a_read_that_hangs_whenever_it_is_asked_is_given_up(server: Server) -> None:
    server.hangs = 10**6
    pace = TransferPace(chunk_bytes=CHUNK, at_once=2, stall_s=0.5, quiet_s=0.1, guess=100e6)
    with pytest.raises(Unavailable, match=r"nothing moved for 0\.5 s; the server hangs"):
        read(opened(pace))
    assert len(server.asked) > 2
    with pytest.raises(Unavailable, match=r"nothing moved for 0\.5 s"):
        opened(pace).get("f/a")


def test_what_was_given_up_writes_no_byte_any_more(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    """The first answer comes once the second one is there: it may be of an older version of the object."""
    is_there, is_refused, calls = threading.Event(), threading.Event(), []

    def read_range(bucket: object, path: str, bounds: range, landing: Download, link: LinkRate) -> object:
        calls.append(bounds)
        if len(calls) > 1:
            landing.write(0, b"new")
            is_there.set()
            assert is_refused.wait(30)
            return 3, None
        is_there.wait()
        try:
            landing.write(0, b"old")
        except Stalled:
            is_refused.set()
        return 3, None

    monkeypatch.setattr(objects, "_read_range", read_range)
    into = bytearray(3)
    pace = TransferPace(stall_s=60, quiet_s=0.2, guess=10e6)
    assert opened(pace).get_range("f/a", 0, memoryview(into)) == 3
    assert into == b"new"
    into.clear()  # raises while anyone still holds the buffer


def test_a_link_that_trickles_is_borne_and_asked_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece comes 20 s after the one before it, by a clock that the server moves: 320 s in all."""
    now, into = [0.0], bytearray(len(DATA))
    monkeypatch.setattr(objects, "TransferProgress", partial(TransferProgress, clock=lambda: now[0]))
    server.piece_bytes = 64 * KIB

    def pace(num_sent: int) -> None:
        """Waits until what was sent has been written, but for what the reader may hold back."""
        behind = num_sent - 32 * KIB
        while behind > 0 and into[behind : behind + 4] != DATA[behind : behind + 4]:
            server.let_go.wait(0.002)
        now[0] += 20

    server.pace = pace
    store = opened(TransferPace(chunk_bytes=len(DATA), at_once=1, guess=16 * KIB))
    assert store.get_range("f/a", 0, memoryview(into)) == len(DATA)
    assert (into == DATA, server.asked) == (True, ["GET"])
    assert now[0] == 20 * len(DATA) / server.piece_bytes
