"""Checks that all ranks compute alike: before an attempt's first step, then after every so many steps or
seconds, and before the last step.

Each rank computes the same micro-batch twice and changes nothing by it. Digests of what it held and computed
are compared over all ranks, before the step's own gradients reach any weight. All ranks come to the same
decision, or none does.
"""

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import torch
import torch.distributed as dist
from torch import Tensor

from checkpointing.format.digests import digest
from checkpointing.stores.contract import StoreError
from cluster.probe import door
from cluster.probe.kernels.known import model_of
from jobs.training.data.samples import Samples
from jobs.training.health.failures import Corrupted
from jobs.training.integrity.clean_checks import CleanCheck, leave_clean_check
from jobs.training.integrity.comparison import Exchange, Finding, Look, described, judge, judge_kept, together
from jobs.training.integrity.exchanging import exchanged
from jobs.training.ranks.gathering import gather
from jobs.training.state.random_state import RandomState
from jobs.training.strategies.contract import Engine
from jobs.training.task.context import Context
from jobs.training.task.events import Checked, RunEvent, Warned
from jobs.training.task.measurement import Corruption
from jobs.training.task.task import Task

_NUM_TIMES = 2
# Once more so often where a difference was found, to tell who is at fault from what is not deterministic.
_NUM_MORE = 5


