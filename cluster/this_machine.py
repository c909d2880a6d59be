"""This machine as a group of its own, for use without a cluster. Starts nothing."""

import os
import platform
import socket
from pathlib import Path

import psutil

from cluster.inventory import LOCAL_GROUP, Inventory, Node, Vendor, WorkerGroup

_CGROUP_MEMORY = Path("/sys/fs/cgroup/memory.max")
_KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")


def this_machine() -> Inventory:
    vendor, num_devices, device = _nvidia() or _amd() or ("cpu", num_cpus(), None)
    node = Node(
        node_id=platform.node(),
        num_devices=num_devices,
        num_cpus=num_cpus(),
        memory_bytes=_memory_bytes(),
    )
    group = WorkerGroup(name=LOCAL_GROUP, vendor=vendor, nodes=(node,), device=device)
    return Inventory(groups=(group,), source="this machine")


def num_cpus() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def interfaces() -> dict[str, list[str]]:
    """Returns the addresses of each network interface, IPv4 before IPv6."""
    found = {}
    for name, addresses in psutil.net_if_addrs().items():
        kinds = (socket.AF_INET, socket.AF_INET6)
        found[name] = [one.address.split("%")[0] for kind in kinds for one in addresses if one.family == kind]
    return found


def listening() -> dict[int, tuple[str, int]]:
    """Returns the numbers of this process's files at which it listens by TCP, and where."""
    ends = psutil.Process().net_connections("tcp")
    return {end.fd: (end.laddr.ip, end.laddr.port) for end in ends if end.status == psutil.CONN_LISTEN}


def _memory_bytes() -> int:
    """Returns the host's memory, or the container's limit if that is lower."""
    total = int(psutil.virtual_memory().total)
    try:
        bound = _CGROUP_MEMORY.read_text(encoding="utf-8").strip()
    except OSError:
        return total
    return min(total, int(bound)) if bound.isdigit() else total


def _nvidia() -> tuple[Vendor, int, str | None] | None:
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        if count == 0:
            return None
        return "nvidia", count, str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)))
    except pynvml.NVMLError:
        return None


def _amd() -> tuple[Vendor, int, str | None] | None:
    """Reads the kernel's own list, where a node with SIMDs is a GPU. It has no market names, so the device
    is None.
    """
    properties = (path.read_text(encoding="utf-8") for path in sorted(_KFD_NODES.glob("*/properties")))
    count = sum(1 for text in properties if _has_simds(text))
    return ("amd", count, None) if count else None


def _has_simds(properties: str) -> bool:
    pairs = dict(line.split(maxsplit=1) for line in properties.splitlines() if " " in line)
    return int(pairs.get("simd_count", "0")) > 0
