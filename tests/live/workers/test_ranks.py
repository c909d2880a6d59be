"""The ranks that other tests stand on: whatever goes wrong in one is told, and ends all, in time."""

import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.live.ranks import FORKS, RankFailed, run_ranks

ROOT = Path(__file__).resolve().parents[3]
ACCELERATOR_AT_IMPORT = os.environ.get("DS_ACCELERATOR")


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


@pytest.mark.soak  # On a machine with devices `make test` itself would tell; it loads DeepSpeed once more.
def test_ranks_are_a_cpus_where_deepspeed_would_take_a_device(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from tests.live.ranks import run_ranks
from tests.live.workers.test_ranks import accelerator_of_deepspeed

print(run_ranks(accelerator_of_deepspeed, num_ranks=1, tmp_path=Path({str(tmp_path)!r})))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=os.environ | {"DS_ACCELERATOR": "cuda"},
        stdout=subprocess.PIPE, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout == "[('cpu', 'cpu')]\n"


def accelerator_of_deepspeed() -> tuple[str, str | None]:
    chosen = sys.modules["deepspeed.accelerator"].get_accelerator()
    return chosen.device_name(), os.environ.get("DS_ACCELERATOR")


def test_what_ranks_are_forked_from_sees_no_device() -> None:
    ours, theirs = FORKS.Pipe(duplex=False)
    child = FORKS.Process(target=tell_variables, args=(theirs,), daemon=True)
    child.start()
    assert ours.recv() == ("", "cpu")
    child.join()


def tell_variables(answers: Connection) -> None:
    answers.send((os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("DS_ACCELERATOR")))


def test_ranks_from_scratch_are_a_cpus_before_they_import_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    seen = run_ranks(accelerator_at_import, num_ranks=1, tmp_path=tmp_path, from_scratch=True)
    assert seen == ["cpu"]
    assert os.environ["DS_ACCELERATOR"] == "cuda"


def accelerator_at_import() -> str | None:
    return ACCELERATOR_AT_IMPORT
