"""Differences that somebody seeded into one of two machines are each named under their comparison."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from cluster.fingerprint.merging import merged
from cluster.telemetry.nvml import open_nvml
from jobs.training.device.environment import environment_of, relevant_variables
from jobs.training.device.fingerprint import fingerprint_of
from reporting.analysis.cells import summarise
from reporting.analysis.comparing import compare_groups
from reporting.results.rows import Row
from tests.live.pickled import packages_read
from tests.unit.devices import ADDRESS, H100
from tests.unit.result_rows import row

CPU = torch.device("cpu")
PLACES = {
    "libcublasLt": "proc/self/maps",
    "libhipblaslt": "proc/self/maps",
    "libnccl": "proc/self/maps",
    "kernel": "proc/sys/kernel/osrelease",
    "boot options": "proc/cmdline",
    "machine": "sys/class/dmi/id/product_name",
    "core quota": "sys/fs/cgroup/cpu.max",
    "SMT": "sys/devices/system/cpu/smt/control",
    "CPU governor": "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    "NUMA balancing": "proc/sys/kernel/numa_balancing",
    "huge pages": "sys/kernel/mm/transparent_hugepage/enabled",
    "ROCm": "opt/rocm/.info/version",
    "amdgpu": "sys/module/amdgpu/version",
    "fabric": "sys/class/infiniband/mlx5_0/ports/1/rate",
}
MAPPED = "7f-80 r-xp 0 0:2 1 /a/"
TEXTS = {
    "libcublasLt": (MAPPED + "libcublasLt.so.12.8.4", MAPPED + "libcublasLt.so.13.1.0"),
    "libhipblaslt": (MAPPED + "libhipblaslt.so.0.15", MAPPED + "libhipblaslt.so.1.0"),
    "libnccl": (MAPPED + "libnccl.so.2.27.3", MAPPED + "libnccl.so.2.28.9"),
    "boot options": ("quiet iommu=pt", "quiet"),
    "huge pages": ("[always] madvise never", "always [madvise] never"),
}  # fmt: skip
VARIABLES = (
    "HIPBLASLT_TENSILE_LIBPATH", "AITER_ASM_DIR", "ROCBLAS_USE_HIPBLASLT", "TENSILE_SOLUTION",
    "TRITON_HIP_USE_ASYNC_COPY", "NVTE_FUSED_ATTN", "CUBLAS_WORKSPACE_CONFIG", "GPU_MAX_HW_QUEUES",
    "NCCL_ALGO", "HSA_ENABLE_SDMA", "PYTORCH_TUNABLEOP_ENABLED", "TORCHINDUCTOR_MAX_AUTOTUNE", "KMP_AFFINITY",
    "LD_PRELOAD", "NVIDIA_TF32_OVERRIDE",
)  # fmt: skip
COLUMNS = {
    "driver": "580.65",
    "torch": "2.13.0+rocm",
    "collectives": "rccl 2.26",
    "attention_kernel": "flash",
    "power_cap_watts": 500.0,
}


@dataclass
class Machine:
    root: Path
    variables: dict[str, str] = field(default_factory=dict)
    device: H100 = field(default_factory=H100)
    columns: dict[str, object] = field(default_factory=dict)

    def write(self, name: str, text: str) -> None:
        path = self.root / PLACES[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def rows(self, group: str) -> list[Row]:
        settings = open_nvml(self.device, ADDRESS).settings()
        facts = merged([fingerprint_of(CPU, settings, self.variables, self.root)] * 2)
        told = {
            "fingerprint": tuple(facts.items()),
            "variables": tuple(relevant_variables(self.variables).items()),
        }
        base = row(group=group, **{**told, **self.columns})  # type: ignore[arg-type]  # by column
        return [replace(base, repeat=number, run_id=f"{group}-{number}") for number in range(2)]


@contextmanager
def precision(value: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(value)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def differences(one: Machine, other: Machine) -> list[str]:
    (found,) = compare_groups(summarise([*one.rows("a"), *other.rows("b")]))
    return [each.what for each in found.differences]


@pytest.fixture
def machines(tmp_path: Path) -> tuple[Machine, Machine]:
    """Two machines with the same files, but for those that a test writes anew."""
    made = (Machine(tmp_path / "a"), Machine(tmp_path / "b"))
    for machine in made:
        machine.root.mkdir()
        for name in PLACES:
            if name not in ("libhipblaslt", "libnccl"):
                machine.write(name, TEXTS.get(name, ("one", "two"))[0])
    return made


def test_two_equal_machines_differ_in_nothing(machines: tuple[Machine, Machine]) -> None:
    assert differences(*machines) == []


@pytest.mark.parametrize("name", PLACES)
def test_a_hosts_file_that_differs_is_named(machines: tuple[Machine, Machine], name: str) -> None:
    for machine, text in zip(machines, TEXTS.get(name, ("one", "two")), strict=True):
        machine.write(name, text)
    assert differences(*machines) == [name]


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_that_differs_is_named(machines: tuple[Machine, Machine], name: str) -> None:
    machines[1].variables[name] = "1"
    assert differences(*machines) == [f"variable {name}"]


@pytest.mark.parametrize("column", COLUMNS)
def test_a_column_that_differs_is_named(machines: tuple[Machine, Machine], column: str) -> None:
    machines[1].columns[column] = COLUMNS[column]
    assert differences(*machines) == [column.replace("_", " ")]


@pytest.mark.parametrize(
    ("refused", "what"),
    [
        ("firmware", "device firmware"),
        ("bios", "device BIOS"),
        ("mig", "MIG"),
        ("ecc mode", "ECC"),
        ("persistence", "persistence mode"),
        ("highest clock", "highest clock"),
        ("links", "NVLink"),
    ],
)
def test_a_devices_setting_that_differs_is_named(
    machines: tuple[Machine, Machine], refused: str, what: str
) -> None:
    machines[1].device = H100(refuse=(refused,))
    assert differences(*machines) == [what]


def test_a_mode_of_torch_that_differs_is_named(machines: tuple[Machine, Machine]) -> None:
    one = machines[0].rows("a")
    with precision("high"):
        other = machines[1].rows("b")
    (found,) = compare_groups(summarise([*one, *other]))
    assert [each.what for each in found.differences] == ["matrix precision"]


def test_everything_that_differs_at_once_is_named(machines: tuple[Machine, Machine]) -> None:
    one, other = machines
    for name in PLACES:
        if name not in ("libhipblaslt", "libnccl"):
            other.write(name, TEXTS.get(name, ("one", "two"))[1])
    other.variables.update(dict.fromkeys(VARIABLES, "1"))
    other.device = H100(refuse=("firmware", "bios", "mig", "links"))
    other.columns.update(COLUMNS)
    found = differences(one, other)
    files = {*PLACES} - {"libhipblaslt", "libnccl"}
    assert {*found} == {
        *files,
        *(f"variable {name}" for name in VARIABLES),
        *(name.replace("_", " ") for name in COLUMNS),
        "device firmware", "device BIOS", "MIG", "NVLink",
    }  # fmt: skip
    assert len(found) >= 36
    assert found[:3] == ["MIG", "power cap watts", "attention kernel"]


def test_an_images_address_keeps_no_credentials(tmp_path: Path) -> None:
    found = fingerprint_of(
        CPU, {}, {"LONGHAUL_IMAGE": "https://me:secret@registry/longhaul?token=x"}, tmp_path
    )
    assert found["image"] == "https://registry/longhaul"


def test_what_a_rank_tells_of_its_environment_is_read_without_torch() -> None:
    assert packages_read(environment_of(CPU, {"kernel": "6.1"})) == {"jobs"}
