"""The product's own client of S3 over a server that does whatever the documents of S3 allow."""

import os
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from http.client import HTTPConnection
from pathlib import Path

import pytest

from checkpointing.stores import buckets
from checkpointing.stores.contract import Store
from checkpointing.stores.memory import MemoryStore
from checkpointing.stores.retrying import RetryingStore, RetryLimits
from tests.contract import RaceContract, StoreContract
from tests.live import servers
from tests.live.servers import BUCKET, HOST, S3_KEYS
from tests.live.stores.hostile_front import Front, front_of
from tests.unit.generations.test_histories import Watched, relive_in_turn
from tests.unit.hostile import MILD, Clock, Sky, Weather
from tests.unit.seeds import SEED, each_seed

DEADLINE_S = 60.0
# The library's own waits, which are no part of what is tested, take a hundredth of their time.
HASTE = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=10), "base": 2}


@dataclass(slots=True)
class WallClock(Clock):
    def __call__(self) -> float:
        return time.monotonic()

    def sleep(self, wait_s: float) -> None:
        time.sleep(wait_s)


@dataclass(slots=True)
class LateClock(Clock):
    """Once a request was let in, it stands still until the client goes on."""

    goes_on: threading.Event = field(default_factory=threading.Event)
    told: list[str] = field(default_factory=list)

    def sleep(self, wait_s: float) -> None:
        if self.told:
            assert self.goes_on.wait(DEADLINE_S)
        self.told.append("time passes")


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with servers.moto(tmp_path_factory.mktemp("moto")) as port, pytest.MonkeyPatch.context() as patch:
        servers.make_bucket(f"http://{HOST}:{port}", S3_KEYS)
        for name, value in S3_KEYS.items():
            patch.setenv(name, value)
        for retries in (buckets._RETRIES, buckets._RETRIES_OF_PARTS):
            patch.setitem(retries, "backoff", HASTE)
        yield port


class TestHostileFront(StoreContract, RaceContract):
    """Whoever waits for it keeps the contract."""

    @pytest.fixture
    def store(
        self, moto: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, tmp_path: Path
    ) -> Iterator[Store]:
        seed = int(os.environ.get(SEED, random.randrange(10**9)))
        print(f"{SEED}={seed}")
        # The probe asks about the present, and so does not wait for better weather.
        asks_once = "passes_its_probe" in request.node.name
        weather = Weather() if asks_once else replace(MILD, slow_s=0.01, closed_s=0.3)
        sky = Sky(base=MemoryStore(), rng=random.Random(seed), weather=weather, clock=WallClock())
        with front_of(moto, sky) as front:
            monkeypatch.setenv("AWS_ENDPOINT_URL", front.url)
            limits = RetryLimits(first_wait_s=0.01, longest_wait_s=0.2)
            yield RetryingStore(buckets.open_objects(f"s3://{BUCKET}/{tmp_path.name}"), limits)


@pytest.fixture(scope="module")
def front(moto: int) -> Iterator[Front]:
    calm = Sky(base=MemoryStore(), rng=random.Random(0), weather=Weather(), clock=Clock())
    with front_of(moto, calm) as front, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", front.url)
        yield front


def test_nothing_is_drawn_behind_the_back_of_a_client_that_has_its_answer(moto: int) -> None:
    clock = LateClock()
    sky = Sky(base=MemoryStore(), rng=random.Random(0), weather=Weather(), clock=clock)
    with front_of(moto, sky) as front:
        client = HTTPConnection(HOST, front.server_address[1], timeout=DEADLINE_S)
        client.request("PUT", f"/{BUCKET}/drawn/a", b"x")
        assert client.getresponse().read() == b""
        clock.told.append("the client goes on")
        clock.goes_on.set()
        client.request("HEAD", f"/{BUCKET}/drawn/a")
        assert client.getresponse().read() == b""
        client.close()
    assert clock.told == ["time passes", "the client goes on", "time passes"]


def relive_many(front: Front, num: int) -> str:
    def relive_over_http(seed: int) -> int:
        witnesses: list[Watched] = []
        # Of its own: moto looks at all names of a bucket for each page.
        servers.make_bucket(f"http://{HOST}:{front.upstream_port}", S3_KEYS, name=f"history-{seed}")
        store = buckets.open_objects(f"s3://history-{seed}/store")

        def serve(server: Watched, sky: Sky) -> Store:
            sky.weather = replace(sky.weather, panics=0.0)
            front.sky, front.witness = sky, server.tell
            witnesses.append(server)
            return store

        num_calls = relive_in_turn(seed, serve)
        (server,) = witnesses
        there = {name: store.get(name) for name in store.list("runs")}
        assert there == {name: server.get(name) for name in server.list("runs")}
        return num_calls

    first = int(os.environ.get(SEED, random.randrange(10**9)))
    num = 1 if SEED in os.environ else num
    return (
        f"{num} histories of {each_seed(relive_over_http, first, num, __file__)} calls from seed {first} on"
    )


def test_no_history_over_http_loses_what_was_told_durable(front: Front) -> None:
    print(relive_many(front, 8))


@pytest.mark.soak
def test_none_of_many_histories_over_http_loses_what_was_told_durable(front: Front) -> None:
    print(relive_many(front, 300))
