"""Turns observations into findings, each with its remedy. Pure: equal observations give equal findings.

All limits are defined here, in ``cross_node_checks`` or in ``store_checks``.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from cluster.accelerators import accelerator
from cluster.inventory import Vendor
from cluster.probe.node_facts import NodeFacts, NodePlatform
from jobs.doctor.cross_node_checks import between_nodes, draining, links, promises, same_results, versions
from jobs.doctor.examination import Asked, Examination, Finding, NodeAnswer, Skew
from jobs.doctor.store_checks import forecast, store
from jobs.doctor.tested_versions import tested_versions

_PLATFORMS: dict[Vendor, NodePlatform] = {"nvidia": "cuda", "amd": "rocm", "cpu": "cpu"}
_TELEMETRY = {
    "cuda": "nvidia-ml-py and NVIDIA's driver",
    "rocm": "ROCm's amdsmi package (Ray counts devices by it)",
}
_ROCR, _HIP = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"

# Records of several nodes are ordered by clock. Object stores reject requests that are 15 minutes off.
_SKEW_WARNING_S, _SKEW_FAILED_S = 1.0, 300.0
_LEAST_SHARED_MEMORY = 2**30
_LEAST_DISK = 5 * 2**30
_SLOWEST_WRITE = 50e6
_SLOWEST_SYNC_S = 0.1
# A share of the datasheet's dense peak. Large products reach about 51 % on a healthy MI300X, 80 % on an H100.
_LEAST_OF_PEAK = 0.35

_EXIT = {"ok": 0, "warning": 3, "failed": 1}
_ORDER = ("failed", "warning", "ok")


def judge(seen: Examination) -> tuple[Finding, ...]:
    """Returns all findings, also the good ones: the worst first, else in the order of the examination."""
    findings = [
        *(finding for answer in seen.answers for finding in _node(answer)),
        *versions(seen),
        *tested_versions(seen),
        *between_nodes(seen.answers),
        *same_results(seen),
        *links(seen.links),
        *draining(seen.draining),
        *promises(seen),
        *store(seen),
        *forecast(seen),
    ]
    return tuple(sorted(findings, key=lambda finding: _ORDER.index(finding.level)))


def exit_code(findings: Sequence[Finding]) -> int:
    return _EXIT[worst(findings)]


def worst(findings: Sequence[Finding]) -> Literal["ok", "warning", "failed"]:
    return min((finding.level for finding in findings), key=_ORDER.index, default="ok")


def _node(answer: NodeAnswer) -> Iterator[Finding]:
    asked = answer.asked
    if isinstance(answer.facts, str):
        yield Finding(
            level="failed",
            subject=_subject(asked),
            found=f"does not answer: {answer.facts}",
            remedy="look at the node and at its raylet's log; drain it, or start `ray start` there again",
        )
        return
    found = [
        *_devices(asked, answer.facts),
        *_speeds(asked, answer.facts),
        *_host(asked, answer.facts),
        *_clock(asked, answer.skew),
    ]
    yield from found or [
        Finding(level="ok", subject=_subject(asked), found="answers, and has what it promises")
    ]


def _devices(asked: Asked, facts: NodeFacts) -> Iterator[Finding]:
    """Checks a node's devices. Simulated devices are not checked."""
    if asked.simulated:
        return
    if facts.platform != _PLATFORMS[asked.vendor]:
        yield Finding(
            level="failed",
            subject=_subject(asked),
            found=f"is of vendor {asked.vendor}, but its torch {facts.versions.get('torch')} "
            f"finds {facts.platform}",
            remedy="use the image of the vendor, give the container its devices, or label it "
            "longhaul.simulated=true",
        )
    elif facts.num_devices < asked.promised_devices and facts.platform == "cpu":
        yield Finding(
            level="warning",
            subject=_subject(asked),
            found=f"Ray counts {asked.promised_devices} cores, {facts.num_devices} are there: ranks share",
            remedy="start Ray with --num-cpus of what is there, or give the container more",
        )
    elif facts.num_devices < asked.promised_devices:
        hiding = ", ".join(f"{name}={value}" for name, value in sorted(facts.visible.items()))
        yield Finding(
            level="failed",
            subject=_subject(asked),
            found=f"only {facts.num_devices} of {asked.promised_devices} promised devices are visible"
            + (f" ({hiding})" if hiding else ""),
            remedy="mend or unset the variables that hide devices, look for a dead one in the kernel's log, "
            "or promise fewer",
        )
    if facts.platform == "rocm" and _ROCR in facts.visible and _HIP not in facts.visible:
        yield Finding(
            level="failed",
            subject=_subject(asked),
            found=f"{_ROCR} is set without {_HIP}: Ray refuses that as soon as a worker asks for a device",
            remedy=f"set {_HIP} in its place, and start Ray there again",
        )
    if facts.platform != "cpu" and facts.telemetry is None:
        yield Finding(
            level="warning",
            subject=_subject(asked),
            found="no telemetry: runs there record no power, clocks or energy",
            remedy=f"install {_TELEMETRY[facts.platform]} in the node's image",
        )


