"""What ranks agree on beside the step, and how long they wait for each other for it."""

from pathlib import Path

import pytest
import torch.distributed as dist

from checkpointing.saving.cadence import Busy, Order
from cluster.probe.meeting import Stranger
from jobs.training.loop.control import Control, Orders
from jobs.training.task.stop_request import StopRequest
from tests.live.ranks import run_ranks


def leave_rank_1_alone(timeout_s: float) -> None:
    # To connect they have as little time, so none may be late for that.
    dist.barrier()
    control = Control(lambda: None, timeout_s)
    if dist.get_rank() == 1:
        with pytest.raises(RuntimeError, match="Timed out"):
            control.from_rank_0(True)
    # Rank 0 comes here at once, and stays until rank 1 has given up.
    dist.barrier()


def test_a_rank_waits_for_the_others_as_long_as_it_was_told(tmp_path: Path) -> None:
    run_ranks(leave_rank_1_alone, 5.0, num_ranks=2, tmp_path=tmp_path, deadline_s=120)


def agree() -> list[object]:
    """Rank 1 is slower, alarmed, and asked for more; each has its own loss, or one of them none."""
    is_second = dist.get_rank() == 1
    requests = [StopRequest(aim="move on", why="a drain"), StopRequest(aim="stop", why="Ctrl-C")]
    control = Control(lambda: requests[is_second], 60.0)
    save = Order(to_disk=True, to_store=False, must_wait=False)
    orders = Orders() if is_second else Orders(save=save, report=True)
    found: list[object] = []
    for loss in (0.1 + is_second, None if is_second else 2.0, float("inf") if is_second else 2.0):
        control.begin(orders, Busy(disk=is_second), is_late=is_second, is_alarmed=is_second, loss=loss)
        found.append(control.end().mean_loss)
    control.begin(orders, Busy(disk=is_second), is_late=is_second, is_alarmed=is_second)
    agreed = control.end()
    control.close()
    return [*found, agreed.orders, agreed.busy, agreed.is_late, agreed.is_alarmed, control.aim]


def test_all_ranks_agree_on_orders_alarms_the_strongest_request_and_the_mean_loss(tmp_path: Path) -> None:
    first, second = run_ranks(agree, num_ranks=2, tmp_path=tmp_path, deadline_s=120)
    assert first == second
    mean, *unknown, orders, busy, is_late, is_alarmed, aim = first
    assert mean == pytest.approx(0.6, abs=1e-9)
    assert unknown == [None, None]
    assert orders == Orders(save=Order(to_disk=True, to_store=False, must_wait=False), report=True)
    assert (busy, is_late, is_alarmed, aim) == (Busy(disk=True), True, True, "stop")


def meet_a_stranger() -> str:
    try:
        Control(lambda: None, 60.0, b"another" if dist.get_rank() == 1 else b"the run's")
    except Stranger as error:
        return str(error)
    return ""


def test_who_comes_into_its_group_without_the_runs_key_is_found_out(tmp_path: Path) -> None:
    said = run_ranks(meet_a_stranger, num_ranks=2, tmp_path=tmp_path, deadline_s=120)
    assert [text.partition(":")[0] for text in said] == ["rank 1", "rank 0"]
