"""A month of saves, one each minute, through the real log, retention and fold. Simulated: the clock, and of
each generation one file. What a save's objects cost is measured by ``scale``.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from checkpointing.generations.choice import choose
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention
from checkpointing.log.folding import fold_name
from checkpointing.log.history import Commit, Verified
from tests.bench.counting_store import CountingStore
from tests.unit.small_generations import RUN, generation

NUM_DAYS, SAVES_A_DAY = 30, 24 * 60
# One of each day stays, beside the newest ten.
_POLICY = Retention(every_s=86_400.0)
_SHOWN = (1, 10, 20, 30)
# Of the last day to the first one: nothing but what is kept, and the fold, may make a save dearer.
MOST_TIMES = 4.0


def main(num_days: int = NUM_DAYS) -> bool:
    lines, is_met = measured(num_days)
    print("\n".join(lines))
    return is_met


def measured(num_days: int = NUM_DAYS) -> tuple[list[str], bool]:
    """Returns what is to be printed, and whether the bound is met."""
    now_s = [0.0]
    store = CountingStore()
    repository = Repository(store, RUN, clock=lambda: now_s[0], ticks=lambda: now_s[0])
    term = repository.take_over("bench")
    lines = [f"{num_days} simulated days of a save each minute: the log, retention and the fold are real"]
    costs = []
    for day in range(1, num_days + 1):
        before, began = store.num_requests, time.process_time()
        for minute in range(SAVES_A_DAY):
            _save(repository, term, (day - 1) * SAVES_A_DAY + minute + 1, now_s)
        costs.append((time.process_time() - began) / SAVES_A_DAY)
        if day in _SHOWN:
            requests = (store.num_requests - before) / SAVES_A_DAY
            cost = f"a save {costs[-1] * 1e3:.2f} CPU-ms, {requests:.1f} requests"
            lines.append(f"  day {day:2}: {cost}; {_cold(store)}")
    times = costs[-1] / costs[0]
    lines.append(f"  a save of the last day costs {times:.2f} times that of the first (bound {MOST_TIMES:g})")
    return lines, times <= MOST_TIMES


def _save(repository: Repository, term: int, number: int, now_s: list[float]) -> None:
    now_s[0] += 60.0
    found = replace(generation(number, term=term), committed_s=now_s[0])
    repository.put_file(found.name, "rank-00000.safetensors", b"x")
    repository.append(Commit(generation=found), term=term, hint_later=True)
    repository.append(Verified(name=found.name), term=term, hint_later=True)
    repository.retire(_POLICY, term=term)


def _cold(store: CountingStore) -> str:
    """What one who comes anew reads: to choose a generation, and to know what was given up."""
    repository = Repository(store, RUN)
    chosen = _cost(store, lambda: choose(repository.refresh()))
    names = _cost(store, repository.given_up)
    fold = store.size(fold_name(RUN))
    kept = len(repository.view.generations)
    return (
        f"{kept} kept; a start reads {chosen}; the names given up {names}, their fold {fold / 2**20:.2f} MiB"
    )


def _cost(store: CountingStore, work: Callable[[], object]) -> str:
    requests, num_bytes, began = store.num_requests, store.num_bytes, time.perf_counter()
    work()
    took_s = time.perf_counter() - began
    num_bytes = store.num_bytes - num_bytes
    return f"{num_bytes / 1e3:,.0f} KB in {store.num_requests - requests} requests and {took_s:.3f} s"
