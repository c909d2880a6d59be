"""Imports all modules that a worker needs up to its first step; workers are then forked from that process.

Such a process must never ask CUDA or HIP for anything, nor NVML or AMD SMI: what is forked afterwards could
not use a device. ``why_cut_off`` tells whether it has. Asking how many devices there are is enough.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Literal

from jobs.training.task.job import Strategy

# What workers are to do: an attempt of a long run, or the cells of a sweep.
Work = Literal["attempt", "cells"]
# torch imports ``torch._dynamo`` itself, but only when the first optimizer is made.
_LOADED_BY_ALL = ("jobs.training.health.failures", "torch._dynamo")
_LOADED_BY = {"attempt": "jobs.training.loop.attempt", "cells": "jobs.training.benchmark.largest"}
# What drivers open: CUDA and NVML, HIP, and AMD SMI.
_DEVICE_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")
_OPEN_FILES = Path("/proc/self/fd")
_YES = b"yes"


def load(strategy: Strategy, work: Work = "attempt") -> None:
    """Imports the modules that a worker loads up to its first step.

    DeepSpeed chooses its kind of device as it loads: ``DS_ACCELERATOR`` must name it (``cpu`` or ``cuda``).
    """
    from jobs.training.strategies.build import load as load_strategy

    for name in (*_LOADED_BY_ALL, _LOADED_BY[work]):
        import_module(name)
    load_strategy(strategy)


def why_cut_off(open_files: Path = _OPEN_FILES) -> str | None:
    """Why no process that is forked from this one could use a device; None if each could.

    torch marks the children of a process that has asked CUDA or HIP for anything, and refuses devices in
    them. Nothing tells it in the parent, so a child looks.
    """
    if how := touched_device(open_files):
        return f"what is loaded has touched a device: {how}"
    if in_a_child(lambda: b"" if is_cut_off() else _YES) != _YES:
        return "what is loaded has asked for devices, so no child could use one"
    return None


def touched_device(open_files: Path = _OPEN_FILES) -> str | None:
    """How this process has touched a device; None if it holds none, as far as can be told without a fork."""
    held = sorted({path for path in _targets(open_files) if path.startswith(_DEVICE_FILES)})
    if held:
        return f"it holds {', '.join(held)} open"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "it has initialised torch.cuda"
    return None


def is_cut_off() -> bool:
    """Whether this process was forked from one that had asked CUDA or HIP for anything, and can't use a
    device.
    """
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda._is_in_bad_fork())


def in_a_child(ask: Callable[[], bytes]) -> bytes:
    """What ``ask`` returns in a child; nothing if it raises there."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.write(write, ask())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as told:
        answer = told.read()
    os.waitpid(pid, 0)
    return answer


def _targets(open_files: Path) -> Iterator[str]:
    for link in open_files.iterdir():
        with suppress(FileNotFoundError):  # The handle of this listing itself is gone by now.
            yield str(link.readlink())
