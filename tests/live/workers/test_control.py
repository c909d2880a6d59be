"""How long ranks wait for each other beside the step."""

from pathlib import Path

import pytest
import torch.distributed as dist

from cluster.probe.meeting import Stranger
from jobs.training.loop.control import Control
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


def meet_a_stranger() -> str:
    try:
        Control(lambda: None, 60.0, b"another" if dist.get_rank() == 1 else b"the run's")
    except Stranger as error:
        return str(error)
    return ""


def test_who_comes_into_its_group_without_the_runs_key_is_found_out(tmp_path: Path) -> None:
    said = run_ranks(meet_a_stranger, num_ranks=2, tmp_path=tmp_path, deadline_s=120)
    assert [text.partition(":")[0] for text in said] == ["rank 1", "rank 0"]
