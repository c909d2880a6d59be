"""What FSDP2 and DeepSpeed ask of a device, for the late one: every strategy trains on it, on one rank."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from types import SimpleNamespace
from typing import Any

import deepspeed
import pytest
import torch
from deepspeed.accelerator import real_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from torch import Tensor, nn

from jobs.training.strategies import ddp
from tests.live.late_device import LATE, LateDevice, LateEvent, LateStream


@contextmanager
def engines_on(late: LateDevice) -> Iterator[pytest.MonkeyPatch]:
    """Inside, the engines of all strategies can be built on ``late``."""
    generator, tensor, numbers = torch.Generator, torch.tensor, count(1000)

    def made(*values: Any, device: Any = None, **kind: Any) -> Tensor:
        # torch makes it below what tests can see.
        found = tensor(*values, **kind)
        return found if device is None else found.to(device)

    with pytest.MonkeyPatch.context() as patch, late.present():
        late.stand_in(patch)
        patch.setattr(
            torch,
            LATE.type,
            SimpleNamespace(
                Event=lambda **_: LateEvent(late),
                Stream=lambda **_: LateStream(late, next(numbers)),
                current_device=lambda: LATE.index,
                current_stream=lambda: LateStream(late, late.stream),
                device_count=lambda: 1,
                is_available=lambda: True,
                is_initialized=lambda: True,
                stream=lambda stream: stream,
            ),
            raising=False,
        )
        patch.setattr(torch, "Generator", lambda device=None: generator())
        patch.setattr(torch, "tensor", made)
        # Under zero3 linears ask for the device's, which torch refuses for a kind that it has not.
        patch.setattr(torch, "autocast", lambda **_: nullcontext())
        patch.setattr(torch, "get_autocast_dtype", lambda kind: torch.float32)
        patch.setattr(torch, "is_autocast_enabled", lambda kind=None: False)
        patch.setattr(ddp, "DistributedDataParallel", _Alone)
        patch.setattr(real_accelerator, "ds_accelerator", _Accelerator(late))
        # DeepSpeed compiles it for 25 s otherwise.
        patch.setitem(deepspeed.ops.__compatible_ops__, "deepspeed_shm_comm", False)
        yield patch


class _Alone(nn.Module):
    """DDP on one rank. torch's own reduces in C++, which takes no stand-in for a collective."""

    def __init__(self, module: nn.Module, **_: Any) -> None:
        super().__init__()
        self.module = module
        self.no_sync = nullcontext

    def forward(self, *batch: Tensor) -> Any:
        return self.module(*batch)


class _Accelerator(CPU_Accelerator):  # type: ignore[misc] # DeepSpeed has no types
    """DeepSpeed's door to a device."""

    def __init__(self, late: LateDevice) -> None:
        super().__init__()
        self._name = LATE.type
        self._late = late
        self.FloatTensor = lambda values: torch.tensor(values, dtype=torch.float32, device=LATE)
        self.ByteTensor = lambda values: torch.tensor(values, dtype=torch.uint8, device=LATE)

    FloatTensor = ByteTensor = None

    @property
    def Event(self) -> Any:
        return getattr(torch, LATE.type).Event

    @property
    def Stream(self) -> Any:
        return getattr(torch, LATE.type).Stream

    def is_synchronized_device(self) -> bool:
        return False

    def device_name(self, device_index: int | None = None) -> str:
        return LATE.type if device_index is None else f"{LATE.type}:{device_index}"

    def current_device_name(self) -> str:
        return str(LATE)

    def current_device(self) -> int:
        return LATE.index

    def device_count(self) -> int:
        return 1

    def synchronize(self, device_index: int | None = None) -> None:
        self._late.synchronize()

    def stream(self, stream: LateStream) -> LateStream:
        return stream

    def current_stream(self, device_index: int | None = None) -> LateStream:
        return LateStream(self._late, self._late.stream)

    default_stream = current_stream

    def on_accelerator(self, tensor: Tensor) -> bool:
        return tensor.device.type == LATE.type

    def pin_memory(self, tensor: Tensor, make_copy: bool = True, match_shape: bool = True) -> Tensor:
        return tensor.pin_memory()
