"""Sends this rank's heartbeats while its training thread works. The thread here only reads; Ray is not
used.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from jobs.execution.messages import Heartbeat, beat_interval_s
from jobs.training.task.context import Context

# Ranks that meet at one moment send their first heartbeats so many parts of an interval apart.
_NUM_PARTS = 16


@contextmanager
def watching(context: Context, post: Callable[[Heartbeat], None]) -> Iterator[None]:
    """Inside, ``post`` gets a heartbeat every ``beat_interval_s`` from a thread of its own, and none after
    the end.
    """
    done = threading.Event()
    thread = threading.Thread(target=_watch, args=(context, post, done), name="watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _watch(context: Context, post: Callable[[Heartbeat], None], done: threading.Event) -> None:
    status = context.status
    interval_s = beat_interval_s(context.world_size)
    wait_s = interval_s * (1 + context.rank % _NUM_PARTS) / _NUM_PARTS
    while not done.wait(wait_s):
        wait_s = interval_s
        device_step, device_marks = _passed(context) or (None, 0)
        post(
            Heartbeat(
                run_id=status.run_id,
                rank=context.rank,
                phase=status.phase,
                step=status.step,
                num_steps=status.num_steps,
                num_batches=status.num_batches,
                step_s=status.step_s,
                memory_bytes=status.memory_bytes,
                doing=status.doing,
                pace_s=status.pace_s,
                copy_s=status.copy_s,
                utilization_pct=status.utilization_pct,
                power_watts=status.power_watts,
                device_step=device_step,
                device_marks=device_marks,
                upload=status.tally.upload(time.monotonic()) if status.tally else None,
            )
        )


def _passed(context: Context) -> tuple[int, int] | None:
    # A device in error answers so to every call. The training thread will say why; a rank that falls silent
    # would be held responsible for more.
    with suppress(RuntimeError):
        return context.marks.passed()
    return None
