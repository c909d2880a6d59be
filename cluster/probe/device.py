"""Finds the devices that torch sees, and measures how fast they multiply and receive copies."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from cluster.probe import door
from cluster.probe.node_facts import CopyRate, GemmRate, NodePlatform, Shape
from cluster.telemetry.readings import Nothing, Reading
from cluster.telemetry.sampler import telemetry_of

_INTERFACES = {"cuda": "NVML", "rocm": "AMD SMI"}
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

# For one dtype and shape. A batch lasts long enough for the clock's resolution and the start-up time.
_NUM_BATCHES = 5
_BATCH_S = 0.03
_COPY_BYTES = 64 * 2**20


def platform_found() -> NodePlatform:
    if not door.is_there():
        return "cpu"
    return "rocm" if torch.version.hip else "cuda"


def devices() -> list[torch.device]:
    """Returns all accelerators that this process sees, or one core of the host."""
    return [torch.device("cuda", index) for index in range(door.count())] or [torch.device("cpu")]


@contextmanager
def one_thread(is_wanted: bool) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1 if is_wanted else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def telemetry(device: torch.device) -> str | None:
    """Returns the name of the interface that reports power; None if none does."""
    if device.type == "cpu":
        return None
    found = telemetry_of(platform_found(), door.address(device))
    return None if isinstance(found, Nothing) or found.read() == Reading() else _INTERFACES[platform_found()]


def gemm_rates(device: torch.device, shapes: Sequence[Shape]) -> Iterator[GemmRate]:
    """Measures for about 0.2 s per dtype and shape, longer only if one product takes longer than that."""
    for dtype, kind in _DTYPES.items():
        for shape in shapes:
            left = torch.randn(shape.rows, shape.inner, device=device).to(kind)
            right = torch.randn(shape.inner, shape.columns, device=device).to(kind)
            out = torch.empty(shape.rows, shape.columns, dtype=kind, device=device)
            seconds = _fastest(device, partial(torch.matmul, left, right, out=out))
            yield GemmRate(
                device=device.index or 0, dtype=dtype, shape=shape, flops_per_s=shape.flops / seconds
            )


def copy_rate(device: torch.device) -> CopyRate | None:
    """Returns the rate of copies to the device; None on a CPU, where nothing is copied."""
    if device.type == "cpu":
        return None
    source = door.pinned(torch.empty(_COPY_BYTES, dtype=torch.uint8), device)
    target = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=device)
    seconds = _fastest(device, partial(target.copy_, source, non_blocking=True))
    return CopyRate(device=device.index or 0, bytes_per_s=_COPY_BYTES / seconds)


def _fastest(device: torch.device, work: Callable[[], Tensor]) -> float:
    """Returns the seconds of one ``work`` in the fastest batch; the first batches warm up."""
    time_of_batch(device, work, 2)
    once = time_of_batch(device, work, 1)
    size = max(1, round(_BATCH_S / once))
    return min(time_of_batch(device, work, size) for _ in range(_NUM_BATCHES))


def time_of_batch(device: torch.device, work: Callable[[], object], size: int) -> float:
    """Returns the seconds of one ``work``, the mean of ``size`` in a row."""
    door.synchronize(device)
    start = time.perf_counter()
    for _ in range(size):
        work()
    door.synchronize(device)
    return (time.perf_counter() - start) / size
