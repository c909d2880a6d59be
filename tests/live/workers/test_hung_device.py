"""A kernel that never ends on one rank's device: hosts launch on and all wait, and that rank is blamed."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from cluster.probe import door
from jobs.execution.hang_detection import HangDetection
from jobs.execution.messages import Heartbeat, SessionLimits
from jobs.launch.ray_train.heartbeat import watching
from jobs.training.loop import attempt as loop
from jobs.training.loop.attempt import Services, run
from jobs.training.loop.progress_reports import ProgressReporter
from jobs.training.models.decoder import Decoder
from jobs.training.strategies.ddp import whole
from jobs.training.strategies.native import NativeEngine
from jobs.training.task.context import Context
from jobs.training.task.job import Recipe
from jobs.training.task.task import Recording, Task
from tests.live import attempts
from tests.live.attempts import Wanted
from tests.live.late_device import LATE, LateDevice
from tests.live.ranks import run_ranks
from tests.live.trainings import recipe_for

GUILTY, HUNG_STEP = 1, 2
# Marks that the device of the guilty rank passes in that step. Others wait behind both.
NUM_PASSED = {"forward": 0, "backward": 1}
DEADLINE_S = 200.0


class Hanging(NativeEngine):
    """ddp whose gradients are averaged by kernels of the device, one of which never ends."""

    def __init__(self, late: LateDevice, recipe: Recipe, hangs_in: str) -> None:
        torch.manual_seed(recipe.seed)
        model = Decoder(recipe.model)
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, Parameter(late.tensor(parameter)))
        super().__init__(
            model,
            recipe,
            lambda parameter, rank: whole(parameter),
            whole,
            unreduced=lambda *_: nullcontext(),
            holds=(),
        )
        self._late, self._hangs_in, self._step = late, hangs_in, 1
        self._peers = dist.new_group()
        if hangs_in == "backward":
            model.model.norm.register_full_backward_hook(lambda *_: self._hang("backward"))

    def accumulate(self, *batch: Tensor, last: bool, weight: float = 1.0) -> Tensor:
        self._hang("forward")
        return super().accumulate(*batch, last=last, weight=weight)

    def update(self) -> None:
        for parameter in self._model.parameters():
            assert parameter.grad is not None
            self._average(parameter.grad.memory)
        super().update()
        self._step += 1

    def _average(self, gradient: Tensor) -> None:
        self._late.enqueue(lambda: dist.all_reduce(gradient, dist.ReduceOp.AVG, self._peers))

    def _hang(self, where: str) -> None:
        if (dist.get_rank(), self._step, where) == (GUILTY, HUNG_STEP, self._hangs_in):
            self._late.enqueue(lambda: threading.Event().wait())


@contextmanager
def running_on(late: LateDevice, hangs_in: str, beats: "SimpleQueue[Heartbeat]") -> Iterator[None]:
    def watched(task: Task, context: Context, services: Services) -> None:
        with watching(context, beats.put):
            # A recorder that writes reads figures too, and would wait at another place.
            run(replace(task, recording=Recording(flush_s=1e6)), context, services)

    with pytest.MonkeyPatch.context() as patch, late.present():
        late.stand_in(patch)
        properties = SimpleNamespace(uuid=f"late-{dist.get_rank()}")
        door.KINDS[LATE.type].get_device_properties = lambda device: properties
        patch.setattr(ProgressReporter, "is_report_due", lambda reporter: False)
        patch.setattr(loop, "build", lambda recipe, device: Hanging(late, recipe, hangs_in))
        patch.setattr(attempts, "run", watched)
        yield


def stand(store: Path, hangs_in: str) -> Heartbeat:
    """Runs on a rank: where it stands once each rank has come as far as it can."""
    beats: SimpleQueue[Heartbeat] = SimpleQueue()

    recipe = recipe_for("ddp", world_size=2, grad_accum=1)

    def train() -> None:
        wanted = Wanted(
            name="r",
            recipe=replace(recipe, model=replace(recipe.model, num_layers=1)),
            num_steps=9,
            store=store,
            every_steps=100,
            device=LATE,
            vendor="nvidia",
        )
        with running_on(LateDevice(dist.get_rank()), hangs_in, beats):
            attempts.attempt(wanted)

    threading.Thread(target=train, daemon=True).start()
    num_passed = NUM_PASSED[hangs_in] if dist.get_rank() == GUILTY else 2
    awaited = (HUNG_STEP, HUNG_STEP - 1, num_passed)
    while (beat := beats.get(timeout=DEADLINE_S)) and _place(beat) != awaited:
        pass
    _meet(store.parent / f"{hangs_in}-reached")
    # By now each device has done all that it can. Once one rank ends, the other's kernel fails.
    last = [beats.get(timeout=DEADLINE_S) for _ in range(3)][-1]
    _meet(store.parent / f"{hangs_in}-told")
    return last


def _place(beat: Heartbeat) -> tuple[int, int | None, int]:
    return beat.step, beat.device_step, beat.device_marks


def _meet(place: Path) -> None:
    """Waits for the other rank. The process group is the hanging kernels'."""
    Path(f"{place}-{dist.get_rank()}").touch()
    while not Path(f"{place}-{1 - dist.get_rank()}").exists():
        threading.Event().wait(0.1)


@pytest.mark.parametrize("hangs_in", [pytest.param("forward", marks=pytest.mark.soak), "backward"])
def test_a_kernel_that_never_ends_is_blamed_on_its_rank(tmp_path: Path, hangs_in: str) -> None:
    stands = run_ranks(
        stand, tmp_path / "store", hangs_in, num_ranks=2, tmp_path=tmp_path, deadline_s=DEADLINE_S
    )
    progress = HangDetection(SessionLimits(schedule_timeout_s=1, cell_timeout_s=1e9), 2, now=0)
    for now in (0, 1000):
        for beat in stands:
            progress.note(beat, now)
    assert [beat.step for beat in stands] == [HUNG_STEP] * 2, "hosts have launched equally much"
    failure = progress.failure(now=1000)
    assert failure is not None
    assert (failure.status, failure.ranks) == ("hang", (GUILTY,))
    assert failure.reason.endswith("at step 2 of 9, its device done with step 1")
