"""The door to torch's devices: here alone is asked what only ``torch.cuda`` knows. AMD's have that name too.

On a CPU there is nothing to wait for. Each function that takes a device raises ``UnknownDevice`` for a kind
of which nothing is known here.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from cluster.probe import numa
from cluster.telemetry.readings import DeviceAddress

# What torch has for each kind of device, with the names that ``torch.cuda`` has for it.
KINDS: dict[str, Any] = {"cuda": torch.cuda}
# Those that are asked for here.
_NAMES = (
    "Event",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "manual_seed",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_peak_memory_stats",
    "set_rng_state",
    "synchronize",
)


class UnknownDevice(Exception):
    """This kind of device can't be used. The message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """``peak_*`` since ``reset_peaks``: what tensors held, and what the allocator held for them.

    ``num_retries`` counts how often the allocator had to give its cache back before it could go on.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    num_retries: int
    total_bytes: int
    free_bytes: int


class Event(Protocol):
    """A place in the work of a device, from ``record`` on."""

    def record(self) -> None: ...

    def query(self) -> bool:
        """Whether the device has come to it. Does not wait."""

    def synchronize(self) -> None:
        """Waits until the device has come to it."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds of the device until ``end``; both must have passed."""


def is_there() -> bool:
    """Whether this process sees a device. Asks without touching one."""
    return torch.cuda.is_available()


def count() -> int:
    return torch.cuda.device_count() if is_there() else 0


def take(index: int) -> torch.device:
    """Makes a device of those that this process sees its own, for all that names none."""
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def take_near(index: int) -> torch.device:
    """As ``take``, after this process was bound to the NUMA node of the device."""
    numa.bind(address(torch.device("cuda", index)).pci)
    return take(index)


def unusable_kind() -> str | None:
    """The kind of this machine's device, if it is one with which nothing can be computed here."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return None if found is None or found.type in KINDS else found.type


def synchronize(device: torch.device) -> None:
    """Waits until the device has done all that was launched."""
    if device.type != "cpu":
        _kind(device).synchronize(device)


def event(device: torch.device) -> Event:
    """An event that was recorded just now, on the current stream. A CPU has none."""
    made: Event = _kind(device).Event(enable_timing=True)
    made.record()
    return made


def pinned(values: Tensor, device: torch.device) -> Tensor:
    """``values`` in memory from which a copy to the device holds nobody up."""
    _kind(device)
    return values.pin_memory()


def name_of(device: torch.device) -> str | None:
    """The market name from the device driver; None on a CPU."""
    return None if device.type == "cpu" else _kind(device).get_device_name(device)


def properties(device: torch.device) -> Any:
    """As torch tells them. A CPU has none."""
    return _kind(device).get_device_properties(device)


def address(device: torch.device) -> DeviceAddress:
    return DeviceAddress() if device.type == "cpu" else DeviceAddress.of(properties(device))


def collective_backend(device: torch.device) -> Literal["gloo", "nccl"]:
    """Torch's backend for such devices. RCCL is called ``nccl`` there too."""
    return "gloo" if device.type == "cpu" else "nccl"


def collective_device(backend: str) -> torch.device:
    """Where a backend's collectives expect their tensors."""
    return torch.device("cpu" if backend == "gloo" else "cuda")


def collective_library(device: torch.device) -> str:
    """Its name and version."""
    if device.type == "cpu":
        return "gloo"
    name = "rccl" if torch.version.hip else "nccl"
    return f"{name} {'.'.join(map(str, torch.cuda.nccl.version()))}"


def seed(device: torch.device, number: int) -> None:
    if device.type != "cpu":
        _kind(device).manual_seed(number)


def random_state(device: torch.device) -> Tensor | None:
    """The state of the device's own generator, on the host; None on a CPU."""
    return None if device.type == "cpu" else _kind(device).get_rng_state(device)


def set_random_state(device: torch.device, state: Tensor) -> None:
    _kind(device).set_rng_state(state, device)


def reset_peaks(device: torch.device) -> None:
    if device.type != "cpu":
        _kind(device).reset_peak_memory_stats(device)


def memory_of(device: torch.device) -> DeviceMemory:
    kind = _kind(device)
    free, total = kind.mem_get_info(device)
    return DeviceMemory(
        peak_allocated_bytes=kind.max_memory_allocated(device),
        peak_reserved_bytes=kind.max_memory_reserved(device),
        num_retries=kind.memory_stats(device)["num_alloc_retries"],
        total_bytes=total,
        free_bytes=free,
    )


def allocated_bytes(device: torch.device) -> int:
    """What this process's tensors hold of the device's memory."""
    return int(_kind(device).memory_allocated(device))


def reserved_bytes(device: torch.device) -> int:
    """What this process's allocator holds of the device's memory."""
    return int(_kind(device).memory_reserved(device))


def forget_freed() -> None:
    """Returns device memory that the allocator caches."""
    if is_there():
        torch.cuda.empty_cache()


def _kind(device: torch.device) -> Any:
    if (kind := KINDS.get(device.type)) is not None:
        return kind
    module = getattr(torch, device.type, None)
    lacking = [name for name in _NAMES if not hasattr(module, name)]
    rest = f"; torch.{device.type} has no {', '.join(lacking)}" if lacking else ""
    raise UnknownDevice(
        f"{device.type}: no such device can be used here: nothing pins memory for its saves or reads its "
        f"power{rest}; expected {' or '.join(KINDS)}, or a CPU"
    )
