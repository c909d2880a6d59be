"""What a fingerprint reads from a host's files, over folders that look like hosts."""

import platform
import struct
from pathlib import Path

import pytest

from cluster.fingerprint.files import text_of
from cluster.fingerprint.libraries import build_of, loaded_libraries
from cluster.fingerprint.machine import device_place_facts, machine_facts, processor_kind
from cluster.fingerprint.merging import merged

PCI = "0000:c1:00"


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def elf(notes: bytes) -> bytes:
    """A 64-bit ELF file with one segment of notes behind its table."""
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return head + struct.pack("<IIQQQQQQ", 4, 4, 120, 0, 0, len(notes), len(notes), 4) + notes


def note(kind: int, value: bytes, name: bytes = b"GNU\0") -> bytes:
    padded = [part + bytes(-len(part) % 4) for part in (name, value)]
    return struct.pack("<III", len(name), len(value), kind) + b"".join(padded)


def test_a_host_tells_its_settings(tmp_path: Path) -> None:
    files = {
        "etc/os-release": 'NAME=x\nPRETTY_NAME="Ubuntu 24.04.2 LTS"\n',
        "proc/sys/kernel/osrelease": "6.8.0-60-generic\n",
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=UUID=1 secret=x iommu=pt pci=realloc=off quiet",
        "sys/class/dmi/id/product_name": "PowerEdge XE9680\n",
        "proc/cpuinfo": "processor : 0\nmodel name\t: AMD  EPYC 9654\nprocessor : 1\nmodel name : other\n",
        "sys/fs/cgroup/cpu.max": "800000 100000\n",
        "sys/devices/system/cpu/smt/control": "on\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
        "sys/devices/system/node/node0/cpulist": "0-3\n",
        "sys/devices/system/node/node1/cpulist": "4-7\n",
        "sys/devices/system/node/online": "0-1\n",
        "proc/sys/kernel/numa_balancing": "1\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
        "sys/class/infiniband/mlx5_0/fw_ver": "28.43.1014\n",
        "sys/class/infiniband/mlx5_1/ports/1/rate": "400 Gb/sec (4X NDR)\n",
        "sys/class/infiniband/mlx5_1/fw_ver": "28.43.1014\n",
        "sys/class/infiniband/mlx5_2/ports/1/rate": "25 Gb/sec (1X EDR)\n",
        "sys/class/kfd/kfd/topology/nodes/2/io_links/0/properties": "type 11\nversion_major 0\n",
        "sys/class/kfd/kfd/topology/nodes/2/io_links/1/properties": "type 2\n",
        "opt/rocm/.info/version": "7.0.2-56\n",
        "sys/module/amdgpu/version": "6.14.14\n",
    }
    for path, text in files.items():
        write(tmp_path, path, text)
    found = machine_facts({"LONGHAUL_IMAGE": "longhaul-rocm:0.1.0", "KUBERNETES_SERVICE_HOST": "x"}, tmp_path)
    assert int(found.pop("cores allowed")) >= 1
    assert found == {
        "image": "longhaul-rocm:0.1.0",
        "container": "kubernetes",
        "OS": "Ubuntu 24.04.2 LTS",
        "kernel": "6.8.0-60-generic",
        "boot options": "iommu=pt pci=realloc=off",
        "machine": "PowerEdge XE9680",
        "processor": "AMD EPYC 9654",
        "core quota": "800000 100000",
        "SMT": "on",
        "CPU governor": "powersave",
        "NUMA nodes": "2",
        "NUMA balancing": "1",
        "huge pages": "madvise",
        "fabric": "1 x 25 Gb/sec (1X EDR), firmware unknown; 2 x 400 Gb/sec (4X NDR), firmware 28.43.1014",
        "xGMI": "1 link",
        "ROCm": "7.0.2-56",
        "amdgpu": "6.14.14",
    }


def test_a_host_that_tells_nothing_has_few_facts(tmp_path: Path) -> None:
    assert machine_facts({}, tmp_path).keys() == {"cores allowed"}
    assert device_place_facts(PCI, tmp_path) == device_place_facts(None, tmp_path) == {}
    assert loaded_libraries(tmp_path) == {}


@pytest.mark.parametrize(
    ("variables", "marker", "expected"),
    [
        ({"APPTAINER_CONTAINER": "/x.sif", "APPTAINER_NAME": "x.sif"}, "", ("apptainer", "x.sif")),
        ({"NVIDIA_PRODUCT_NAME": "PyTorch", "NVIDIA_BUILD_ID": "1"}, ".dockerenv", ("docker", "PyTorch 1")),
        ({}, "run/.containerenv", ("podman", None)),
    ],
)
def test_a_container_is_known_by_what_its_runtime_leaves(
    tmp_path: Path, variables: dict[str, str], marker: str, expected: tuple[str, str | None]
) -> None:
    if marker:
        write(tmp_path, marker, "")
    found = machine_facts(variables, tmp_path)
    assert (found["container"], found.get("image")) == expected


