"""What ranks agree on beside the step, and how long they wait for each other for it."""

import os
from pathlib import Path

import pytest
import torch.distributed as dist

from checkpointing.saving.cadence import Busy, Order
from cluster.probe.meeting import Stranger, prove
from cluster.probe.roll_call import Unmet
from jobs.training.loop import control
from jobs.training.loop.control import Control, Orders
from jobs.training.task.stop_request import StopRequest
from tests.live.ranks import run_ranks


def leave_rank_1_alone(timeout_s: float) -> None:
    # To connect they have as little time, so none may be late for that.
    dist.barrier()
    own = Control(lambda: None, timeout_s)
    if dist.get_rank() == 1:
        with pytest.raises(RuntimeError, match="Timed out"):
            own.from_rank_0(True)
    # Rank 0 comes here at once, and stays until rank 1 has given up.
    dist.barrier()


def test_a_rank_waits_for_the_others_as_long_as_it_was_told(tmp_path: Path) -> None:
    run_ranks(leave_rank_1_alone, 5.0, num_ranks=2, tmp_path=tmp_path, deadline_s=120)


def agree() -> list[object]:
    """Rank 1 is slower, alarmed, and asked for more; each has its own loss, or one of them none."""
    is_second = dist.get_rank() == 1
    requests = [StopRequest(aim="move on", why="a drain"), StopRequest(aim="stop", why="Ctrl-C")]
    own = Control(lambda: requests[is_second], 60.0)
    save = Order(to_disk=True, to_store=False, must_wait=False)
    orders = Orders() if is_second else Orders(save=save, report=True, check=True)
    found: list[object] = []
    for loss in (0.1 + is_second, None if is_second else 2.0, float("inf") if is_second else 2.0):
        own.begin(orders, Busy(disk=is_second), is_late=is_second, is_alarmed=is_second, loss=loss)
        found.append(own.end().mean_loss)
    own.begin(orders, Busy(disk=is_second, epochs_end=not is_second), is_late=is_second, is_alarmed=is_second)
    agreed = own.end()
    own.close()
    return [*found, agreed.orders, agreed.busy, agreed.is_late, agreed.is_alarmed, own.aim]


def test_all_ranks_agree_on_orders_alarms_the_strongest_request_and_the_mean_loss(tmp_path: Path) -> None:
    first, second = run_ranks(agree, num_ranks=2, tmp_path=tmp_path, deadline_s=120)
    assert first == second
    mean, *unknown, orders, busy, is_late, is_alarmed, aim = first
    assert mean == pytest.approx(0.6, abs=1e-9)
    assert unknown == [None, None]
    assert orders == Orders(
        save=Order(to_disk=True, to_store=False, must_wait=False), report=True, check=True
    )
    assert (busy, is_late, is_alarmed, aim) == (
        Busy(disk=True, epochs_end=True),
        True,
        True,
        "stop",
    )


def meet_another_key() -> str:
    try:
        Control(lambda: None, 60.0, b"another" if dist.get_rank() == 1 else b"the run's")
    except Unmet as error:
        return f"{error.ranks} {error}"
    return ""


def test_a_rank_that_has_another_key_writes_no_word_that_others_take(tmp_path: Path) -> None:
    said = run_ranks(meet_another_key, num_ranks=2, tmp_path=tmp_path, deadline_s=120)
    assert said[0].startswith("() somebody else writes to the rendezvous at this machine: ")


def meet_a_stranger() -> str:
    """He came into a rank's connections, and not by his words."""
    if dist.get_rank() == 1:
        control.prove = lambda _, group: prove(b"another", group)
    try:
        Control(lambda: None, 60.0, b"the run's")
    except Stranger as error:
        return str(error)
    return ""


def test_who_comes_into_its_group_without_the_runs_key_is_found_out(tmp_path: Path) -> None:
    said = run_ranks(meet_a_stranger, num_ranks=2, tmp_path=tmp_path, deadline_s=120)
    assert [text.partition(":")[0] for text in said] == ["rank 1", "rank 0"]


def agree_twice(is_lazy: str) -> list[float]:
    os.environ["TORCH_GLOO_LAZY_INIT"] = is_lazy
    first, second = (Control(lambda: None, 60.0, b"the run's") for _ in range(2))
    means = [each.mean(dist.get_rank() + number) for number, each in enumerate((first, second))]
    first.close()
    return [*means, second.mean(dist.get_rank())]


@pytest.mark.parametrize("is_lazy", ["0", "1"], ids=["at once", "at the first word"])
def test_a_second_control_meets_by_words_of_its_own(is_lazy: str, tmp_path: Path) -> None:
    means = run_ranks(agree_twice, is_lazy, num_ranks=2, tmp_path=tmp_path, deadline_s=120)
    assert means == [[0.5, 1.5, 0.5]] * 2


def drop_a_word() -> int:
    """Rank 1 is there, and never says its part of it."""
    own = Control(lambda: None, 600.0)
    if dist.get_rank() == 0:
        own.begin(Orders(), Busy())
        del own
    dist.barrier()
    return dist.get_rank()


def test_who_ends_in_the_middle_of_a_step_does_not_wait_for_the_others(tmp_path: Path) -> None:
    assert run_ranks(drop_a_word, num_ranks=2, tmp_path=tmp_path, deadline_s=120) == [0, 1]


def num_threads() -> int:
    return len([*Path("/proc/self/task").iterdir()])


def close_one() -> bool:
    """A group's threads end with it."""
    before = num_threads()
    closed = Control(lambda: None, 60.0)
    closed.agree()
    during = num_threads()
    closed.close()
    dist.barrier()
    del closed
    return before == num_threads() < during


def test_who_closes_it_keeps_nothing_of_its_group(tmp_path: Path) -> None:
    assert run_ranks(close_one, num_ranks=2, tmp_path=tmp_path, deadline_s=120) == [True, True]
