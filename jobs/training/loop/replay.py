"""Compares the first step after a resume with what an earlier attempt recorded of the same step.

Both start from the same state and the same samples. So their losses are the same to the bit where the same
is computed to the bit, and else as near as sums in another order are.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby, islice
from typing import Any

from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Store
from jobs.training.loop.hand_over import NEAR, SAME
from jobs.training.task.events import Replayed
from jobs.training.task.job import Precision
from jobs.training.task.task import Task
from reporting.recording.attempts import RecordedAttempt
from reporting.recording.parts import (
    PartName,
    Rows,
    decode_part,
    part_attempt,
    part_name,
    without_superseded,
)

# Sums in another order, where each repeats: what the docs promise of other world sizes.
_REORDERED = {"fp32": 1e-5, "bf16": 1e-2}
# What is read for one comparison at most: names of about a hundred requests, and few parts.
MOST_NAMES = 100_000
MOST_PARTS = 100
MOST_BYTES = 64 << 20
_log = logging.getLogger(__name__)


def compared(step: int, before: float, now: float, *, relative: float) -> Replayed:
    """``relative`` is how far they may differ, of the loss before; 0 where they must be the same."""
    difference = abs(now - before)
    allowed = f"within {relative:g} of it" if relative else "to the bit"
    if difference <= max(SAME, relative * abs(before)):
        text = (
            f"step {step} is done again: its loss of {now:.6g} agrees {allowed} with the one recorded before"
        )
        return Replayed(step=step, text=text, agrees=True)
    text = (
        f"step {step} is done again: its loss of {now:.6g} differs by {difference:.3g} from {before:.6g}, "
        f"recorded before, expected to agree {allowed}: a device, a library or a setting computes otherwise"
    )
    return Replayed(step=step, text=text, agrees=False)


def bound(before: RecordedAttempt, now: RecordedAttempt, precision: Precision, *, repeats: bool) -> float:
    """How far their losses of one step may differ, of the loss; 0 where both sum in the same order.
    ``repeats``: what is computed twice is the same to the bit.
    """
    if not repeats:
        return NEAR[precision]
    then, today = ((one.group, one.strategy, one.world_size, one.micro_batch) for one in (before, now))
    return 0.0 if then == today else _REORDERED[precision]


class Replay:
    """Of rank 0, after ``step`` steps that the attempt ``term`` saved. ``end`` is the position at which the
    next step ends. Reads the store in a thread of its own; ``tell`` is called at most once, from any thread.
    Nobody waits for that thread, and nothing raises into the training.

    Nothing is told where the step was not recorded, or not with these samples and settings.
    """

    def __init__(
        self,
        task: Task,
        step: int,
        term: int,
        end: int,
        tell: Callable[[Replayed], None],
        *,
        repeats: bool,
    ) -> None:
        self._task, self._step, self._term, self._end = task, step, term, end
        self._tell = tell
        self._repeats = repeats
        self._lock = threading.Lock()
        self._before: tuple[float, float] | None = None
        self._now: float | None = None
        self._is_closed = False

    def start(self) -> None:
        with _quiet():
            threading.Thread(target=self._read, name="replay", daemon=True).start()

    def told(self, step: int, loss: float) -> None:
        """Takes the loss of ``step`` over all ranks; does not wait."""
        if step == self._step + 1:
            with self._lock:
                self._now = loss
            self._compare()

    def close(self) -> None:
        """From now on nothing is told, since nobody would record it any more."""
        with self._lock:
            self._is_closed = True

    def _compare(self) -> None:
        with self._lock:
            before, now = self._before, self._now
            if before is None or now is None or self._is_closed:
                return
            self._before = None
        loss, relative = before
        with _quiet():
            self._tell(compared(self._step + 1, loss, now, relative=relative))

    def _read(self) -> None:
        task = self._task
        with _quiet():
            now = replace(task.as_recorded(), start_step=self._step, parent_term=self._term)
            found = recorded_before(task.open_store(), now, self._end)
            if found is None:
                return
            before, loss = found
            relative = bound(before, now, task.recipe.precision, repeats=self._repeats)
            with self._lock:
                self._before = loss, relative
            self._compare()


@contextmanager
def _quiet() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        _log.debug("the first step is not compared: %s", error)


def recorded_before(
    store: Store, now: RecordedAttempt, position: int
) -> tuple[RecordedAttempt, float] | None:
    """The loss that was recorded of the first step of ``now``, which ends at ``position``, and by whom: the
    attempt that saved where ``now`` starts, or the newest other one that started there.

    Raises ``TooLarge`` instead of reading more than the limits.
    """
    assert now.start_step is not None and now.parent_term is not None
    reading = _Reading(store)
    by_term = {term: list(names) for term, names in groupby(reading.names(now), key=lambda name: name.term)}
    for term in sorted(by_term, key=lambda term: (term == now.parent_term, term), reverse=True):
        # The first step of an attempt is in its first part.
        parts = by_term[term] if term == now.parent_term else by_term[term][:1]
        if (found := _found(reading, parts, now.start_step + 1)) is None:
            continue
        before, row = found
        starts_there = (before.start_step, before.parent_term) == (now.start_step, now.parent_term)
        is_same = before.loss_digest == now.loss_digest and row["position"] == position
        if is_same and row["loss"] is not None and (starts_there or term == now.parent_term):
            return before, row["loss"]
    return None


class _Reading:
    """Reads parts of a store, up to the limits."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._num_parts, self._num_bytes = 0, 0

    def names(self, now: RecordedAttempt) -> list[PartName]:
        """Of rank 0's steps, in order: from the attempt that saved where ``now`` starts, up to ``now``."""
        assert now.parent_term is not None
        folder = f"runs/{now.run}/parts/steps"
        listed = self._store.list(folder, after=f"{folder}/{now.parent_term:05d}-00000-")
        names = list(islice(listed, MOST_NAMES + 1))
        if len(names) > MOST_NAMES:
            raise TooLarge(f"{folder} has more than {MOST_NAMES:,} parts")
        found = filter(None, map(part_name, names))
        return without_superseded(
            name for name in found if name.rank == 0 and now.parent_term <= name.term < now.term
        )

    def part(self, name: PartName) -> tuple[RecordedAttempt, Rows]:
        self._num_parts += 1
        if self._num_parts > MOST_PARTS:
            raise TooLarge(f"the step is not in {MOST_PARTS} parts")
        data = get_bounded(self._store, str(name), most_bytes=MOST_BYTES - self._num_bytes)
        self._num_bytes += len(data)
        return part_attempt(name, data), decode_part(name, data)


def _found(
    reading: _Reading, parts: list[PartName], step: int
) -> tuple[RecordedAttempt, dict[str, Any]] | None:
    """The row of ``step`` in the parts of one attempt, and that attempt."""
    low, high = 0, len(parts)
    while low < high:
        middle = (low + high) // 2
        attempt, rows = reading.part(parts[middle])
        steps = rows.column("step").to_pylist()
        if step in steps:
            (row,) = rows.slice(steps.index(step), 1).to_pylist()
            return attempt, row
        if steps and steps[-1] < step:
            low = middle + 1
        else:
            high = middle
    return None
