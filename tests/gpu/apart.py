"""Runs a function as the only rank of a process of its own, with a process group and a deadline."""

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")

DEADLINE_S = 300.0
# NVIDIA's images set it, and then products of fp32 matrices are computed in TF32.
_UNWANTED = ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",)
_SPAWN = multiprocessing.get_context("spawn")


def apart(
    function: Callable[..., T],
    *args: Any,
    device: torch.device,
    deadline_s: float = DEADLINE_S,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> T:
    """What ``function(*args, device)`` returns in a new process, which has imported nothing before.

    ``function`` lives at the top level of a module; arguments and values can be pickled. The process does
    not outlive this call. Raises ``AssertionError`` with its traceback if it fails or is too late.
    """
    ours, theirs = _SPAWN.Pipe(duplex=False)
    child = _SPAWN.Process(target=_answer, args=(theirs, device, function, args), daemon=True)
    with _environment(device, variables):
        child.start()
    theirs.close()  # Else the pipe never ends, and a child that dies silently looks like a slow one.
    try:
        assert ours.poll(deadline_s), f"{function.__name__} was not done within {deadline_s:g} s"
        problem, value = ours.recv()
    except EOFError:
        child.join()
        problem, value = f"{function.__name__} ended with {child.exitcode} and said nothing", None
    finally:
        child.kill()
        child.join()
    assert problem is None, problem
    found: T = value
    return found


@contextmanager
def _environment(device: torch.device, variables: Mapping[str, str]) -> Iterator[None]:
    """The variables of a child. What is set before it starts, torch finds as it loads."""
    before = dict(os.environ)
    for name in _UNWANTED:
        os.environ.pop(name, None)
    os.environ.update(variables)
    if device.type == "cpu":
        # Else DeepSpeed would take the device that is there.
        os.environ["DS_ACCELERATOR"] = "cpu"
        # Threads that wait for each other on a busy machine hardly get anywhere.
        os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _answer(
    answers: Connection, device: torch.device, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    try:
        with only_rank(device):
            answers.send((None, function(*args, device)))
    except BaseException:
        answers.send((traceback.format_exc(), None))
    finally:
        answers.close()
        # No interpreter's end: libraries of a device that has failed may wait for it there.
        os._exit(0)


@contextmanager
def only_rank(device: torch.device) -> Iterator[None]:
    """The process group of one rank on ``device``, as workers join it."""
    if device.type != "cpu":
        torch.cuda.set_device(device)
    with TemporaryDirectory(prefix="longhaul-gpu-") as folder:
        dist.init_process_group(
            "gloo" if device.type == "cpu" else "nccl",
            init_method=f"file://{Path(folder) / 'rendezvous'}",
            rank=0,
            world_size=1,
            timeout=timedelta(seconds=DEADLINE_S),
        )
        try:
            yield
        finally:
            dist.destroy_process_group()
