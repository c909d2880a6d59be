"""Compares the first step after a resume with what an earlier attempt recorded of the same step.

Both start from the same state and the same samples. So their losses are the same to the bit where the same
is computed to the bit, and else as near as sums in another order are.
"""

import threading
from collections.abc import Callable
from functools import partial

from checkpointing.stores.contract import Store, StoreError
from jobs.training.state.restoring import ResumePoint
from jobs.training.task.events import Replayed
from jobs.training.task.task import Task
from reporting.long_runs.reading import read_parts
from reporting.recording.parts import parts_of, rows_in

# Losses over all ranks are told in units of 2**-30.
_SAME = 2.0**-29
# Sums in another order: fp32 keeps 24 bits of each, bf16 8, and a loss is the mean over many tokens.
_NEAR = {"fp32": 1e-4, "bf16": 1e-2}
# At the end, for a store that answers slowly.
_LAST_WAIT_S = 5.0


def compared(step: int, before: float, now: float, *, relative: float) -> Replayed:
    """``relative`` is how far they may differ, of the loss before; 0 where they must be the same."""
    difference = abs(now - before)
    allowed = f"within {relative:g} of it" if relative else "to the bit"
    if difference <= max(_SAME, relative * abs(before)):
        text = (
            f"step {step} is done again: its loss of {now:.6g} agrees {allowed} with the one recorded before"
        )
        return Replayed(step=step, text=text, agrees=True)
    text = (
        f"step {step} is done again: its loss of {now:.6g} differs by {difference:.3g} from {before:.6g}, "
        f"recorded before, expected to agree {allowed}: a device, a library or a setting computes otherwise"
    )
    return Replayed(step=step, text=text, agrees=False)


class Replay:
    """Of rank 0. Reads the store in a thread of its own; ``tell`` is called at most once, from any thread.
    ``end`` is the position at which the step ends.

    Nothing is told where the step was not recorded, or not with these samples: of another run, past samples
    that are left out since, and of a mixture, whose weights may have changed.
    """

    def __init__(
        self,
        task: Task,
        start: ResumePoint,
        end: int,
        tell: Callable[[Replayed], None],
        *,
        is_exact: bool,
    ) -> None:
        self._step, self._end = start.step + 1, end
        self._tell = tell
        self._relative = 0.0 if is_exact else _NEAR[task.recipe.precision]
        self._lock = threading.Lock()
        self._before: float | None = None
        self._now: float | None = None
        self._thread: threading.Thread | None = None
        if start.is_own and start.term is not None and not task.mixture:
            read = partial(self._read, task, range(start.term, task.term))
            self._thread = threading.Thread(target=read, name="replay", daemon=True)
            self._thread.start()

    def told(self, step: int, loss: float) -> None:
        """Takes the loss of ``step`` over all ranks; does not wait."""
        if step == self._step:
            with self._lock:
                self._now = loss
            self._compare()

    def close(self) -> None:
        if self._thread is not None and self._now is not None:
            self._thread.join(_LAST_WAIT_S)

    def _compare(self) -> None:
        with self._lock:
            before, now = self._before, self._now
            if before is None or now is None:
                return
            self._before = None
        self._tell(compared(self._step, before, now, relative=self._relative))

    def _read(self, task: Task, terms: range) -> None:
        try:
            self._before = recorded_loss(task.open_store(), task.run, terms, self._step, self._end)
        except StoreError:
            # The store has graver things to tell.
            return
        self._compare()


def recorded_loss(store: Store, run: str, terms: range, step: int, position: int) -> float | None:
    """The loss over all ranks that the newest of these attempts recorded of ``step``, which ended at
    ``position``. Reads a few parts of each attempt, however many there are.
    """
    names = [name for name in parts_of(store, run) if name.table == "steps" and name.rank == 0]
    for term in reversed(terms):
        of_term = sorted((name for name in names if name.term == term), key=lambda name: name.first)
        low, high = 0, len(of_term)
        while low < high:
            middle = (low + high) // 2
            rows = {
                row["step"]: row
                for _, part in read_parts(store, of_term[middle : middle + 1], [])
                for row in rows_in(part)
            }
            if step in rows:
                row = rows[step]
                if row["loss"] is not None and row["position"] == position:
                    return float(row["loss"])
                break
            if rows and step > max(rows):
                low = middle + 1
            else:
                high = middle
    return None
