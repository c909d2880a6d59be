"""What waits for a device, and what must not: over a device that does nothing before somebody waits."""

import time

import pytest
import torch
from torch.nn import Parameter
from torch.optim import AdamW

from cluster.probe import door
from cluster.probe.device import copy_rate, time_of_batch
from jobs.training.benchmark.feed import BatchFeed
from jobs.training.benchmark.timing import DeviceTimer
from jobs.training.data.synthetic import make_batches
from jobs.training.device.rank_device import identity
from jobs.training.health.rank_speed import RankSpeed
from jobs.training.state.random_state import RandomState, digest_of_next_numbers, seed
from jobs.training.strategies.host_adamw import HostAdamW
from jobs.training.task.context import Context
from tests.live.late_device import LATE, LateDevice
from tests.live.trainings import CPU, recipe_for

RECIPE = recipe_for("ddp", world_size=1)


@pytest.fixture(params=range(2))
def late(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LateDevice:
    device = LateDevice(request.param)
    device.stand_in(monkeypatch)
    return device


def on(device: torch.device) -> Context:
    return Context(rank=0, world_size=1, local_rank=0, device=device)


def test_batches_are_copied_from_pinned_memory_and_their_copies_are_timed_later(late: LateDevice) -> None:
    feed, expected = BatchFeed(RECIPE, 0, LATE), make_batches(RECIPE, 0, CPU)
    with late.present():
        batches = [feed.of_step(step) for step in range(3)]
        assert (late.waits, late.events_waited_for, late.unpinned) == (0, 0, 0)
        # Between two events lies one copy; the second event is a millisecond itself.
        assert feed.copy_s() == pytest.approx(3 * 2e-3)
        for step, micro_batches in enumerate(batches):
            for found, wanted in zip(micro_batches, expected.load(step), strict=True):
                assert torch.equal(found[0].cpu(), wanted[0])


def test_steps_are_timed_by_the_device_and_none_waits_for_it(late: LateDevice) -> None:
    timer = DeviceTimer(LATE)
    values = late.tensor(torch.zeros(3))
    timer.mark()
    for num_kernels in (1, 4, 2):
        for _ in range(num_kernels):
            values.add_(1)
        timer.mark()
    assert (late.waits, late.events_waited_for) == (0, 0)
    assert timer.step_times_s() == pytest.approx([2e-3, 5e-3, 3e-3])


def test_a_probe_times_work_that_is_done(late: LateDevice) -> None:
    values = late.tensor(torch.zeros(3))
    values.add_(1)

    def work() -> None:
        assert values.memory.tolist() == [1.0 + late.now - 1] * 3  # What was launched before has been done.
        values.add_(1)

    time_of_batch(LATE, work, 1)
    assert (late.waits, late.num_pending) == (2, 0)
    with late.present():
        rate = copy_rate(LATE)
    assert rate is not None and rate.bytes_per_s > 0
    assert (late.num_pending, late.unpinned) == (0, 0)


def test_a_rank_s_own_speed_is_read_only_once_it_is_there(late: LateDevice) -> None:
    ahead_s = 0.0
    context = on(LATE)
    with late.present():
        speed = RankSpeed(context, lambda: time.perf_counter() + ahead_s)
        ahead_s += 5
        for _ in range(3):
            speed.update()
            assert context.status.pace_s == context.status.copy_s == 0.0
        assert late.waits == 0
        late.synchronize()
        speed.update()
    # Its products and the second event; its copy and the third.
    assert context.status.pace_s == pytest.approx(17e-3)
    assert context.status.copy_s == pytest.approx(2e-3)


def test_moments_in_host_memory_are_those_of_the_update_once_it_returns(late: LateDevice) -> None:
    values, gradient = torch.arange(4.0), torch.full((4,), 0.5)
    usual = Parameter(values.clone())
    usual.grad = gradient.clone()
    expected = AdamW([usual], lr=0.1, fused=True)
    expected.step()
    parameter = Parameter(late.tensor(values))
    parameter.grad = late.tensor(gradient)
    with late.present():
        optimizer = HostAdamW([parameter], lr=0.1)
        optimizer.step()
        for kind in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(optimizer.state[parameter][kind], expected.state[usual][kind])
        assert torch.equal(parameter.detach().cpu(), usual.detach())


def test_the_device_s_random_numbers_go_on_as_they_were_saved(late: LateDevice) -> None:
    with late.present():
        seed(7, 0, LATE)
        state = RandomState(0, LATE)
        assert [piece.name for piece in state.pieces()][-1] == "rng/0/device"
        canary = digest_of_next_numbers(LATE)
        assert digest_of_next_numbers(LATE) == canary
        torch.rand(5, device=LATE).cpu()
        assert digest_of_next_numbers(LATE) != canary
        state.restore()
        assert digest_of_next_numbers(LATE) == canary


def test_a_kind_of_device_that_nobody_has_made_fit_is_refused_by_name() -> None:
    mps = torch.device("mps", 0)
    with pytest.raises(door.UnknownDevice, match=r"^mps: .* torch\.mps has no .*mem_get_info.* cuda"):
        identity(on(mps))
    for ask in (door.synchronize, door.event, door.random_state, door.memory_of):
        with pytest.raises(door.UnknownDevice, match=r"^xpu: "):
            ask(torch.device("xpu", 0))
