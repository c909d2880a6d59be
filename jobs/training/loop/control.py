"""The control word: one tiny reduction beside each step, by which all ranks agree on what follows the step.

Each rank adds what only that rank knows: whether its save is still on its way, whether its samples are late,
its newest loss that it has read, whether that went wrong, and its stop request. Rank 0 adds the orders.

The word is a sum of whole numbers, so it is the same on all ranks to the bit. A flag is set if any rank adds
1; a loss is added in units of 2**-30. Of a mixture, so are the sums of each source's losses and tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import isfinite
from typing import Any

import torch
import torch.distributed as dist

from checkpointing.saving.cadence import Busy, Order
from cluster.probe.gloo_store import GlooGroup
from cluster.probe.meeting import prove
from jobs.training.ranks.gathering import gather
from jobs.training.task.stop_request import STRONGEST, Aim, StopRequest, aim_of, strength, stronger

# The longest delay before a stop request is noticed while ranks wait for samples.
_LOOK_EVERY_S = 0.2
_NUM_FLAGS = 14
_WORD_LENGTH = _NUM_FLAGS + STRONGEST + 2
# A loss of a millionth is told exactly enough, and a million ranks with the highest one still fit.
_LOSS_UNITS = 2.0**30
_HIGHEST_LOSS = 2.0**13
# Of a step's tokens: a hundred million per rank and a million ranks still fit.
_SUM_UNITS = 2.0**10
_HIGHEST_SUM = 2.0**32
_NO_SAVE = Order(to_disk=False, to_store=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """Rank 0's orders for the step boundary after the step.

    ``save``: what to save. ``report``: compute the loss over all ranks. ``checkpoint_report``: take part in
    Ray's report of the newest save. ``check``: check before the next step that all ranks compute alike.
    """

    save: Order | None = None
    report: bool = False
    checkpoint_report: bool = False
    check: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """What all ranks agreed on: rank 0's orders, and the state of any rank when the step began.

    ``busy``: which places still had a save on its way. ``is_late``: the next samples were not there yet.
    ``is_alarmed``: a loss or gradient was not finite. ``mean_loss`` is the mean of the losses that ranks
    gave; None unless each gave one. So are ``sums``, each over all ranks.
    """

    orders: Orders
    busy: Busy
    is_late: bool
    is_alarmed: bool
    mean_loss: float | None
    sums: Sequence[float] | None = None


class Control:
    """Every rank makes the same calls: once per step ``begin``, then ``end``.

    ``begin`` asks for this rank's stop request. ``aim`` is the aim of the strongest request of any rank, None
    without one; only ``end`` changes it. A rank that waits for another rank raises after ``timeout_s``.
    Without a process group this process is the only rank. ``num_sums`` is how many each word has.
    """

    def __init__(
        self,
        stop_request: Callable[[], StopRequest | None],
        timeout_s: float,
        key: bytes = b"",
        *,
        num_sums: int = 0,
    ) -> None:
        self.aim: Aim | None = None
        self._stop_request = stop_request
        # A group of its own, on the CPU: the step's collectives must not wait for it, nor it for a device.
        # torch's stubs do not list its collectives.
        self._group: Any = None
        if dist.is_initialized():
            self._group = GlooGroup(key, timeout_s)
            # The new group has new connections, and a stranger may have taken a rank's seat in them.
            prove(key, self._group)
        self._num_sums = num_sums
        self._word = torch.zeros(_WORD_LENGTH + 1 + num_sums, dtype=torch.int64)
        self._work: dist.Work | None = None

    def begin(
        self,
        orders: Orders,
        busy: Busy,
        *,
        is_late: bool = False,
        is_alarmed: bool = False,
        loss: float | None = None,
        sums: Sequence[float] = (),
    ) -> None:
        """Starts the reduction and does not wait. ``orders`` other than rank 0's must be empty.

        All ranks must give ``loss`` and ``sums`` of the same step, or None.
        """
        save, own_strength = orders.save or _NO_SAVE, strength(self._stop_request())
        to_save = (save.to_disk, save.to_store, save.to_memory, save.must_wait)
        ordered = (*to_save, orders.report, orders.checkpoint_report, orders.check)
        are_busy = (busy.disk, busy.store, busy.memory, busy.is_disk_failing, busy.epochs_end)
        own = (*are_busy, is_late, is_alarmed)
        requests = (own_strength == level for level in range(1, STRONGEST + 1))
        word = [*ordered, *own, *requests, *_in_units(loss), *_sums_in_units(sums, self._num_sums)]
        self._word.copy_(torch.tensor(word, dtype=torch.int64))
        if self._group is not None:
            self._work = self._group.allreduce([self._word])

    def end(self) -> Agreed:
        if self._work is not None:
            self._work.wait()
        told = self._word.tolist()
        *counts, num_losses, loss = told[:_WORD_LENGTH]
        num_gave_sums, *sums = told[_WORD_LENGTH:]
        flags, requests = counts[:_NUM_FLAGS], counts[_NUM_FLAGS:]
        self.aim = aim_of(max((level for level, count in enumerate(requests, start=1) if count), default=0))
        to_disk, to_store, to_memory, must_wait, report, checkpoint_report, check, *own = map(bool, flags)
        disk, store, memory, is_disk_failing, epochs_end, is_late, is_alarmed = own
        all_gave_one = num_losses == self._num_ranks
        save = Order(to_disk=to_disk, to_store=to_store, to_memory=to_memory, must_wait=must_wait)
        return Agreed(
            orders=Orders(
                save=None if save == _NO_SAVE else save,
                report=report,
                checkpoint_report=checkpoint_report,
                check=check,
            ),
            busy=Busy(
                disk=disk,
                store=store,
                memory=memory,
                is_disk_failing=is_disk_failing,
                epochs_end=epochs_end,
            ),
            is_late=is_late,
            is_alarmed=is_alarmed,
            mean_loss=loss / _LOSS_UNITS / num_losses if all_gave_one else None,
            sums=[one / _SUM_UNITS for one in sums] if num_gave_sums == self._num_ranks else None,
        )

    @property
    def _num_ranks(self) -> int:
        return 1 if self._group is None else self._group.size()

    def agree(self, *, is_late: bool = False) -> Agreed:
        """Agrees on ``is_late`` and the stop requests alone. Waits for all ranks."""
        self.begin(Orders(), Busy(), is_late=is_late)
        return self.end()

    def wait(self, is_there: Callable[[float], bool]) -> None:
        """Waits until ``is_there`` is true on all ranks, or until any rank has a stop request.

        ``is_there`` must wait no longer than the seconds it is given. Inside a step's collectives, ranks that
        wait for each other could not notice a stop request.
        """
        is_late = True
        while is_late and self.aim is None:
            is_late = self.agree(is_late=not is_there(_LOOK_EVERY_S)).is_late

    def mean(self, value: float) -> float:
        """The mean over all ranks, the same on each to the bit. Waits for all ranks."""
        total = torch.tensor(value, dtype=torch.float64)
        if self._group is not None:
            self._group.allreduce([total]).wait()
        return total.item() / self._num_ranks

    def sums(self, values: Sequence[float]) -> list[float]:
        """The sum of each over all ranks. Waits for all ranks, unless there are no values."""
        totals = torch.tensor(values, dtype=torch.float64)
        if self._group is not None and values:
            self._group.allreduce([totals]).wait()
        return totals.tolist()

    def from_rank_0(self, own: bool) -> bool:
        if self._group is None:
            return own
        value = torch.tensor(int(own))
        self._group.broadcast(value, root=0).wait()
        return bool(value.item())

    def close(self) -> None:
        if self._group is not None:
            self._group.close()


def _in_units(loss: float | None) -> tuple[int, int]:
    """Whether there is a loss that can be told, and the loss in whole units."""
    if loss is None or not isfinite(loss) or abs(loss) > _HIGHEST_LOSS:
        return 0, 0
    return 1, round(loss * _LOSS_UNITS)


def _sums_in_units(sums: Sequence[float], number: int) -> list[int]:
    """Whether all can be told, and each in whole units."""
    if len(sums) != number or not all(isfinite(one) and abs(one) < _HIGHEST_SUM for one in sums):
        return [0] * (1 + number)
    return [1, *(round(one * _SUM_UNITS) for one in sums)]


def strongest(own: StopRequest | None) -> StopRequest | None:
    """The strongest of all ranks' stop requests, the same on each. Waits for all ranks."""
    return reduce(stronger, gather(own, StopRequest | None))
