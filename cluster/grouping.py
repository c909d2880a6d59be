"""Groups labelled nodes, as a file or Ray describes them, or says what is wrong with them. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast, get_args

from cluster.inventory import (
    DEVICE_LABEL,
    GROUP_LABEL,
    LOCAL_GROUP,
    MIXED_LABEL,
    SIMULATED_LABEL,
    VENDOR_LABEL,
    ClusterError,
    Node,
    Vendor,
    WorkerGroup,
)

# Ray's own label for the accelerators that it recognised.
ACCELERATOR_LABEL = "ray.io/accelerator-type"
_AMD_PREFIX = "AMD-"
# Prefixes of other GPU makers that Ray recognises.
_OTHER_PREFIXES = ("Intel-", "MXC")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesAlike:
    """Nodes that are all alike. Their devices are GPUs until they are known to have the vendor ``cpu``.

    Messages call them ``place``.
    """

    place: str
    labels: Mapping[str, str]
    nodes: tuple[Node, ...]


def grouped(found: Iterable[NodesAlike], *, where: str = "") -> tuple[WorkerGroup, ...]:
    """Returns the groups in the order of their first nodes; nodes without devices are in none.

    Raises ``ClusterError``, with a message that begins with ``where``, if a group has no vendor or two
    vendors. Several device models are an error too, unless all nodes of the group allow them.
    """
    try:
        return _grouped(found)
    except ClusterError as error:
        raise ClusterError(f"{where}{error}") from None


def _grouped(found: Iterable[NodesAlike]) -> tuple[WorkerGroup, ...]:
    members: dict[str, list[NodesAlike]] = {}
    for one in found:
        if any(node.num_devices for node in _nodes(one)):
            members.setdefault(one.labels.get(GROUP_LABEL, LOCAL_GROUP), []).append(one)
    return tuple(_group(name, together) for name, together in members.items())


def _vendor(one: NodesAlike) -> Vendor:
    vendor = one.labels.get(VENDOR_LABEL)
    if vendor in get_args(Vendor):
        return cast(Vendor, vendor)
    if vendor is None and GROUP_LABEL not in one.labels:
        if not any(node.num_devices for node in one.nodes):
            return "cpu"
        if recognised := _recognised(one.labels.get(ACCELERATOR_LABEL, "")):
            return recognised
    raise ClusterError(_without_vendor(one, vendor))


def _recognised(accelerator_type: str) -> Vendor | None:
    if not accelerator_type or accelerator_type.startswith(_OTHER_PREFIXES):
        return None
    return "amd" if accelerator_type.startswith(_AMD_PREFIX) else "nvidia"


def _without_vendor(one: NodesAlike, found: str | None) -> str:
    name = one.labels.get(GROUP_LABEL)
    why = (
        f"group {name!r} must say whose devices it has"
        if name
        else "a node with GPUs must say whose they are"
    )
    known = ", ".join(get_args(Vendor))
    return f"{one.place}.labels: found {VENDOR_LABEL}={found!r}, expected one of {known}: {why}"


def _group(name: str, members: Sequence[NodesAlike]) -> WorkerGroup:
    _check_alike(name, members)
    models = {_device(one) for one in members}
    nodes = tuple(node for one in members for node in _nodes(one))
    return WorkerGroup(
        name=name,
        vendor=_vendor(members[0]),
        nodes=tuple(node for node in nodes if not node.is_draining),
        device=models.pop() if len(models) == 1 else None,
        simulated=any(one.labels.get(SIMULATED_LABEL) == "true" for one in members),
        excluded=tuple(node for node in nodes if node.is_draining),
    )


def _check_alike(name: str, members: Sequence[NodesAlike]) -> None:
    first, may_differ = members[0], all(one.labels.get(MIXED_LABEL) == "true" for one in members)
    for one in members[1:]:
        if _vendor(one) != _vendor(first):
            raise ClusterError(_two_kinds(name, first, one))
        if _device(one) != _device(first) and not may_differ:
            allow = f'{MIXED_LABEL}: "true" on all of its nodes allows several models'
            raise ClusterError(f"{_two_kinds(name, first, one)} ({allow})")


def _nodes(one: NodesAlike) -> list[Node]:
    is_cpu, labels = _vendor(one) == "cpu", tuple(sorted(one.labels.items()))
    alike = (replace(node, device=_device(one), labels=labels) for node in one.nodes)
    return [replace(node, num_devices=node.num_cpus) if is_cpu else node for node in alike]


def _device(one: NodesAlike) -> str | None:
    return one.labels.get(DEVICE_LABEL) or one.labels.get(ACCELERATOR_LABEL)


def _two_kinds(name: str, one: NodesAlike, other: NodesAlike) -> str:
    return (
        f"group {name!r} has {_kind(one)} ({one.place}) and {_kind(other)} ({other.place}); a group is one "
        f"vendor and one device model: give them different {GROUP_LABEL} labels"
    )


def _kind(one: NodesAlike) -> str:
    return f"{_vendor(one)} {_device(one) or 'devices'}"
