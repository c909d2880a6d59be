"""Threads that read ahead for their owner, and never keep a process from ending."""

import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from jobs.training.data.prefetch_pool import PrefetchPool

ROOT = Path(__file__).resolve().parents[3]
HANGS = """
import threading
from jobs.training.data.prefetch_pool import PrefetchPool
readers = PrefetchPool(1)
readers.submit(threading.Event().wait)
print("done", flush=True)
"""


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("reader ")]


def test_results_and_errors_come_to_whoever_asked() -> None:
    readers: PrefetchPool = PrefetchPool(3)
    futures = [readers.submit(lambda number=number: 60 // number) for number in range(4)]
    assert [future.result(timeout=30) for future in futures[1:]] == [60, 30, 20]
    with pytest.raises(ZeroDivisionError):
        futures[0].result(timeout=30)


def test_what_was_cancelled_is_not_read() -> None:
    may_go, done = threading.Event(), []
    readers: PrefetchPool = PrefetchPool(1)
    first = readers.submit(lambda: may_go.wait(timeout=30))
    second = readers.submit(lambda: done.append("second"))
    assert second.cancel()
    may_go.set()
    third = readers.submit(lambda: done.append("third"))
    third.result(timeout=30)
    assert first.result(timeout=30)
    assert done == ["third"]
    with pytest.raises(CancelledError):
        second.result(timeout=30)


def test_the_threads_end_with_their_owner() -> None:
    class Owner:
        def __init__(self) -> None:
            self.readers: PrefetchPool = PrefetchPool(4)
            self.future = self.readers.submit(self.read)

        def read(self) -> int:
            return 1

    before = ours()
    owner = Owner()
    assert owner.future.result(timeout=30) == 1
    threads = [thread for thread in ours() if thread not in before]
    assert len(threads) == 4
    del owner
    end = time.monotonic() + 30
    for thread in threads:
        thread.join(timeout=end - time.monotonic())
    assert not any(thread.is_alive() for thread in threads)


def test_a_process_ends_while_a_read_hangs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "done\n"
