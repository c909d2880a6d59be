"""The ranks that other tests stand on: whatever goes wrong in one is told, and ends all, in time."""

import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.live.ranks import RankFailed, run_ranks


def test_every_rank_returns_its_value_in_order(tmp_path: Path) -> None:
    assert run_ranks(sum_of_ranks, 10, num_ranks=2, tmp_path=tmp_path) == [(0, 11), (1, 11)]


def sum_of_ranks(start: int) -> tuple[int, int]:
    total = torch.tensor(start / 2 + dist.get_rank())
    dist.all_reduce(total)
    return dist.get_rank(), int(total)


def test_an_exception_in_one_rank_is_told_and_ends_those_that_wait_for_it(tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match=r"rank 1 raised:(?s:.)*ValueError: no tokens"):
        run_ranks(raise_on_rank_1, num_ranks=2, tmp_path=tmp_path)
    assert multiprocessing.active_children() == []


def raise_on_rank_1() -> None:
    if dist.get_rank() == 1:
        raise ValueError("no tokens")
    dist.barrier()


def test_a_rank_that_is_killed_is_told(tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match="rank 0 died without a word"):
        run_ranks(die, num_ranks=1, tmp_path=tmp_path)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_rank_that_hangs_is_ended_at_the_deadline(tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match=r"ranks \[0\] were not done in time"):
        run_ranks(hang, num_ranks=1, tmp_path=tmp_path, deadline_s=5)
    assert multiprocessing.active_children() == []


def hang() -> None:
    signal.pause()
