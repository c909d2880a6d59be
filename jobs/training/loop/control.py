"""What rank 0 decides at every step and all ranks learn by its end: one tiny reduction beside the step.

Each rank adds what it alone knows: whether a save of its own is still on its way, whether its samples are
late, whether its loss went wrong, and whether somebody wishes the run to end. Rank 0 adds the orders.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce

import torch
import torch.distributed as dist

from checkpointing.saving.cadence import Busy, Order
from cluster.probe.meeting import prove
from jobs.training.ranks.gathering import gather
from jobs.training.task.stop_request import Aim, StopRequest, aim_of, strength, stronger

# How soon a wish is heard while ranks wait for samples.
_LOOK_EVERY_S = 0.2
_DISK, _STORE, _WAIT = 1, 2, 4
# Where in the word each answer stands.
_SAVE, _TELL, _POINT, _BUSY_DISK, _BUSY_STORE, _LATE, _WISH, _ALARM, _LENGTH = range(9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """For the border after the step: save, find out the loss of all ranks, take part in Ray's report."""

    save: Order | None = None
    tell: bool = False
    point: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """The same on all ranks: rank 0's orders; of any rank, as the step began: which places were busy, whether
    its next samples were late, and whether it was alarmed.
    """

    orders: Orders
    busy: Busy
    is_late: bool
    is_alarmed: bool


class Control:
    """Every rank makes the same calls: once per step ``begin``, then ``end``.

    ``begin`` asks for this rank's ``wish``. ``aim`` is what all ranks follow, once any of them was wished
    something; it changes in ``end``. A rank that waits for another one raises after ``timeout_s``.
    """

    def __init__(self, wish: Callable[[], StopRequest | None], timeout_s: float, key: bytes = b"") -> None:
        self.aim: Aim | None = None
        self._wish = wish
        # Of its own and on the CPU: the step's collectives must not wait for it, nor it for a device.
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        # It has connections of its own, which somebody else may have taken.
        prove(key, self._group)
        self._word = torch.zeros(_LENGTH, dtype=torch.int64)
        self._work: dist.Work | None = None

    def begin(self, orders: Orders, busy: Busy, *, is_late: bool = False, is_alarmed: bool = False) -> None:
        """``orders`` count on rank 0 only. Does not wait."""
        own = (busy.disk, busy.store, is_late, strength(self._wish()), is_alarmed)
        values = (_flags(orders.save), orders.tell, orders.point, *own)
        self._word.copy_(torch.tensor([int(value) for value in values]))
        self._work = dist.all_reduce(self._word, dist.ReduceOp.MAX, group=self._group, async_op=True)

    def end(self) -> Agreed:
        assert self._work is not None
        self._work.wait()
        word = self._word.tolist()
        self.aim = aim_of(word[_WISH])
        return Agreed(
            orders=Orders(save=_order(word[_SAVE]), tell=bool(word[_TELL]), point=bool(word[_POINT])),
            busy=Busy(disk=bool(word[_BUSY_DISK]), store=bool(word[_BUSY_STORE])),
            is_late=bool(word[_LATE]),
            is_alarmed=bool(word[_ALARM]),
        )

    def agree(self, *, is_late: bool = False) -> Agreed:
        """Of this and the wishes alone. Waits for all ranks."""
        self.begin(Orders(), Busy(), is_late=is_late)
        return self.end()

    def wait(self, is_there: Callable[[float], bool]) -> None:
        """Until on all ranks it is there, or they follow a wish: in the collectives of a step they could not
        hear one. ``is_there`` waits as many seconds for it at most.
        """
        is_late = True
        while is_late and self.aim is None:
            is_late = self.agree(is_late=not is_there(_LOOK_EVERY_S)).is_late

    def mean(self, value: float) -> float:
        """Over all ranks, the same on each to the bit. Waits for them."""
        total = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(total, group=self._group)
        return total.item() / dist.get_world_size()

    def from_rank_0(self, answer: bool) -> bool:
        box = torch.tensor(int(answer))
        dist.broadcast(box, src=0, group=self._group)
        return bool(box.item())

    def close(self) -> None:
        dist.destroy_process_group(self._group)


def strongest(own: StopRequest | None) -> StopRequest | None:
    """Of all ranks' wishes, the same on each. Waits for them; needs no ``Control``."""
    return reduce(stronger, gather(own, StopRequest | None))


def _flags(order: Order | None) -> int:
    if order is None:
        return 0
    return _DISK * order.to_disk | _STORE * order.to_store | _WAIT * order.must_wait


def _order(flags: int) -> Order | None:
    if not flags:
        return None
    return Order(to_disk=bool(flags & _DISK), to_store=bool(flags & _STORE), must_wait=bool(flags & _WAIT))
