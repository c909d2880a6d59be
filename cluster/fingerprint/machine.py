"""Facts of the host that move a training's speed: processor, kernel, memory, network, image.

Needs no torch.
"""

import os
import platform
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from cluster.fingerprint.files import chosen, entries, text_of
from cluster.this_machine import num_cpus

# Parts of a kernel's command line that decide how devices reach memory. The rest may hold secrets.
_BOOT = re.compile(r"(?:^|\s)((?:iommu|amd_iommu|intel_iommu|mitigations|pci|numa_balancing)=[\w,.:=-]+)")
_XGMI = "11"
# By these libraries choose other kernels, which round otherwise.
_PRODUCTS = {
    "fma",
    "avx_vnni",
    "avx_ne_convert",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "amx_fp16",
}
_IMAGE_VARIABLES = ("LONGHAUL_IMAGE", "APPTAINER_NAME", "SINGULARITY_NAME")


def machine_facts(variables: Mapping[str, str], root: Path = Path("/")) -> dict[str, str]:
    """The host's facts by name; ``root`` is where its files are."""
    return {name: value for name, value in _facts(variables, root) if value}


def processor_kind(root: Path = Path("/")) -> str:
    """What decides how libraries compute on the host's processor. Clouds give many processors one name, so
    its family and model and what they can of matrix products are told too.
    """
    about = text_of(root / "proc/cpuinfo")
    numbers = [f"{name} {found}" for name in ("family", "model") if (found := _number(name, about))]
    flags = re.search(r"^flags\s*:\s*(.*)$", about, re.MULTILINE)
    known = sorted({*flags[1].split()} & _PRODUCTS) if flags else []
    named = [_processor(root) or platform.machine(), f"({', '.join(numbers)})" if numbers else ""]
    return " ".join(filter(None, [*named, *known]))


def device_place_facts(pci: str | None, root: Path = Path("/")) -> dict[str, str]:
    """How the device at ``pci`` (``domain:bus:device``) is connected to its host.

    The link's speed is the most that both ends can: an idle device lowers the present one.
    """
    if pci is None:
        return {}
    place = root / f"sys/bus/pci/devices/{pci}.0"
    speed, width = text_of(place / "max_link_speed"), text_of(place / "current_link_width")
    facts = {"PCIe": f"{speed} x{width}" if speed and width else "", "cores": _nearness(place, root)}
    return {name: value for name, value in facts.items() if value}


def _facts(variables: Mapping[str, str], root: Path) -> Iterator[tuple[str, str]]:
    yield "image", _image(variables)
    yield "container", _container(variables, root)
    yield "OS", _os_name(root)
    yield "kernel", text_of(root / "proc/sys/kernel/osrelease")
    yield "boot options", " ".join(_BOOT.findall(text_of(root / "proc/cmdline")))
    yield "machine", text_of(root / "sys/class/dmi/id/product_name")
    yield "processor", _processor(root)
    yield "cores allowed", str(num_cpus())
    yield "core quota", text_of(root / "sys/fs/cgroup/cpu.max")
    yield "SMT", text_of(root / "sys/devices/system/cpu/smt/control")
    yield "CPU governor", text_of(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    yield "NUMA nodes", str(len(_numa_nodes(root)) or "")
    yield "NUMA balancing", text_of(root / "proc/sys/kernel/numa_balancing")
    yield "huge pages", chosen(text_of(root / "sys/kernel/mm/transparent_hugepage/enabled"))
    yield "fabric", _fabric(root)
    yield "xGMI", _xgmi(root)
    yield "ROCm", text_of(root / "opt/rocm/.info/version")
    yield "amdgpu", text_of(root / "sys/module/amdgpu/version")


def _image(variables: Mapping[str, str]) -> str:
    """The image's name as whoever made or started the container told it; nothing else inside knows it."""
    named = next((variables[name] for name in _IMAGE_VARIABLES if variables.get(name)), "")
    vendors = " ".join(variables.get(name, "") for name in ("NVIDIA_PRODUCT_NAME", "NVIDIA_BUILD_ID"))
    return named or vendors.strip()


def _container(variables: Mapping[str, str], root: Path) -> str:
    if variables.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if variables.get("APPTAINER_CONTAINER") or variables.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    if (root / ".dockerenv").exists():
        return "docker"
    return "podman" if (root / "run/.containerenv").exists() else ""


def _os_name(root: Path) -> str:
    found = re.search(r'^PRETTY_NAME="?([^"\n]*)', text_of(root / "etc/os-release"), re.MULTILINE)
    return found[1] if found else ""


def _processor(root: Path) -> str:
    found = re.search(r"^model name\s*:\s*(.*)$", text_of(root / "proc/cpuinfo"), re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def _number(name: str, about: str) -> str:
    found = re.search(rf"^(?:cpu )?{name}\s*:\s*(\d+)$", about, re.MULTILINE)
    return found[1] if found else ""


def _numa_nodes(root: Path) -> list[Path]:
    return [one for one in entries(root / "sys/devices/system/node") if re.fullmatch(r"node\d+", one.name)]


def _fabric(root: Path) -> str:
    """All ports of InfiniBand and RoCE, equal ones counted: ``8 x 400 Gb/sec (4X NDR), firmware 28.43``."""
    ports = Counter(
        f"{rate}, firmware {text_of(device / 'fw_ver') or 'unknown'}"
        for device in entries(root / "sys/class/infiniband")
        for port in entries(device / "ports")
        if (rate := text_of(port / "rate"))
    )
    return "; ".join(f"{count} x {port}" for port, count in sorted(ports.items()))


def _xgmi(root: Path) -> str:
    """The links between AMD's devices that the kernel lists."""
    links = root / "sys/class/kfd/kfd/topology/nodes"
    kinds = [
        re.search(r"^type (\d+)$", text_of(link / "properties"), re.MULTILINE)
        for node in entries(links)
        for link in entries(node / "io_links")
    ]
    count = sum(found is not None and found[1] == _XGMI for found in kinds)
    return f"{count} link{'s' * (count > 1)}" if count else ""


def _nearness(place: Path, root: Path) -> str:
    """Whether the cores that this process may use are on the device's NUMA node."""
    node = text_of(place / "numa_node")
    if not node.isdigit():
        return ""
    near = cores_in(text_of(root / f"sys/devices/system/node/node{node}/cpulist"))
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if not near or not allowed:
        return ""
    share = len(near & allowed) / len(allowed)
    return {1.0: "all near their device", 0.0: "none near their device"}.get(share, "some near their device")


def cores_in(ranges: str) -> set[int]:
    """Reads ``0-3,8``."""
    found = re.findall(r"(\d+)(?:-(\d+))?", ranges)
    return {core for first, last in found for core in range(int(first), min(int(last or first), 4095) + 1)}