def _speeds(asked: Asked, facts: NodeFacts) -> Iterator[Finding]:
    for problem in facts.problems:
        yield Finding(
            level="warning",
            subject=_subject(asked),
            found=f"could not be measured: {problem}",
            remedy="try the same on the node by hand; a device that fails here fails in training",
        )
    if asked.in_use:
        yield Finding(
            level="warning",
            subject=_subject(asked),
            found=f"is in use ({asked.in_use}): its rates are lower than they can be, and are not stored",
            remedy="run the doctor again when nothing runs there",
        )
    chip = accelerator(facts.device)
    measured, peak = facts.peak_flops_per_s("bf16"), chip.peak_flops("bf16") if chip else None
    if measured and peak and measured < _LEAST_OF_PEAK * peak and not asked.in_use:
        yield Finding(
            level="warning",
            subject=_subject(asked),
            found=f"bf16 products reach {measured / peak:.0%} of the datasheet's {peak / 1e12:g} TFLOP/s",
            remedy="look at power cap, clocks, heat and partition mode of the devices",
        )


def _host(asked: Asked, facts: NodeFacts) -> Iterator[Finding]:
    if facts.shm_bytes is not None and facts.shm_bytes < _LEAST_SHARED_MEMORY:
        yield Finding(
            level="warning",
            subject=_subject(asked),
            found=f"/dev/shm has {facts.shm_bytes / 2**20:,.0f} MiB; collectives and Ray share it",
            remedy="start the container with --ipc=host or --shm-size=16g",
        )
    disk = facts.disk
    if disk is None:
        return
    if disk.free_bytes < _LEAST_DISK:
        yield Finding(
            level="warning",
            subject=_subject(asked),
            found=f"{disk.folder} has {disk.free_bytes / 1e9:.1f} GB free",
            remedy="free some; Ray ends tasks on a disk that is 95 % full",
        )
    if disk.write_bytes_per_s < _SLOWEST_WRITE or disk.fsync_s > _SLOWEST_SYNC_S:
        yield Finding(
            level="warning",
            subject=_subject(asked),
            found=f"{disk.folder} takes {disk.write_bytes_per_s / 1e6:,.0f} MB/s and "
            f"{disk.fsync_s * 1e3:.0f} ms per fsync: slow for checkpoints",
            remedy="give checkpoint.local.dir a local NVMe disk, or leave it out",
        )


def _clock(asked: Asked, skew: Skew | None) -> Iterator[Finding]:
    """Reports a clock offset only as far as it exceeds the uncertainty."""
    off_s = max(0.0, abs(skew.offset_s) - skew.uncertainty_s) if skew else 0.0
    if skew is None or off_s <= _SKEW_WARNING_S:
        return
    yield Finding(
        level="failed" if off_s > _SKEW_FAILED_S else "warning",
        subject=_subject(asked),
        found=f"its clock is {abs(skew.offset_s):,.1f} s {'ahead' if skew.offset_s > 0 else 'behind'}"
        + (": an object store refuses its requests" if off_s > _SKEW_FAILED_S else ""),
        remedy="synchronise it: `timedatectl set-ntp true`, or chrony",
    )


def _subject(asked: Asked) -> str:
    return f"{asked.group}: {asked.name}"
