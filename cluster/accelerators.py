"""Facts about chips: memory, peak dense FLOP/s by dtype and torch devices per package, each with its
source.

A device is identified by its market name, never by its architecture or memory: MI350X and MI355X share
both. A fact without a source is None, and a result that would need it is null.
"""

import re
from dataclasses import dataclass
from functools import partial
from typing import Literal

PeakDtype = Literal["fp32", "tf32", "bf16", "fp8"]


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One torch device. Peaks are dense TFLOP/s, never the sparse figure.

    ``memory_gib`` is what the driver shows; data sheets call the same number GB.
    """

    vendor: Literal["nvidia", "amd"]
    name: str
    memory_gib: float
    bf16_tflops: float | None
    fp8_tflops: float | None
    tf32_tflops: float | None
    devices_per_package: int = 1
    sheet: str | None = None

    @property
    def source(self) -> str:
        """The data sheet, which several models of one chip may share, or the other document in ``sheet``."""
        if self.sheet:
            return f"{self.sheet}, dense"
        maker = {"nvidia": "NVIDIA", "amd": "AMD Instinct"}[self.vendor]
        return f"{maker} {self.name.partition(' ')[0]} data sheet, dense"

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gib * 2**30)

    def peak_flops(self, dtype: PeakDtype) -> float | None:
        """Returns FLOP/s, or None if no figure is sourced (plain fp32 is not tabulated)."""
        tflops = {"bf16": self.bf16_tflops, "fp8": self.fp8_tflops, "tf32": self.tf32_tflops}.get(dtype)
        return None if tflops is None else tflops * 1e12


_nvidia, _amd = partial(Accelerator, "nvidia"), partial(Accelerator, "amd")

_ADA = "NVIDIA Ada GPU architecture white paper 2.01, appendix A"
_GA102 = "NVIDIA Ampere GA102 GPU architecture white paper 2.0, appendices A and C"

# A pattern matches the whole name without the vendor, in letters and digits only. A longer name is another
# chip or a part of one: GH200 is no H200, GB200 no B200, "... MIG 1g.10gb" a seventh of its chip.
# The numbers are GiB, and TFLOP/s in bf16, fp8 and tf32.
_TABLE: tuple[tuple[str, Accelerator], ...] = (
    # It has no bf16, tf32 or fp8: of a V100 the memory alone is known.
    ("(TESLA)?V100(SXM2|SXM3|PCIE)16GB", _nvidia("V100 16GB", 16, None, None, None)),
    ("(TESLA)?V100S?(SXM2|SXM3|PCIE)32GB", _nvidia("V100 32GB", 32, None, None, None)),
    # With ECC, less than 24 GiB are shown. Their sheets give twice what is dense, for sparse.
    ("A10", _nvidia("A10", 22.4, 125, None, 62.5)),
    ("L4", _nvidia("L4", 22.4, 121, 242.5, 60)),
    # Products in bf16 and fp8 that are added up in fp32, as torch does: on GeForce, half of the other figure.
    ("(GEFORCE)?RTX3090", _nvidia("RTX 3090", 24, 71, None, 35.6, sheet=_GA102)),
    ("RTXA6000", _nvidia("RTX A6000", 48, 154.8, None, 77.4, sheet=_GA102)),
    ("(GEFORCE)?RTX4090", _nvidia("RTX 4090", 24, 165.2, 330.3, 82.6, sheet=_ADA)),
    ("A100(SXM4|PCIE)?40GB(PCIE)?", _nvidia("A100 40GB", 40, 312, None, 156)),
    ("A100(SXM4|PCIE)?80GB(PCIE)?", _nvidia("A100 80GB", 80, 312, None, 156)),
    ("L40S", _nvidia("L40S", 45, 362, 733, 183)),
    ("H100NVL", _nvidia("H100 NVL", 94, 835, None, 378)),
    ("H100(80GB)?PCIE", _nvidia("H100 PCIe", 80, 756, 1513, 378)),
    ("H100(SXM5?(80GB)?|80GBHBM3)", _nvidia("H100 SXM", 80, 989, 1979, 494)),
    ("H200(SXM5?)?(141GB)?(HBM3E)?", _nvidia("H200 SXM", 141, 989, 1979, 494)),
    ("B200(SXM6?)?", _nvidia("B200", 180, 2250, 4500, 1125)),
    ("GB200", _nvidia("GB200", 186, 2500, 5000, 1250, sheet="NVIDIA GB200 NVL72 data sheet, per GPU")),
    # Not "MI250X/MI250", which older drivers print for two chips with different peaks.
    ("MI250X(OAM)?", _amd("MI250X", 64, 191.5, None, None, devices_per_package=2)),
    # VF: the host's driver gives a guest a whole MI300X as one virtual function, never a part of the chip.
    ("MI300X(OAM|VF)?", _amd("MI300X", 192, 1307.4, 2614.9, 653.7)),
    ("MI325X(OAM)?", _amd("MI325X", 256, 1307.4, 2614.9, 653.7)),
    ("MI350X(OAM)?", _amd("MI350X", 288, 2300, None, None)),
    # AMD's page gives fp16 alone.
    ("RADEONRX7900XTX", _amd("RX 7900 XTX", 24, None, None, None, sheet="AMD Radeon RX 7900 XTX page")),
    ("MI355X(OAM)?", _amd("MI355X", 288, 2500, 5000, None)),
)
_VENDOR_PREFIX = {"nvidia": "(NVIDIA)?", "amd": "(AMD)?(INSTINCT)?"}


def accelerator(device_name: str | None) -> Accelerator | None:
    """Returns the chip of that market name; None for an unknown name, never the nearest chip."""
    plain = re.sub(r"[^A-Z0-9]", "", (device_name or "").upper())
    return next((chip for pattern, chip in _TABLE if _is_name(plain, pattern, chip)), None)


def _is_name(plain: str, pattern: str, chip: Accelerator) -> bool:
    return re.fullmatch(_VENDOR_PREFIX[chip.vendor] + pattern, plain) is not None