@pytest.mark.parametrize(
    ("cores", "expected"),
    [("0-4095", "all near their device"), ("4094-99999999999", "none near their device")],
)
def test_a_device_is_near_to_the_cores_of_its_numa_node(tmp_path: Path, cores: str, expected: str) -> None:
    place = f"sys/bus/pci/devices/{PCI}.0"
    for name, text in {
        "numa_node": "1",
        "max_link_speed": "32.0 GT/s PCIe",
        "current_link_width": "8",
    }.items():
        write(tmp_path, f"{place}/{name}", text)
    write(tmp_path, "sys/devices/system/node/node1/cpulist", cores)
    assert device_place_facts(PCI, tmp_path) == {"PCIe": "32.0 GT/s PCIe x8", "cores": expected}


def test_libraries_are_those_that_are_loaded_by_the_version_or_the_build_of_their_file(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "lib with a space"
    folder.mkdir()
    (folder / "librccl.so.1").write_bytes(elf(note(1, b"abi") + note(3, bytes(range(20)))))
    (folder / "libhipblaslt.so.0").write_bytes(b"no ELF at all")
    names = [
        folder / "librccl.so.1",
        folder / "libhipblaslt.so.0",
        "/opt/cuda/libcublasLt.so.13.1.0.3",
        "/opt/cuda/libnccl-net-ofi.so.2.7.11",
        "/gone/libMIOpen.so.1",
        "/opt/notlibcudnn.so.9.15.1",
        "/opt/libcudnn.so.9.15.1/other",
        "[stack]",
    ]
    lines = [f"7f00-7f01 r-xp 00000000 00:2b 12 {name}" for name in names for _ in range(3)]
    write(tmp_path, "proc/self/maps", "\n".join([*lines, "7f02-7f03 rw-p 00000000 00:00 0"]))
    assert loaded_libraries(tmp_path) == {
        "libMIOpen": "unknown",
        "libcublasLt": "13.1.0.3",
        "libhipblaslt": "13 bytes",
        "libnccl-net-ofi": "2.7.11",
        "librccl": "build 000102030405",
    }


def test_two_versions_of_a_library_in_one_process_are_both_named(tmp_path: Path) -> None:
    names = ("/a/libcudnn.so.9.15.1", "/b/libcudnn.so.9.10.2")
    write(tmp_path, "proc/self/maps", "\n".join(f"7f00-7f01 r-xp 0 00:2b 12 {name}" for name in names))
    assert loaded_libraries(tmp_path) == {"libcudnn": "9.10.2 and 9.15.1"}


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\x7fELF\x02\x01",
        elf(b""),
        elf(note(3, b"x" * 20))[:130],
        elf(struct.pack("<III", 2**32 - 1, 2**32 - 1, 3)),
        elf(note(3, b"of another", b"Go\0\0")),
    ],
)
def test_a_library_without_a_build_is_known_by_its_size(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "libnccl.so").write_bytes(damaged)
    assert build_of(tmp_path / "libnccl.so") == f"{len(damaged):,} bytes"


def test_a_setting_of_the_running_kernel_can_be_read() -> None:
    assert text_of(Path("/proc/sys/kernel/osrelease")).split(".")[0].isdigit()
    assert len(text_of(Path("/proc/self/maps")).splitlines()) > 10


def test_ranks_that_agree_have_one_value_and_others_are_counted() -> None:
    ranks = [{"ECC": "on", "driver": "580"}, {"ECC": "on", "driver": "570"}, {"driver": "570"}]
    assert merged(ranks) == {
        "ECC": "on on 2 of 3 ranks; unknown on 1 of 3 ranks",
        "driver": "570 on 2 of 3 ranks; 580 on 1 of 3 ranks",
    }


def test_a_fingerprint_stays_small_and_says_what_it_left_out() -> None:
    found = merged([{f"fact {number}": "v\n" * 200 for number in range(100)}])
    assert sum(len(name) + len(value) + 6 for name, value in found.items()) <= 3_100
    assert found["left out"] == f"{100 - (len(found) - 1)} facts"
    assert found["fact 0"] == ("v " * 60)[:120]


def test_processors_to_which_a_cloud_gives_one_name_are_told_apart(tmp_path: Path) -> None:
    about = "model\t\t: {}\ncpu family\t: 25\nmodel name\t: AMD EPYC\nflags\t\t: fpu fma {} sse2\n"
    kinds = []
    for number, (model, flag) in enumerate([(17, "avx512_bf16"), (17, ""), (1, "avx512_bf16")]):
        write(tmp_path, f"{number}/proc/cpuinfo", about.format(model, flag))
        kinds.append(processor_kind(tmp_path / str(number)))
    assert kinds == [
        "AMD EPYC (family 25, model 17) avx512_bf16 fma",
        "AMD EPYC (family 25, model 17) fma",
        "AMD EPYC (family 25, model 1) avx512_bf16 fma",
    ]
    assert processor_kind(tmp_path / "nothing") == platform.machine()
