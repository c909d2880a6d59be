"""The device of this machine, as torch sees it. This process itself makes no context on it."""

from dataclasses import dataclass
from functools import cache

import torch

from cluster.inventory import Vendor
from tests.gpu.apart import apart

DEVICE = torch.device("cuda", 0)
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """``name`` is the market name."""

    name: str
    memory_bytes: int


def nothing_here() -> str | None:
    """Why no check can run here; None if there is a device."""
    if torch.cuda.is_available():
        return None
    return f"torch {torch.__version__} sees no NVIDIA or AMD device"


@cache
def facts() -> Facts:
    """Of the device, which must be there."""
    return apart(_facts, device=DEVICE)


def _facts(device: torch.device) -> Facts:
    properties = torch.cuda.get_device_properties(device)
    return Facts(name=torch.cuda.get_device_name(device), memory_bytes=int(properties.total_memory))


def vendor_of(device: torch.device) -> Vendor:
    if device.type == "cpu":
        return "cpu"
    return "amd" if torch.version.hip else "nvidia"


def wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.cuda.synchronize(device)


def versions() -> str:
    """What figures depend on, in one line."""
    if torch.version.hip:
        return f"torch {torch.__version__}, HIP {torch.version.hip}"
    return f"torch {torch.__version__}, CUDA {torch.version.cuda}"
