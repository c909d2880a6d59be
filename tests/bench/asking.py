"""How soon ``longhaul status`` knows of a run whose store is far away, beside reading each record by itself.

The run's log lies on a real server of S3. Each call of the store also waits ``ROUND_TRIP_S``, as it would for
a bucket of another region. A round trip is a call that began after the one before it had ended.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TypeVar
from unittest.mock import patch

from checkpointing.generations.repository import Repository
from checkpointing.log.trust import log_folder
from checkpointing.stores.contract import Store
from checkpointing.stores.opening import open_store
from jobs.run_progress.status_file import read_status_file
from jobs.runs.status import status_of
from tests.faults import FaultyStore
from tests.live.servers import BUCKET, HOST, S3_KEYS, make_bucket, moto
from tests.unit.small_generations import RUN, Ranks

ROUND_TRIP_S = 0.05
NUM_SAVES = 60
REPEATS = 3
BOUND = 5
Answer = TypeVar("Answer")


class DistantStore(FaultyStore):
    """``spans`` has the begin and the end of each call."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.spans: list[tuple[float, float]] = []

    def _call(self, what: str, do: Callable[[], Answer]) -> Answer:
        begun = time.monotonic()
        time.sleep(ROUND_TRIP_S)
        try:
            return do()
        finally:
            self.spans.append((begun, time.monotonic()))

    def num_round_trips(self) -> int:
        """The most calls of which each began after the one before it had ended."""
        count, end = 0, 0.0
        for begun, ended in sorted(self.spans, key=lambda span: span[1]):
            if begun >= end:
                count, end = count + 1, ended
        return count


def main() -> bool:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="longhaul-bench-")))
        endpoint = f"http://{HOST}:{stack.enter_context(moto(folder))}"
        make_bucket(endpoint, S3_KEYS)
        stack.enter_context(patch.dict(os.environ, {**S3_KEYS, "AWS_ENDPOINT_URL": endpoint}))
        store = open_store(f"s3://{BUCKET}/status")
        _train(store)
        ours, theirs = _measured(store, _status), _measured(store, _record_by_record)
    for name, (trips, calls, seconds) in (("status", ours), ("each record", theirs)):
        print(f"{name:14} {trips} round trips, {calls} requests, {seconds:.2f} s")
    print(
        f"               at {ROUND_TRIP_S * 1e3:.0f} ms each, of a run of {NUM_SAVES} saves: "
        f"{ours[2] / theirs[2]:.2f} of the time (bound {BOUND} round trips)"
    )
    return ours[0] <= BOUND


def _train(store: Store) -> None:
    repository = Repository(store, RUN)
    ranks = Ranks(repository, repository.take_over("bench"))
    for number in range(NUM_SAVES):
        ranks.save(10 * (number + 1))
    status = {"stage": "training", "attempt": 1, "told_s": 0.0, "step": 10 * NUM_SAVES}
    store.put(f"runs/{RUN}/status.json", json.dumps(status).encode())


def _measured(store: Store, ask: Callable[[Store], None]) -> tuple[int, int, float]:
    taken = []
    for _ in range(REPEATS):
        distant, begun = DistantStore(store), time.monotonic()
        ask(distant)
        taken.append(time.monotonic() - begun)
    return distant.num_round_trips(), len(distant.spans), median(taken)


def _status(store: Store) -> None:
    """With the second look at a driver that is at work, and without the wait before it."""
    assert status_of(store, RUN, hears=lambda _: read_status_file(store, RUN))["step"] == 10 * NUM_SAVES


def _record_by_record(store: Store) -> None:
    read_status_file(store, RUN)
    for name in store.list(log_folder(RUN)):
        store.get(name)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
