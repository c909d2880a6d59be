"""Reads a ``cluster.yaml`` into an inventory: what the cluster promises to have, at its largest.

The file is Ray's launcher file. Node types that share the label ``longhaul.group`` form one group. A node
type without devices is left out, because nothing can be trained on it.
"""

from pathlib import Path
from typing import Any

from cluster.grouping import NodesAlike, grouped
from cluster.inventory import ClusterError, Inventory, Node
from cluster.yaml_file import YamlError, read_yaml

# Ray's launcher uses this if the file sets no value.
_DEFAULT_MAX_WORKERS = 2
# A higher count is a typing error, and each node costs memory here.
_MOST_NODES = 100_000


def read_cluster(path: Path) -> Inventory:
    data = _read(path)
    found = [_described(path, data, name, each) for name, each in _node_types(path, data).items()]
    groups = grouped(found, where=f"{path}: ")
    if not groups:
        raise ClusterError(f"{path}: no node type has devices; expected resources with GPU or CPU above 0")
    return Inventory(groups=groups, source=str(path))


def _read(path: Path) -> dict[str, Any]:
    try:
        data = read_yaml(path, "a cluster.yaml")
    except YamlError as error:
        raise ClusterError(str(error)) from None
    return data if isinstance(data, dict) else {}


def _node_types(path: Path, data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    node_types = data.get("available_node_types")
    if not isinstance(node_types, dict):
        what = (
            f"is a {data['kind']} of Kubernetes" if "apiVersion" in data and "kind" in data else "is foreign"
        )
        raise ClusterError(
            f"{path}: has no 'available_node_types', so it {what}; expected a cluster file of Ray's launcher"
        )
    return {name: _mapping(f"{path}: available_node_types", node_types, name) for name in node_types}


def _described(path: Path, data: dict[str, Any], name: str, node_type: dict[str, Any]) -> NodesAlike:
    place = f"available_node_types.{name}"
    resources = _mapping(f"{path}: {place}", node_type, "resources")
    num_cpus, num_gpus = (_count(f"{path}: {place}.resources", resources, kind, 0) for kind in ("CPU", "GPU"))
    nodes = (
        Node(node_id=f"{name}-{index}", num_devices=num_gpus, num_cpus=num_cpus)
        for index in range(_num_nodes(path, data, name, node_type))
    )
    return NodesAlike(place=place, labels=_labels(f"{path}: {place}", node_type), nodes=tuple(nodes))


def _num_nodes(path: Path, data: dict[str, Any], name: str, node_type: dict[str, Any]) -> int:
    """Returns the largest possible number. The head is added to the workers of its type, which are 0 by
    default.
    """
    is_head = name == data.get("head_node_type")
    most = _count(str(path), data, "max_workers", _DEFAULT_MAX_WORKERS)
    of_type = _count(f"{path}: available_node_types.{name}", node_type, "max_workers", 0 if is_head else most)
    number = min(of_type, most) + is_head
    if number > _MOST_NODES:
        raise ClusterError(f"{path}: available_node_types.{name}: {number:,} nodes, at most {_MOST_NODES:,}")
    return number


def _labels(place: str, node_type: dict[str, Any]) -> dict[str, str]:
    labels = _mapping(place, node_type, "labels")
    for name, value in labels.items():
        if not isinstance(name, str):
            raise ClusterError(f"{place}.labels: found the label {name!r}, expected text; put it in quotes")
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
