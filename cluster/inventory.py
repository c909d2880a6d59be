"""What machines there are, and what a run asks of them: plain data, no effects.

A *group* is a set of nodes of one vendor and one device model. Nodes carry the label
``longhaul.group``; those without it form the group ``local``.
"""

from dataclasses import dataclass
from typing import Literal

Vendor = Literal["nvidia", "amd", "cpu"]

LOCAL_GROUP = "local"
GROUP_LABEL = "longhaul.group"
VENDOR_LABEL = "longhaul.vendor"
DEVICE_LABEL = "longhaul.device"
SIMULATED_LABEL = "longhaul.simulated"


class ClusterError(Exception):
    """The cluster, or the file that describes it, can't be used as it is; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine. The numbers are totals, not what is free right now; unknown memory is None."""

    node_id: str
    num_devices: int
    num_cpus: int
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGroup:
    """Nodes of one vendor. On the vendor ``cpu`` a device is one core.

    ``device`` is the market name of the accelerator or None when nobody knows it.
    ``simulated`` means that CPU processes stand in for devices; every result of it says so.
    """

    name: str
    vendor: Vendor
    nodes: tuple[Node, ...]
    device: str | None = None
    simulated: bool = False

    @property
    def num_devices(self) -> int:
        return sum(node.num_devices for node in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All groups of a cluster. ``source`` says where the knowledge comes from, for messages."""

    groups: tuple[WorkerGroup, ...]
    source: str

    def group(self, name: str) -> WorkerGroup | None:
        return next((group for group in self.groups if group.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """``num_workers`` devices on exactly one group; one device per worker."""

    group: str
    num_workers: int
