"""This rank's device: its kind and its identity, and the check that no two ranks share a device."""

import os

import torch

from cluster.probe import door
from cluster.telemetry.readings import Telemetry
from cluster.telemetry.sampler import telemetry_of
from jobs.training.device.identities import DeviceIdentity, Platform, mismatch
from jobs.training.health.failures import DeviceMismatch
from jobs.training.ranks.gathering import gather
from jobs.training.task.context import Context
from jobs.training.task.job import Job
from jobs.training.task.task import Task


def platform_of(device: torch.device) -> Platform:
    if device.type == "cpu":
        return "cpu"
    return "rocm" if torch.version.hip else "cuda"


def telemetry(device: torch.device) -> Telemetry:
    return telemetry_of(platform_of(device), door.address(device))


def identity(context: Context) -> DeviceIdentity:
    device = context.device
    return DeviceIdentity(
        node=context.node,
        platform=platform_of(device),
        device_id=f"process-{os.getpid()}" if device.type == "cpu" else _device_id(device),
        model=door.name_of(device),
    )


def _device_id(device: torch.device) -> str:
    """Joins uuid and PCI address, since neither is always unique.

    Some runtimes give all devices one uuid, and some give all parts of a package one address.
    """
    address = door.address(device)
    known = [part for part in (address.uuid, address.pci) if part]
    return " at ".join(known) or f"number {device.index}"


def check_ranks(context: Context, work: Job | Task) -> list[str]:
    """Checks that each rank has a device of its own, of the kind that ``work`` is for; returns their nodes.

    Collective.

    Raises ``DeviceMismatch`` on all ranks or on none.
    """
    ranks = gather(identity(context), DeviceIdentity)
    problem = mismatch(
        ranks,
        world_size=work.recipe.world_size,
        vendor="cpu" if work.simulated else work.vendor,
        may_mix_devices=work.may_mix_devices,
    )
    if problem:
        raise DeviceMismatch(problem)
    return [rank.node for rank in ranks]
