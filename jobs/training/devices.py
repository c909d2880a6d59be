"""The device of this rank: what it is, which one it is, and the proof that no two ranks share one."""

import os
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist

from cluster.inventory import Vendor
from cluster.readings import Address, Telemetry
from cluster.telemetry import telemetry_of
from jobs.training.context import Context
from jobs.training.failures import DeviceMismatch

Platform = Literal["cpu", "cuda", "rocm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIdentity:
    """``device_id`` is unique on a node: the accelerator's uuid, or this process on a CPU."""

    node: str
    platform: Platform
    device_id: str


def platform_of(device: torch.device) -> Platform:
    if device.type == "cpu":
        return "cpu"
    return "rocm" if torch.version.hip else "cuda"


def device_name(device: torch.device) -> str | None:
    """The market name as the driver tells it; None on a CPU, which is not named by it."""
    return None if device.type == "cpu" else torch.cuda.get_device_name(device)


def telemetry(device: torch.device) -> Telemetry:
    return telemetry_of(platform_of(device), _address(device))


def _address(device: torch.device) -> Address:
    """As torch tells it: an older one, or a runtime that hides the bus, leaves out what it doesn't know."""
    if device.type == "cpu":
        return Address()
    found = torch.cuda.get_device_properties(device)
    uuid = getattr(found, "uuid", None)
    domain, bus, slot = (getattr(found, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    is_known = isinstance(domain, int) and isinstance(bus, int) and isinstance(slot, int)
    return Address(
        uuid=None if uuid is None else str(uuid),
        pci=f"{domain:04x}:{bus:02x}:{slot:02x}" if is_known else None,
    )


def identity(context: Context) -> DeviceIdentity:
    if context.device.type == "cpu":
        device_id = f"process-{os.getpid()}"
    else:
        device_id = str(torch.cuda.get_device_properties(context.device).uuid)
    return DeviceIdentity(node=context.node, platform=platform_of(context.device), device_id=device_id)


def check_ranks(context: Context, world_size: int, vendor: Vendor) -> None:
    """Collective: as many ranks as asked for, each with a device of its own, or ``DeviceMismatch`` on all."""
    if context.world_size != world_size:
        raise DeviceMismatch(f"{context.world_size} ranks came, {world_size} were asked for")
    devices: list[DeviceIdentity] = [identity(context)] * world_size
    dist.all_gather_object(devices, identity(context))
    check_devices(devices, vendor)


def check_devices(devices: list[DeviceIdentity], vendor: Vendor) -> None:
    """Raises ``DeviceMismatch`` unless every rank has a device of its own, of this vendor."""
    expected: dict[Vendor, Platform] = {"nvidia": "cuda", "amd": "rocm", "cpu": "cpu"}
    wrong = [rank for rank, device in enumerate(devices) if device.platform != expected[vendor]]
    if wrong:
        raise DeviceMismatch(
            f"ranks {wrong} run on {devices[wrong[0]].platform}, but the group's vendor is {vendor}; "
            "give the group a node image of its vendor, or declare it simulated"
        )
    shared = [key for key, count in Counter((d.node, d.device_id) for d in devices).items() if count > 1]
    if shared:
        node, device_id = shared[0]
        raise DeviceMismatch(
            f"several ranks share device {device_id} on {node}; expected one device per rank "
            "(check the group's visible-devices variables)"
        )
