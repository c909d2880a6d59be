"""Measures all-reduce between processes: the real speed of the links within and between nodes.

``all_reduce`` is one rank's part. ``within_machine`` starts all ranks on this machine, as ``python -m
cluster.probe.links SEAT``, and ends them.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist

from cluster.local_ray.variables import variables
from cluster.probe import door
from cluster.probe.device import time_of_batch
from cluster.probe.link_seat import LinkSeat
from cluster.probe.meeting import join, meet_in, on_the_way_to
from cluster.probe.node_facts import LinkRate

_PROJECT = Path(__file__).resolve().parents[2]
_SMALL_BYTES = 8 * 2**10
_LARGE_BYTES = {"gloo": 4 * 2**20, "nccl": 256 * 2**20}
_NUM_SMALL, _NUM_LARGE = 50, 5
_MARGIN_S = 5.0


class LinkError(Exception):
    """The ranks did not meet, or not in time; the message is that of the first failed rank."""


def all_reduce(seat: LinkSeat) -> LinkRate:
    """Measures together with all other ranks; every rank gets the same sizes.

    The process must not have a process group yet.
    """
    device = torch.device("cpu") if seat.device is None else door.take(seat.device)
    backend = door.collective_backend(device)
    try:
        with variables(on_the_way_to(seat.meeting)):
            join(
                seat.meeting,
                backend,
                rank=seat.rank,
                world_size=seat.num_ranks,
                key=seat.key.encode(),
                timeout_s=seat.deadline_s,
                device=None if seat.device is None else device,
            )
        small_s = _time_of(_SMALL_BYTES, _NUM_SMALL, device)
        large_s = _time_of(_LARGE_BYTES[backend], _NUM_LARGE, device)
    finally:
        # One that failed while it joined would be in the way of the next.
        if dist.is_initialized():
            dist.destroy_process_group()
    moved = _LARGE_BYTES[backend] * 2 * (seat.num_ranks - 1) / seat.num_ranks
    return LinkRate(
        num_ranks=seat.num_ranks,
        backend=backend,
        size_bytes=_LARGE_BYTES[backend],
        bus_bytes_per_s=moved / large_s,
        small_s=small_s,
    )


def within_machine(num_ranks: int, *, on_cpu: bool, deadline_s: float) -> LinkRate:
    """Measures between processes of this machine; none of them is left afterwards.

    Raises ``LinkError`` unless all ranks end successfully within the deadline.
    """
    with TemporaryDirectory(prefix="longhaul-") as folder:
        meeting = meet_in(Path(folder))
        seats = [
            # No key, which would show on a command line: only this user can read the meeting's file.
            LinkSeat(
                rank=rank,
                num_ranks=num_ranks,
                meeting=meeting,
                device=None if on_cpu else rank,
                deadline_s=deadline_s,
            )
            for rank in range(num_ranks)
        ]
        return LinkRate(**json.loads(_run_all(seats, deadline_s)[0]))


def _run_all(seats: Sequence[LinkSeat], deadline_s: float) -> list[str]:
    end = time.monotonic() + deadline_s + _MARGIN_S
    processes = [_start(seat) for seat in seats]
    try:
        return [_output_of(process, max(0.1, end - time.monotonic())) for process in processes]
    except subprocess.TimeoutExpired:
        raise LinkError(f"{len(seats)} ranks on this machine did not end within {deadline_s:.0f} s") from None
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _start(seat: LinkSeat) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "cluster.probe.links", json.dumps(asdict(seat))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        cwd=_PROJECT,
    )


def _output_of(process: "subprocess.Popen[str]", timeout_s: float) -> str:
    out, errors = process.communicate(timeout=timeout_s)
    if process.returncode != 0:
        last = errors.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        raise LinkError(f"all-reduce on this machine: {last[0]}")
    return out


def _time_of(size_bytes: int, count: int, device: torch.device) -> float:
    """Returns the seconds of one all-reduce in the fastest of three batches; the first call warms up."""
    values = torch.zeros(size_bytes // 4, device=device)
    dist.all_reduce(values)
    return min(_batch(values, count) for _ in range(3))


def _batch(values: torch.Tensor, count: int) -> float:
    dist.barrier()
    return time_of_batch(values.device, partial(dist.all_reduce, values), count)


if __name__ == "__main__":
    print(json.dumps(asdict(all_reduce(LinkSeat(**json.loads(sys.argv[1]))))))
