"""Recorded answers of the two vendors' libraries, as their references describe them: nobody's GPU gave them.

A record has the library's own names and units. What it is told to ``refuse`` raises, as the real one does.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from cluster.telemetry.readings import DeviceAddress, Reading

UUID = "8f2d1f0c-52f1-4b0f-a2bb-1d7a4d0f0c11"
PCI = "0000:c1:00"
ADDRESS = DeviceAddress(uuid=UUID, pci=PCI)
# A test that fails must not leave a thread behind for ever.
_PATIENCE_S = 10.0


class NVMLError(Exception):
    """NVML's."""


class AmdSmiException(Exception):
    """AMD SMI's."""


class H100:
    """One among eight, at its cap and warm. ``energy_mj`` and ``bits`` are what it says next."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
    NVML_VOLATILE_ECC = 0

    def __init__(self, *, refuse: tuple[str, ...] = (), bits: int = 0x4 | 0x20) -> None:
        self.energy_mj = 5_000_000
        self.bits = bits
        self.asked: list[str] = []
        self._refuse = refuse

    def _answer(self, name: str, answer: Any) -> Any:
        self.asked.append(name)
        if name in self._refuse:
            raise NVMLError("Not Supported")
        return answer

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != f"GPU-{UUID}":
            raise NVMLError("Not Found")
        return self._answer("nvmlDeviceGetHandleByUUID", "handle of the uuid")

    def nvmlDeviceGetHandleByPciBusId(self, place: str) -> str:
        if place != f"{PCI}.0":
            raise NVMLError("Not Found")
        return self._answer("nvmlDeviceGetHandleByPciBusId", "handle of the place")

    def nvmlDeviceGetTotalEnergyConsumption(self, _device: Any) -> int:
        return self._answer("energy", self.energy_mj)

    def nvmlDeviceGetPowerUsage(self, _device: Any) -> int:
        return self._answer("power", 695_250)

    def nvmlDeviceGetEnforcedPowerLimit(self, _device: Any) -> int:
        return self._answer("cap", 500_000)

    def nvmlDeviceGetPowerManagementDefaultLimit(self, _device: Any) -> int:
        return self._answer("default cap", 700_000)

    def nvmlDeviceGetUtilizationRates(self, _device: Any) -> Any:
        return self._answer("utilization", SimpleNamespace(gpu=99, memory=61))

    def nvmlDeviceGetTemperature(self, _device: Any, _sensor: int) -> int:
        return self._answer("temperature", 71)

    def nvmlDeviceGetClockInfo(self, _device: Any, clock: int) -> int:
        return self._answer("clock", {1: 1_410, 2: 2_619}[clock])

    def nvmlDeviceGetMemoryInfo(self, _device: Any) -> Any:
        return self._answer("memory", SimpleNamespace(total=85_899_345_920, used=61_000_000_000))

    def nvmlDeviceGetCurrentClocksEventReasons(self, _device: Any) -> int:
        return self._answer("event reasons", self.bits)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _device: Any) -> int:
        return self._answer("throttle reasons", self.bits)

    def nvmlDeviceGetGspFirmwareVersion(self, _device: Any) -> bytes:
        return self._answer("firmware", b"580.65.06")

    def nvmlDeviceGetVbiosVersion(self, _device: Any) -> str:
        return self._answer("bios", "96.00.74.00.01")

    def nvmlDeviceGetPersistenceMode(self, _device: Any) -> int:
        return self._answer("persistence", 1)

    def nvmlDeviceGetMigMode(self, _device: Any) -> list[int]:
        return self._answer("mig", [0, 0])

    def nvmlDeviceGetEccMode(self, _device: Any) -> list[int]:
        return self._answer("ecc mode", [1, 1])

    def nvmlDeviceGetMaxClockInfo(self, _device: Any, clock: int) -> int:
        return self._answer("highest clock", {1: 1_980, 2: 2_619}[clock])

    def nvmlDeviceGetNvLinkState(self, _device: Any, link: int) -> int:
        if link >= 18:
            raise NVMLError("Invalid Argument")
        return self._answer("links", int(link != 3))

    def nvmlDeviceGetTotalEccErrors(self, _device: Any, kind: int, _counter: int) -> int:
        return self._answer("ecc", {0: 3, 1: 1}[kind])


MI300X_ANSWERS: Mapping[str, Any] = {
    "amdsmi_get_energy_count": {
        "energy_accumulator": 2_000_000_000,
        "counter_resolution": 15.259,
        "timestamp": 1,
    },
    "amdsmi_get_power_info": {
        "socket_power": 740,
        "current_socket_power": 740,
        "average_socket_power": "N/A",
        "power_limit": 750,
    },
    "amdsmi_get_power_cap_info": {"power_cap": 750_000_000, "default_power_cap": 750_000_000},
    "amdsmi_get_gpu_total_ecc_count": {
        "correctable_count": 0,
        "uncorrectable_count": 0,
        "deferred_count": 0,
    },
    "amdsmi_get_gpu_driver_info": {"driver_name": "amdgpu", "driver_version": "6.12.12"},
    "amdsmi_get_fw_info": {
        "fw_list": [
            {"fw_name": SimpleNamespace(name="AMDSMI_FW_ID_MEC1"), "fw_version": "177"},
            {"fw_name": SimpleNamespace(name="FW_ID_PM"), "fw_version": "00.85.109.00"},
            {"fw_name": SimpleNamespace(name="AMDSMI_FW_ID_VCN"), "fw_version": "09.11.80.0A"},
        ]
    },
    "amdsmi_get_gpu_vbios_info": {"name": "AMD MI300X_HW", "version": "022.040.003.043.000001"},
    "amdsmi_get_gpu_compute_partition": "SPX",
    "amdsmi_get_gpu_memory_partition": "NPS1",
    "amdsmi_get_gpu_perf_level": "AMDSMI_DEV_PERF_LEVEL_AUTO",
    "amdsmi_get_gpu_activity": {"gfx_activity": 100, "umc_activity": 40, "mm_activity": "N/A"},
    "amdsmi_get_temp_metric": 88,
    "amdsmi_get_clock_info": {"GFX": {"clk": 1_650, "max_clk": 2_100}, "MEM": {"clk": 1_300}},
    "amdsmi_get_gpu_vram_usage": {"vram_total": 196_592, "vram_used": 100_000},
    "amdsmi_get_violation_status": {
        "active_ppt_pwr": 1,
        "active_socket_thrm": 0,
        "active_hbm_thrm": 0,
        "active_vr_thrm": 0,
        "active_prochot_thrm": 0,
        "acc_counter": 17,
    },
}


@dataclass
class MI300X:
    """``places`` are of all devices of the node; ``changes`` replace answers, ``refuse`` raises them."""

    places: tuple[str, ...] = ("0000:41:00.0", f"{PCI.upper()}.0")
    changes: Mapping[str, Any] = field(default_factory=dict)
    refuse: tuple[str, ...] = ()

    AmdSmiException = AmdSmiException
    AmdSmiClkType = SimpleNamespace(GFX="GFX", MEM="MEM")
    AmdSmiTemperatureType = SimpleNamespace(JUNCTION=1)
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT=0)

    def amdsmi_get_processor_handles(self) -> list[str]:
        if "amdsmi_get_processor_handles" in self.refuse:
            raise AmdSmiException("driver not loaded")
        return list(self.places)

    def amdsmi_get_gpu_device_bdf(self, handle: str) -> str:
        return handle

    def amdsmi_get_clock_info(self, _handle: str, kind: str) -> Any:
        return self._answer("amdsmi_get_clock_info")[kind]

    def amdsmi_get_temp_metric(self, _handle: str, _kind: int, _metric: int) -> Any:
        return self._answer("amdsmi_get_temp_metric")

    def __getattr__(self, name: str) -> Callable[[str], Any]:
        if name not in MI300X_ANSWERS or self.changes.get(name, ()) is None:
            raise AttributeError(name)
        return lambda _handle: self._answer(name)

    def _answer(self, name: str) -> Any:
        if name in self.refuse:
            raise AmdSmiException("NOT_SUPPORTED")
        return self.changes.get(name, MI300X_ANSWERS[name])


class Scripted:
    """A device that tells one reading after another, the last one for ever."""

    def __init__(self, *readings: Reading) -> None:
        self._left = list(readings)

    def settings(self) -> dict[str, str]:
        return {}

    def read(self) -> Reading:
        return self._left.pop(0) if len(self._left) > 1 else self._left[0]


class Hanging:
    """A driver that answers when it may."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.may_answer = threading.Event()

    def settings(self) -> dict[str, str]:
        return {}

    def read(self) -> Reading:
        self.is_asked.set()
        assert self.may_answer.wait(_PATIENCE_S)
        return Reading(power_watts=1.0)
