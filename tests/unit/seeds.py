"""Many random trials, each by a seed, in all processes that this machine has cores for."""

import os
import random
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import repeat
from multiprocessing import active_children, get_context

SEED = "LONGHAUL_SEED"
# Seeds that one process goes through at a time; odd, so that the next chunk begins on another core.
_CHUNK = 125


def in_processes(try_from: Callable[[int, int], int], num: int, what: str, *, chunk: int = _CHUNK) -> str:
    """Calls ``try_from`` with first seeds and ``chunk`` of them at a time, ``num`` in all, and returns a line
    on that. With an even ``chunk`` each would be on the same of two cores.

    It returns its number of storage calls, and must be a function of a module. With ``LONGHAUL_SEED`` set,
    that seed alone is tried, in this process. What fails says its seed, or which seeds were tried, and no
    process is left.
    """
    if SEED in os.environ:
        return f"{try_from(int(os.environ[SEED]), 1)} storage calls"
    first, started, others = random.randrange(10**9), time.monotonic(), {*active_children()}
    num_calls = 0
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        try:
            starts = range(first, first + num, chunk)
            for outcome in pool.map(_in_words, repeat(try_from), starts, repeat(chunk)):
                if isinstance(outcome, str):
                    raise AssertionError(outcome)
                num_calls += outcome
        except BaseException as error:
            error.add_note(f"seeds {first} to {first + num - 1}, {chunk} at a time")
            # Leaving the pool would wait for them, and one may hang.
            for process in {*active_children()} - others:
                process.kill()
            raise
    took_s = time.monotonic() - started
    return f"{num} {what} of {num_calls} storage calls in {took_s:.0f} s, from seed {first} on"


def _in_words(try_from: Callable[[int, int], int], first: int, num: int) -> int | str:
    """Not every exception can be sent to another process; one that can't takes its notes along."""
    try:
        return try_from(first, num)
    except BaseException as error:
        return "".join(traceback.format_exception(error))


def each_seed(trial: Callable[[int], int], first: int, num: int, file: str) -> int:
    """Returns the sum of what ``trial`` returns for each seed. What it raises says how to repeat it alone."""
    total = 0
    with _one_core(first):
        for seed in range(first, first + num):
            try:
                total += trial(seed)
            except BaseException as error:
                error.add_note(f"again: {SEED}={seed} python -m pytest -s -m '' {file}")
                raise
    return total


@contextmanager
def _one_core(number: int) -> Iterator[None]:
    """Where handing over from thread to thread is twice as fast; does nothing where a system can't."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[number % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
