"""Threads that read ahead. They end with their owner; a thread that hangs keeps no process alive. Pure."""

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Job = tuple[Future[Any], Callable[[], Any]]


class PrefetchPool:
    """Like the standard library's thread pool, which however waits for every read when the process ends."""

    def __init__(self, num_threads: int) -> None:
        jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._jobs = jobs
        for number in range(num_threads):
            threading.Thread(target=_work, args=(jobs,), name=f"reader {number}", daemon=True).start()
        weakref.finalize(self, _end, jobs, num_threads)

    def submit(self, read: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._jobs.put((future, read))
        return future


def _work(jobs: "SimpleQueue[_Job | None]") -> None:
    """Runs jobs. Keeps no reference between jobs: a job may refer to the owner, which then could not end."""
    while job := jobs.get():
        future, read = job
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(read())
            except BaseException as error:
                future.set_exception(error)
        del job, future, read


def _end(jobs: "SimpleQueue[_Job | None]", num_threads: int) -> None:
    for _ in range(num_threads):
        jobs.put(None)
