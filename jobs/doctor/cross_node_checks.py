"""Finds what shows only when nodes are compared with each other or with the cluster file. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from cluster.probe.node_facts import LinkRate, NodeFacts
from jobs.doctor.examination import Examination, Finding, Link, NodeAnswer
from jobs.doctor.pairing import shares_of_slow_links

# A slower device delays all the others in every step.
_SLOWER = 0.10
# Ray rejects other versions of these two in a cluster. The packages of training must be equal within a group.
_EVERYWHERE = ("python", "ray")
_WITHIN_GROUP = ("torch", "deepspeed")
_DRIVER = "the driver"
_MOST = 5  # names that one finding lists


@dataclass(frozen=True, slots=True)
class _Told:
    group: str
    name: str
    facts: NodeFacts


def versions(seen: Examination) -> Iterator[Finding]:
    told = _told(seen.answers)
    for package in _EVERYWHERE:
        found = {_DRIVER: seen.own_versions.get(package)}
        found |= {f"{one.group}: {one.name}": one.facts.versions.get(package) for one in told}
        yield from _differing("all nodes", package, found)
    for group in sorted({one.group for one in told}):
        for package in _WITHIN_GROUP:
            members = {one.name: one.facts.versions.get(package) for one in told if one.group == group}
            yield from _missing(group, package, members)
            yield from _differing(group, package, members)


def between_nodes(answers: Sequence[NodeAnswer]) -> Iterator[Finding]:
    told = _told(answers)
    for group in sorted({one.group for one in told}):
        members = [one for one in told if one.group == group]
        yield from _models(group, members)
        yield from _slower_ones(group, members)


def same_results(seen: Examination) -> Iterator[Finding]:
    """Compares what devices computed of known numbers with what is recorded of their kind, else with what
    more than half of their kind computed.
    """
    golden = {one.kind: one.digests for one in seen.golden}
    for kind, devices in _by_kind(_told(seen.answers)).items():
        recorded = golden.get(kind, {})
        if differences := [*_other_results(kind, devices, recorded)]:
            yield from differences
            continue
        yield Finding(
            level="ok",
            subject="known kernels",
            found=f"{kind_text(kind)}: {_how_alike([*devices.values()], recorded)}",
        )


_Kind = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class _Device:
    """``place`` is that of its node among all: several may have one name."""

    place: int
    subject: str
    number: int


# The digests by kernel.
_Devices = Mapping[_Device, Mapping[str, str]]


def _by_kind(told: Sequence[_Told]) -> Mapping[_Kind, _Devices]:
    kinds: dict[_Kind, dict[_Device, dict[str, str]]] = {}
    for place, one in enumerate(told):
        for each in one.facts.kernels:
            devices = kinds.setdefault(one.facts.kind_of(each), {})
            device = _Device(place, f"{one.group}: {one.name}", each.device)
            devices.setdefault(device, {})[each.kernel] = each.digest
    return kinds


def _how_alike(devices: Sequence[Mapping[str, str]], recorded: Mapping[str, str]) -> str:
    kernels = {kernel for digests in devices for kernel in digests}
    unknown = kernels - recorded.keys()
    number, alike = len(devices), "compute alike" if len(devices) > 1 else "device"
    if not unknown:
        return f"{number} compute as recorded"
    if len(unknown) == len(kernels):
        return f"{number} {alike}; none recorded to compare with"
    return f"{number} compute as recorded, but {len(unknown)} of {len(kernels)} kernels are not recorded"


def _other_results(kind: _Kind, devices: _Devices, recorded: Mapping[str, str]) -> Iterator[Finding]:
    wrong: dict[_Device, list[str]] = {}
    undecided = []
    for kernel in dict.fromkeys(kernel for digests in devices.values() for kernel in digests):
        computed = {device: digests[kernel] for device, digests in devices.items() if kernel in digests}
        usual, count = Counter(computed.values()).most_common(1)[0]
        if kernel not in recorded and 2 * count <= len(computed) and count < len(computed):
            undecided.append(kernel)
            continue
        right = recorded.get(kernel, usual)
        for device in (device for device, digest in computed.items() if digest != right):
            wrong.setdefault(device, []).append(kernel)
    for device, kernels in wrong.items():
        than = "was recorded" if not recorded.keys().isdisjoint(kernels) else "most devices of its kind"
        yield Finding(
            level="failed",
            subject=device.subject,
            found=f"device {device.number} computes other results than {than} ({kind_text(kind)}): "
            f"{_some(kernels)}",
            remedy="leave the device out and test it; if a new driver or library made all of its kind "
            "differ, record them anew with --record-golden",
        )
    if undecided:
        yield Finding(
            level="failed",
            subject="known kernels",
            found=f"{kind_text(kind)}: devices differ, and no majority says which are right: "
            f"{_some(undecided)}",
            remedy="test each device by itself, or compare with results of healthy ones: --golden",
        )


def kind_text(kind: _Kind) -> str:
    model, _, torch = kind
    return f"{model}, torch {torch}"


def links(found: Sequence[Link]) -> Iterator[Finding]:
    for link in found:
        if isinstance(link.rate, str) and link.peer is None:
            where = f"within {link.node}" if link.node else "across its nodes"
            yield _failed_link(link.group, f"all-reduce {where} does not work: {link.rate}")
    for (group, backend), members in groupby(
        (link for link in found if link.peer), key=lambda link: (link.group, link.backend)
    ):
        yield from _pairs(group, backend, list(members))


def _pairs(group: str, backend: str, found: Sequence[Link]) -> Iterator[Finding]:
    """Names pairs of nodes that do not reach each other, or far slower than others do."""
    lost = [link for link in found if isinstance(link.rate, str)]
    if lost:
        tried = Counter(name for link in found for name in (link.node, link.peer))
        failed = Counter(name for link in lost for name in (link.node, link.peer))
        alone = [str(name) for name in failed if failed[name] == tried[name] > 1]
        # Where all are, or in a ring of which one link is lost, it is no single node's fault.
        if alone and len(alone) < len(tried):
            rest = [link for link in lost if link.node not in alone and link.peer not in alone]
            yield _failed_link(group, f"reaches no other node over {backend}: {_some(alone)}")
        else:
            rest = lost
        if rest:
            texts = [f"{_pair(link)} ({link.rate})" for link in rest]
            yield _failed_link(group, f"nodes do not reach each other over {backend}: {_some(texts)}")
    rates = {_pair(link): link.rate.bus_bytes_per_s for link in found if isinstance(link.rate, LinkRate)}
    slow = [f"{pair} at {share:.0%}" for pair, share in shares_of_slow_links(rates).items()]
    if slow:
        yield Finding(
            level="warning",
            subject=group,
            found=f"links over {backend} are slow beside the usual one: {_some(slow)}",
            remedy="look at cable, port, switch and interface there: the slowest link holds up all ranks",
        )


def _pair(link: Link) -> str:
    return f"{link.node} - {link.peer}"


def _failed_link(group: str, found: str) -> Finding:
    return Finding(
        level="failed",
        subject=group,
        found=found,
        remedy="name the interface (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME), open the ports between "
        "the nodes, and run it with NCCL_DEBUG=INFO",
    )


def draining(names: Sequence[str]) -> Iterator[Finding]:
    for name in names:
        yield Finding(
            level="warning",
            subject=name,
            found="is draining: nothing starts there any more",
            remedy="if that was not meant, start `ray start` there again",
        )


def promises(seen: Examination) -> Iterator[Finding]:
    """Compares the nodes found with the cluster file.

    A missing node is a warning, since the autoscaler may have stopped it. A node with fewer devices than the
    file promises has failed.
    """
    for promise in seen.promises:
        members = [answer.asked for answer in seen.answers if answer.asked.group == promise.group]
        if len(members) < promise.num_nodes:
            yield Finding(
                level="warning",
                subject=promise.group,
                found=f"{len(members)} of {promise.num_nodes} nodes are there",
                remedy="if the autoscaler has not stopped them: look at its log, and at the quota"
                if seen.is_cluster
                else "set RAY_ADDRESS to ask the cluster; this was this machine alone",
            )
        for asked in members:
            if asked.promised_devices < promise.devices_per_node:
                yield Finding(
                    level="failed",
                    subject=f"{asked.group}: {asked.name}",
                    found=f"Ray was started with {asked.promised_devices} devices, the cluster file promises "
                    f"{promise.devices_per_node}",
                    remedy="look for a dead device, or correct the file's resources",
                )


def _told(answers: Iterable[NodeAnswer]) -> list[_Told]:
    return [
        _Told(answer.asked.group, answer.asked.name, answer.facts)
        for answer in answers
        if isinstance(answer.facts, NodeFacts)
    ]


def _missing(group: str, package: str, found: Mapping[str, str | None]) -> Iterator[Finding]:
    if lacking := [name for name, version in found.items() if version is None]:
        yield Finding(
            level="failed" if package == "torch" else "warning",
            subject=group,
            found=f"{package} is not installed on {_some(lacking)}",
            remedy="use the image of the vendor on every node",
        )


def _differing(subject: str, package: str, found: Mapping[str, str | None]) -> Iterator[Finding]:
    counts = Counter(version for version in found.values() if version)
    if len(counts) < 2:
        return
    usual = max(sorted(counts), key=lambda version: (found.get(_DRIVER) == version, counts[version]))
    others = [f"{name} has {version}" for name, version in found.items() if version and version != usual]
    yield Finding(
        level="failed",
        subject=subject,
        found=f"{package} differs: {usual}, but {_some(others)}",
        remedy="one image per vendor, with the same Python and Ray to the patch level in all of them",
    )


def _models(group: str, members: Sequence[_Told]) -> Iterator[Finding]:
    models = sorted({one.facts.device or "no accelerator" for one in members})
    if len(models) > 1:
        yield Finding(
            level="failed",
            subject=group,
            found=f"has several device models: {', '.join(models)}",
            remedy="give the nodes of each model a longhaul.group label of their own",
        )


def _slower_ones(group: str, members: Sequence[_Told]) -> Iterator[Finding]:
    """Reports devices that are slower than the fastest of their group, each by its best shape."""
    for dtype in sorted({gemm.dtype for one in members for gemm in one.facts.gemms}):
        rates: dict[str, float] = {}
        for one in members:
            for gemm in (gemm for gemm in one.facts.gemms if gemm.dtype == dtype):
                name = f"{one.name} device {gemm.device}"
                rates[name] = max(rates.get(name, 0.0), gemm.flops_per_s)
        fastest = max(rates.values())
        slow = [
            f"{name} by {1 - rate / fastest:.0%}"
            for name, rate in rates.items()
            if rate < (1 - _SLOWER) * fastest
        ]
        if slow:
            yield Finding(
                level="warning",
                subject=group,
                found=f"{dtype} products are slower than on the fastest device: {_some(slow)}",
                remedy="look at clocks, heat, power cap and neighbours there: the slowest holds up all",
            )


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _MOST} more" if len(texts) > _MOST else ""
    return ", ".join(texts[:_MOST]) + more
