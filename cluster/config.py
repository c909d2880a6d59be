"""``cluster.yaml`` -> Inventory: what the cluster promises to have, at its largest.

The file is Ray's launcher file. Node types that share the label ``longhaul.group`` form one group; a node
type without devices is not a place to train on.
"""

from pathlib import Path
from typing import Any, get_args

import yaml

from cluster.inventory import (
    DEVICE_LABEL,
    GROUP_LABEL,
    LOCAL_GROUP,
    SIMULATED_LABEL,
    VENDOR_LABEL,
    ClusterError,
    Inventory,
    Node,
    Vendor,
    WorkerGroup,
)


def read_cluster(path: Path) -> Inventory:
    node_types = _node_types(path)
    groups: dict[str, WorkerGroup] = {}
    for name, node_type in node_types.items():
        group = _group(path, name, node_type)
        if group.num_devices:
            groups[group.name] = _joined(path, groups.get(group.name), group)
    if not groups:
        raise ClusterError(f"{path}: no node type has devices; expected resources with GPU or CPU above 0")
    return Inventory(groups=tuple(groups.values()), source=str(path))


def _node_types(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterError(f"{path}: can't be read ({error}); give the path of a cluster.yaml") from None
    except yaml.YAMLError as error:
        raise ClusterError(f"{path}: is not YAML: {str(error).splitlines()[0]}") from None
    node_types = data.get("available_node_types") if isinstance(data, dict) else None
    if not isinstance(node_types, dict) or not all(isinstance(below, dict) for below in node_types.values()):
        raise ClusterError(
            f"{path}: has no 'available_node_types'; expected a cluster file of Ray's launcher"
        )
    return node_types


def _group(path: Path, name: str, node_type: dict[str, Any]) -> WorkerGroup:
    labels = node_type.get("labels") or {}
    resources = node_type.get("resources") or {}
    num_cpus, num_gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
    vendor = _vendor(path, name, labels, num_gpus)
    node = {"num_devices": num_cpus if vendor == "cpu" else num_gpus, "num_cpus": num_cpus}
    count = int(node_type.get("max_workers", 1))
    return WorkerGroup(
        name=str(labels.get(GROUP_LABEL, LOCAL_GROUP)),
        vendor=vendor,
        nodes=tuple(Node(node_id=f"{name}-{index}", **node) for index in range(count)),
        device=labels.get(DEVICE_LABEL),
        simulated=labels.get(SIMULATED_LABEL) == "true",
    )


def _vendor(path: Path, name: str, labels: dict[str, str], num_gpus: int) -> Vendor:
    vendor = labels.get(VENDOR_LABEL, "cpu" if num_gpus == 0 else None)
    if vendor in get_args(Vendor):
        return vendor  # type: ignore[return-value]  # just checked
    raise ClusterError(
        f"{path}: available_node_types.{name}.labels: found {VENDOR_LABEL}={vendor!r}, expected one of "
        f"{', '.join(get_args(Vendor))}: a node with GPUs must say whose they are"
    )


def _joined(path: Path, one: WorkerGroup | None, other: WorkerGroup) -> WorkerGroup:
    if one is None:
        return other
    if (one.vendor, one.device) != (other.vendor, other.device):
        raise ClusterError(
            f"{path}: group {one.name!r} has {one.vendor} {one.device} and {other.vendor} {other.device}; "
            "a group is one vendor and one device model: give the node types different longhaul.group labels"
        )
    return WorkerGroup(
        name=one.name,
        vendor=one.vendor,
        nodes=one.nodes + other.nodes,
        device=one.device,
        simulated=one.simulated or other.simulated,
    )
