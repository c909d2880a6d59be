"""Prints how far a run or a sweep has got, as ``python -m jobs.slurm.progress KIND NAME STORE``.

A job compares the line before and after. Two equal lines mean that nothing was saved in between. It prints
nothing if the store is away, or does not answer within a minute: the job has little time left.
"""

import signal
import sys
from contextlib import suppress

from checkpointing.errors import NothingToResume
from checkpointing.generations.repository import existing_run
from checkpointing.generations.retention import latest, of_this_life
from checkpointing.stores.contract import Store, StoreError
from checkpointing.stores.opening import open_store
from jobs.sweeps.results import Results

_MOST_S = 60


def progress_of(store: Store, kind: str, name: str) -> str:
    if kind == "sweep":
        return f"results: {len(Results(store, name).load().records)}"
    try:
        newest = latest(of_this_life(existing_run(store, name).view))
    except NothingToResume:
        newest = None
    return f"newest save: {newest.name if newest else 'none'}"


if __name__ == "__main__":
    signal.alarm(_MOST_S)
    with suppress(StoreError):
        print(progress_of(open_store(sys.argv[3]), sys.argv[1], sys.argv[2]))
