"""Which peak a result is measured against: the right chip's, or none."""

import pytest

from cluster.accelerators import PeakDtype, accelerator

# As torch.cuda.get_device_name prints them, and as people write them in a label.
KNOWN = {
    "NVIDIA A100-SXM4-40GB": "A100 40GB",
    "NVIDIA A100-PCIE-40GB": "A100 40GB",
    "A100-SXM4-40GB": "A100 40GB",
    "NVIDIA A100-SXM4-80GB": "A100 80GB",
    "NVIDIA A100 80GB PCIe": "A100 80GB",
    "NVIDIA L40S": "L40S",
    "Tesla V100-SXM2-16GB": "V100 16GB",
    "Tesla V100-PCIE-32GB": "V100 32GB",
    "Tesla V100S-PCIE-32GB": "V100 32GB",
    "NVIDIA A10": "A10",
    "NVIDIA L4": "L4",
    "NVIDIA GeForce RTX 3090": "RTX 3090",
    "NVIDIA RTX A6000": "RTX A6000",
    "NVIDIA GeForce RTX 4090": "RTX 4090",
    "NVIDIA GB200": "GB200",
    "AMD Radeon RX 7900 XTX": "RX 7900 XTX",
    "NVIDIA H100 80GB HBM3": "H100 SXM",
    "H100-SXM": "H100 SXM",
    "h100 sxm5": "H100 SXM",
    "NVIDIA H100 PCIe": "H100 PCIe",
    "NVIDIA H100 NVL": "H100 NVL",
    "NVIDIA H200": "H200 SXM",
    "NVIDIA B200": "B200",
    "AMD Instinct MI250X": "MI250X",
    "AMD Instinct MI300X": "MI300X",
    "AMD Instinct MI300X VF": "MI300X",
    "AMD-Instinct-MI300X-OAM": "MI300X",
    "AMD Instinct MI325X": "MI325X",
    "AMD Instinct MI350X": "MI350X",
    "AMD Instinct MI355X": "MI355X",
    "MI355X": "MI355X",
}

# Each has a peak of its own that nobody has sourced for us, or is a part of a chip.
UNKNOWN = (
    None,
    "",
    "cpu",
    "H100",  # SXM, PCIe or NVL: three peaks
    "NVIDIA A100",
    "NVIDIA A100-SXM-64GB",
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
    "NVIDIA H100 96GB HBM3",
    "NVIDIA H200 NVL",
    "NVIDIA GH200 480GB",
    "NVIDIA GH200 144G HBM3e",
    "NVIDIA GB300",
    "NVIDIA B300 SXM6 AC",
    "NVIDIA A800-SXM4-80GB",
    "NVIDIA H800",
    "NVIDIA H20",
    "NVIDIA L40",
    "NVIDIA L40S-12Q",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA RTX 6000 Ada Generation",
    "NVIDIA A10G",
    "NVIDIA A10-24Q",
    "NVIDIA L4-24Q",
    "Tesla V100-SXM2-16GB-N",
    "AMD Radeon RX 7900 XT",
    "AMD Instinct MI210",
    "AMD Instinct MI250X/MI250",
    "AMD Instinct MI250",
    "AMD Instinct MI300A",
    "AMD Instinct MI308X",
    "AMD Instinct MI300X HF",
    "AMD Radeon Graphics",
)


@pytest.mark.parametrize(("printed", "name"), KNOWN.items())
def test_a_device_is_known_by_the_name_that_its_driver_prints(printed: str, name: str) -> None:
    chip = accelerator(printed)
    assert chip is not None
    assert chip.name == name


@pytest.mark.parametrize("printed", UNKNOWN)
def test_a_device_that_nobody_has_sourced_never_gets_another_chips_peak(printed: str | None) -> None:
    assert accelerator(printed) is None


@pytest.mark.parametrize(
    ("printed", "dtype", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA A100-SXM4-80GB", "fp8", None),
        ("NVIDIA H100 80GB HBM3", "bf16", 989),
        ("NVIDIA H100 80GB HBM3", "fp8", 1979),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H100 NVL", "bf16", 835),
        ("NVIDIA B200", "tf32", 1125),
        ("NVIDIA GB200", "bf16", 2500),
        ("NVIDIA A10", "bf16", 125),
        ("NVIDIA L4", "fp8", 242.5),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("NVIDIA GeForce RTX 3090", "bf16", 71),
        ("NVIDIA RTX A6000", "tf32", 77.4),
        # They have none, or no document of their maker says it.
        ("Tesla V100-SXM2-32GB", "bf16", None),
        ("AMD Radeon RX 7900 XTX", "bf16", None),
        ("AMD Instinct MI250X", "bf16", 191.5),
        ("AMD Instinct MI300X", "bf16", 1307.4),
        ("AMD Instinct MI350X", "fp8", None),
        ("AMD Instinct MI355X", "bf16", 2500),
        # fp32 matmuls may or may not run as tf32; no figure is better than the wrong one.
        ("NVIDIA H100 80GB HBM3", "fp32", None),
    ],
)
def test_peaks_are_the_dense_figures_of_one_torch_device(
    printed: str, dtype: PeakDtype, tflops: float | None
) -> None:
    chip = accelerator(printed)
    assert chip is not None
    assert chip.peak_flops(dtype) == (None if tflops is None else tflops * 1e12)


def test_a_package_of_two_torch_devices_says_so() -> None:
    packages = {name: chip.devices_per_package for name in KNOWN if (chip := accelerator(name))}
    assert packages["AMD Instinct MI250X"] == 2
    assert packages["AMD Instinct MI300X"] == 1


def test_each_chip_names_its_source() -> None:
    sources = {chip.name: chip.source for name in KNOWN if (chip := accelerator(name))}
    assert sources["A100 40GB"] == "NVIDIA A100 data sheet, dense"
    assert sources["L4"] == "NVIDIA L4 data sheet, dense"
    assert sources["RTX 4090"] == "NVIDIA Ada GPU architecture white paper 2.01, appendix A, dense"
    assert sources["GB200"] == "NVIDIA GB200 NVL72 data sheet, per GPU, dense"
