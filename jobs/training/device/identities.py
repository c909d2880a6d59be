"""Checks that the ranks' devices are the ones that were asked for. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from cluster.inventory import MIXED_LABEL, Vendor

Platform = Literal["cpu", "cuda", "rocm"]
_PLATFORMS: dict[Vendor, Platform] = {"nvidia": "cuda", "amd": "rocm", "cpu": "cpu"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIdentity:
    """One rank's device. ``device_id`` is unique on a node: an accelerator's uuid and PCI address, or the
    process's id on a CPU. ``model`` is the market name; None on a CPU.
    """

    node: str
    platform: Platform
    device_id: str
    model: str | None = None


def mismatch(
    devices: Sequence[DeviceIdentity], *, world_size: int, vendor: Vendor, may_mix_devices: bool = False
) -> str | None:
    """Says why the ``devices`` of all ranks, in the ranks' order, don't fit; None if they do.

    They fit if there is one distinct device per rank, all of the ``vendor`` and, unless ``may_mix_devices``,
    of one model. The vendor is ``cpu`` if CPUs simulate devices.
    """
    if len(devices) != world_size:
        return f"{len(devices)} ranks came, {world_size} were asked for"
    problem = _other_vendor(devices, vendor) or _shared(devices)
    return problem if problem or may_mix_devices else _mixed(devices)


def _other_vendor(devices: Sequence[DeviceIdentity], vendor: Vendor) -> str | None:
    wrong = [rank for rank, device in enumerate(devices) if device.platform != _PLATFORMS[vendor]]
    if not wrong:
        return None
    found = ", ".join(sorted({devices[rank].platform for rank in wrong}))
    return (
        f"{_named(wrong)} on {found}, but the group's vendor is {vendor} (platform {_PLATFORMS[vendor]}); "
        "give the group a node image of its vendor, or declare it simulated"
    )


def _shared(devices: Sequence[DeviceIdentity]) -> str | None:
    counts = Counter((device.node, device.device_id) for device in devices)
    (node, device_id), count = counts.most_common(1)[0]
    if count == 1:
        return None
    ranks = [
        rank for rank, device in enumerate(devices) if (device.node, device.device_id) == (node, device_id)
    ]
    return (
        f"{_named(ranks)} on one device, {device_id} of node {node}; expected one device per rank "
        "(check the group's visible-devices variables)"
    )


def _mixed(devices: Sequence[DeviceIdentity]) -> str | None:
    models = sorted({device.model or "unknown" for device in devices})
    if len(models) == 1:
        return None
    found = "; ".join(f"{_named(_ranks_with(model, devices))} on {model}" for model in models)
    return (
        f"{found}: a group has one device model; label its nodes apart, or all of them "
        f'{MIXED_LABEL}: "true" to run on several'
    )


def _ranks_with(model: str, devices: Sequence[DeviceIdentity]) -> list[int]:
    return [rank for rank, device in enumerate(devices) if (device.model or "unknown") == model]


def _named(ranks: Iterable[int]) -> str:
    names = [str(rank) for rank in ranks]
    return f"rank {names[0]} runs" if len(names) == 1 else f"ranks {', '.join(names)} run"
