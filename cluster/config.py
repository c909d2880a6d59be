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

# What Ray's launcher takes where the file does not say.
_DEFAULT_MAX_WORKERS = 2


def read_cluster(path: Path) -> Inventory:
    data = _read(path)
    groups: dict[str, WorkerGroup] = {}
    for name, node_type in _node_types(path, data).items():
        place = f"{path}: available_node_types.{name}"
        nodes = [f"{name}-{index}" for index in range(_num_nodes(path, data, name, node_type))]
        group = _group(place, node_type, nodes)
        if group.num_devices:
            groups[group.name] = _joined(path, groups.get(group.name), group)
    if not groups:
        raise ClusterError(f"{path}: no node type has devices; expected resources with GPU or CPU above 0")
    return Inventory(groups=tuple(groups.values()), source=str(path))


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterError(f"{path}: can't be read ({error}); give the path of a cluster.yaml") from None
    except yaml.YAMLError as error:
        raise ClusterError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None
    return data if isinstance(data, dict) else {}


def _node_types(path: Path, data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    node_types = data.get("available_node_types")
    if not isinstance(node_types, dict):
        raise ClusterError(
            f"{path}: has no 'available_node_types'; expected a cluster file of Ray's launcher"
        )
    return {name: _mapping(f"{path}: available_node_types", node_types, name) for name in node_types}


def _num_nodes(path: Path, data: dict[str, Any], name: str, node_type: dict[str, Any]) -> int:
    """The most there can be. The head is there besides the workers, of which its type has none by default."""
    is_head = name == data.get("head_node_type")
    most = _count(str(path), data, "max_workers", _DEFAULT_MAX_WORKERS)
    of_type = _count(f"{path}: available_node_types.{name}", node_type, "max_workers", 0 if is_head else most)
    return min(of_type, most) + is_head


def _group(place: str, node_type: dict[str, Any], node_ids: list[str]) -> WorkerGroup:
    labels = _labels(place, node_type)
    resources = _mapping(place, node_type, "resources")
    num_cpus, num_gpus = (_count(f"{place}.resources", resources, key, 0) for key in ("CPU", "GPU"))
    vendor = _vendor(place, labels, num_gpus)
    num_devices = num_cpus if vendor == "cpu" else num_gpus
    return WorkerGroup(
        name=labels.get(GROUP_LABEL, LOCAL_GROUP),
        vendor=vendor,
        nodes=tuple(
            Node(node_id=node_id, num_devices=num_devices, num_cpus=num_cpus) for node_id in node_ids
        ),
        device=labels.get(DEVICE_LABEL),
        simulated=labels.get(SIMULATED_LABEL) == "true",
    )


def _vendor(place: str, labels: dict[str, str], num_gpus: int) -> Vendor:
    vendor = labels.get(VENDOR_LABEL, "cpu" if num_gpus == 0 else None)
    if vendor in get_args(Vendor):
        return vendor  # type: ignore[return-value]  # just checked
    raise ClusterError(
        f"{place}.labels: found {VENDOR_LABEL}={vendor!r}, expected one of "
        f"{', '.join(get_args(Vendor))}: a node with GPUs must say whose they are"
    )


def _labels(place: str, node_type: dict[str, Any]) -> dict[str, str]:
    labels = _mapping(place, node_type, "labels")
    for name, value in labels.items():
        if not isinstance(value, str):
            raise ClusterError(f"{place}.labels.{name}: found {value!r}, expected text; put it in quotes")
    return labels


def _mapping(place: str, data: dict[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key, {})
    if not isinstance(value, dict):
        raise ClusterError(f"{place}.{key}: found {value!r}, expected a mapping")
    return value


def _count(place: str, data: dict[str, Any], key: str, default: int) -> int:
    value = data.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ClusterError(f"{place}.{key}: found {value!r}, expected a whole number from 0")
    return value


def _joined(path: Path, one: WorkerGroup | None, other: WorkerGroup) -> WorkerGroup:
    if one is None:
        return other
    if (one.vendor, one.device) != (other.vendor, other.device):
        raise ClusterError(
            f"{path}: group {one.name!r} has {_kind(one)} and {_kind(other)}; "
            "a group is one vendor and one device model: give the node types different longhaul.group labels"
        )
    return WorkerGroup(
        name=one.name,
        vendor=one.vendor,
        nodes=one.nodes + other.nodes,
        device=one.device,
        simulated=one.simulated or other.simulated,
    )


def _kind(group: WorkerGroup) -> str:
    return f"{group.vendor} {group.device or 'devices'}"