class Checks:
    """One rank's; every rank makes the same calls. ``start`` is how many steps were done before the attempt.

    ``tell`` reports to the driver, on rank 0. ``is_ordered``: rank 0 has ordered a check before the next
    step.
    """

    def __init__(
        self,
        task: Task,
        context: Context,
        engine: Engine,
        samples: Samples,
        start: int,
        tell: Callable[[RunEvent], None],
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._task = task
        self._context = context
        self._engine = engine
        self._samples = samples
        self._start = start
        self._tell = tell
        self._ticks = ticks
        self._ordered_s = ticks()
        self.is_ordered = False
        # What is promised to be the same to the bit each time.
        self._repeats = context.device.type == "cpu" or task.recipe.deterministic
        self._clean_step: int | None = None
        self._apart: tuple[str, ...] = ()
        self._num_done = 0
        self._open: tuple[int, Sequence[Look]] | None = None
        self._writing = threading.Lock()

    def is_due(self, step: int) -> bool:
        """Whether to check before ``step``, which is counted from 1."""
        every = self._task.check_every
        if every == 0 and self._task.check_every_s is None:
            return False
        is_turn = every > 0 and (step - 1) % every == 0
        return is_turn or self.is_ordered or step in (self._start + 1, self._task.num_steps)

    def order(self) -> bool:
        """Whether it is time for a check by this rank's clock. Only rank 0 asks, since clocks differ; all
        ranks get its order with the control word of the step before.
        """
        now, every_s = self._ticks(), self._task.check_every_s
        if every_s is None or now - self._ordered_s < every_s:
            return False
        self._ordered_s = now
        return True

    def check(self, step: int, rows: Sequence[Tensor]) -> None:
        """Begins a check. Raises ``Corrupted`` on all ranks if a device, or nobody knows which one, does not
        compute as the others. ``rows`` are this rank's micro-batches of ``step``, on the host.
        """
        random_state = RandomState(self._context.rank, self._context.device)
        tokens = self._common(rows[0])
        looks = self._looks(tokens, _NUM_TIMES)
        finding = self._judge(looks)
        if not finding.is_clean:
            looks = together(looks, self._looks(tokens, _NUM_MORE), repeats=self._repeats)
            finding = self._judge(looks)
        random_state.restore()
        self._num_done += 1
        self._take_apart(step, finding)
        if not finding.is_clean:
            raise self._fault(step, looks, finding)
        self._open = step, looks

    def conclude(self) -> None:
        """Ends a check before the update of its step. Raises ``Corrupted`` on all ranks if weights or moments
        of a rank have changed on it since the check began: nothing but an update may change them.
        """
        if self._open is None:
            return
        (step, looks), self._open = self._open, None
        are_kept = gather(looks[self._context.rank].held == self._held(), bool)
        finding = judge_kept(are_kept)
        if not finding.is_clean:
            raise self._fault(step, looks, finding)
        if self._context.rank == 0:
            self._note_clean(step, looks)
        self._clean_step = step - 1

    def _fault(self, step: int, looks: Sequence[Look], finding: Finding) -> Corrupted:
        return Corrupted(
            described(finding, looks, step=step, clean_step=self._clean_step),
            ranks=tuple(finding.faulty),
            corruption=Corruption(
                step=step,
                clean_step=self._clean_step,
                nodes=tuple(dict.fromkeys(looks[rank].node for rank in finding.faulty)),
            ),
        )

    def _common(self, rows: Tensor) -> Tensor:
        """The same micro-batch on all ranks: in turn one of each rank's."""
        if not dist.is_initialized():
            return rows
        sent = rows.to(door.collective_device(dist.get_backend()), copy=True)
        dist.broadcast(sent, src=self._num_done % self._context.world_size)
        return sent.cpu()

    def _looks(self, tokens: Tensor, num_times: int) -> list[Look]:
        return gather(self._look(tokens, num_times), Look)

    def _judge(self, looks: Sequence[Look]) -> Finding:
        return judge(looks, repeats=self._repeats, apart=self._apart)

    def _look(self, tokens: Tensor, num_times: int) -> Look:
        held = self._held()
        times = [self._computed(tokens) for _ in range(num_times)]
        return Look(
            device=_named(self._context),
            node=self._context.node,
            kind=_kind(self._context.device),
            samples=_digest(tokens),
            held=held,
            computed={name: tuple(one[name] for one in times) for name in times[0]},
            exchanges=self._exchanges(num_times),
        )

    def _exchanges(self, num_times: int) -> tuple[Exchange, ...]:
        if not dist.is_initialized():
            return ()
        rank, world_size = self._context.rank, self._context.world_size
        return tuple(exchanged(rank, world_size, number) for number in range(num_times))

    def _held(self) -> dict[str, str]:
        """A digest of this rank's parameters and moments, by which parts of which tensors they are."""
        pieces = self._engine.targets()
        which = digest(*(f"{one.name} {one.start} {len(one.values)}\n".encode() for one in pieces))
        return {which: digest(*(_digest(one.values).encode() for one in pieces))}

    def _computed(self, tokens: Tensor) -> dict[str, str]:
        [batch] = self._samples.on_device([tokens])
        found: dict[str, str] = {}

        def see(name: str, values: Tensor) -> None:
            found[name] = _digest(values)

        self._engine.recompute(*batch, see=see)
        return _folded(found)

    def _take_apart(self, step: int, finding: Finding) -> None:
        """Leaves out from now on what is not the same each time, and says so."""
        if new := [name for name in finding.varying if name not in self._apart]:
            self._apart = (*self._apart, *new)
            if self._context.rank == 0:
                self._tell(
                    Warned(
                        text=f"step {step}: {' and '.join(new)} differ from one computation to the next on "
                        "this kind of device, so ranks are not compared by them; `deterministic: true` makes "
                        "them repeat"
                    )
                )

    def _note_clean(self, step: int, looks: Sequence[Look]) -> None:
        self._tell(Checked(step=step - 1, num_ranks=len(looks), is_first=self._clean_step is None))
        nodes = tuple(dict.fromkeys(look.node for look in looks))
        check = CleanCheck(term=self._task.term, step=step - 1, nodes=nodes)
        threading.Thread(target=self._leave, args=[check], name="clean check", daemon=True).start()

    def _leave(self, check: CleanCheck) -> None:
        """One after the other. Nobody waits for the store."""
        with self._writing, suppress(StoreError):
            leave_clean_check(self._task.open_store(), self._task.run, check)


def _folded(digests: Mapping[str, str]) -> dict[str, str]:
    """One digest of each quantity, which is what the names have before a slash; in any order of the names."""
    folded: dict[str, list[bytes]] = {}
    for name in sorted(digests):
        folded.setdefault(name.partition("/")[0], []).append(f"{name} {digests[name]}\n".encode())
    return {name: digest(*lines) for name, lines in folded.items()}


def _digest(values: Tensor) -> str:
    data = values.detach().reshape(-1).contiguous().cpu().view(torch.uint8)
    return digest(data.numpy().data)


def _named(context: Context) -> str:
    host = socket.gethostname()
    if context.device.type == "cpu":
        return f"CPU of {host}"
    return f"{door.name_of(context.device)}, number {context.local_rank} of {host}"


def _kind(device: torch.device) -> str:
    """What else than the device's health decides what it computes, to the bit."""
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    return f"{model_of(device)}{threads}, torch {torch.__version__}"
