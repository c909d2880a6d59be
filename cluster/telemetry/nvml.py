"""NVIDIA's telemetry. Its tests use a record of what NVML's reference promises; it never ran on a GPU.

The caller opens NVML and passes the library: the real module or a record of it.
"""

from collections.abc import Callable
from typing import Any

from cluster.telemetry.readings import (
    DeviceAddress,
    Nothing,
    Reading,
    Telemetry,
    valid_count,
    valid_number,
    valid_text,
)

_MILLI = 1e-3
# More than any device has: GB200 has 18.
_MOST_LINKS = 18
# NVML's bits for why a clock is not at its highest. "Idle" (1) is left out: nothing reduces the clock then.
_REASONS = {
    0x002: "clock setting",
    0x004: "power cap",
    0x008: "hardware",
    0x010: "sync boost",
    0x020: "heat",
    0x040: "heat",
    0x080: "power brake",
    0x100: "clock setting",
    0x200: "board limit",
    0x400: "reliability",
}


def open_nvml(library: Any, address: DeviceAddress) -> Telemetry:
    """Finds the device by its address. NVML numbers all devices of the node, whatever this process
    may see.
    """
    try:
        return Nvml(library, _handle(library, address))
    except library.NVMLError as error:
        return Nothing(reason=f"NVML can't report the device: {error}")


def _handle(library: Any, address: DeviceAddress) -> Any:
    """Uses the place on the bus only if there is no uuid: parts of one GPU share the place, but not the
    uuid.
    """
    if address.uuid is not None:
        return library.nvmlDeviceGetHandleByUUID(_with_prefix(address.uuid))
    return library.nvmlDeviceGetHandleByPciBusId(f"{address.pci}.0")


def _with_prefix(uuid: str) -> str:
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


class Nvml:
    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle

    def read(self) -> Reading:
        ask, device = self._library, self._handle
        return Reading(
            # Energy is read first, so that it belongs to the moment when the look began.
            energy_joules=valid_number(lambda: ask.nvmlDeviceGetTotalEnergyConsumption(device), _MILLI),
            power_watts=valid_number(lambda: ask.nvmlDeviceGetPowerUsage(device), _MILLI),
            power_cap_watts=valid_number(lambda: ask.nvmlDeviceGetEnforcedPowerLimit(device), _MILLI),
            power_cap_default_watts=valid_number(
                lambda: ask.nvmlDeviceGetPowerManagementDefaultLimit(device), _MILLI
            ),
            utilization_pct=valid_number(lambda: ask.nvmlDeviceGetUtilizationRates(device).gpu),
            temperature_c=valid_number(
                lambda: ask.nvmlDeviceGetTemperature(device, ask.NVML_TEMPERATURE_GPU)
            ),
            clock_mhz=valid_number(lambda: ask.nvmlDeviceGetClockInfo(device, ask.NVML_CLOCK_SM)),
            memory_clock_mhz=valid_number(lambda: ask.nvmlDeviceGetClockInfo(device, ask.NVML_CLOCK_MEM)),
            memory_used_bytes=valid_count(lambda: ask.nvmlDeviceGetMemoryInfo(device).used),
            throttle=self._throttle(),
            ecc_corrected=self._ecc("NVML_MEMORY_ERROR_TYPE_CORRECTED"),
            ecc_uncorrected=self._ecc("NVML_MEMORY_ERROR_TYPE_UNCORRECTED"),
        )

    def settings(self) -> dict[str, str]:
        ask, device = self._library, self._handle
        found = {
            "device firmware": valid_text(lambda: ask.nvmlDeviceGetGspFirmwareVersion(device)),
            "device BIOS": valid_text(lambda: ask.nvmlDeviceGetVbiosVersion(device)),
            "persistence mode": self._mode(lambda: ask.nvmlDeviceGetPersistenceMode(device)),
            "MIG": self._mode(lambda: ask.nvmlDeviceGetMigMode(device)[0]),
            "ECC": self._mode(lambda: ask.nvmlDeviceGetEccMode(device)[0]),
            "highest clock": _megahertz(
                valid_count(lambda: ask.nvmlDeviceGetMaxClockInfo(device, ask.NVML_CLOCK_SM))
            ),
            "NVLink": self._links(),
        }
        return {name: value for name, value in found.items() if value}

    def _mode(self, ask: Callable[[], Any]) -> str:
        return {None: "", 0: "off", 1: "on"}.get(valid_count(ask), "")

    def _links(self) -> str:
        """Returns how many links of the device are up; empty if it has none."""
        ask = self._library
        states = [
            valid_count(lambda link=link: ask.nvmlDeviceGetNvLinkState(self._handle, link))  # type: ignore[misc]  # bound now
            for link in range(_MOST_LINKS)
        ]
        known = [state for state in states if state is not None]
        return f"{sum(known)} of {len(known)} links" if known else ""

    def _throttle(self) -> tuple[str, ...] | None:
        bits = valid_count(self._event_reasons)
        if bits is None:
            return None
        return tuple(sorted({name for bit, name in _REASONS.items() if bits & bit}))

    def _event_reasons(self) -> Any:
        """Falls back to the older name, which is all that older drivers know."""
        try:
            return self._library.nvmlDeviceGetCurrentClocksEventReasons(self._handle)
        except self._library.NVMLError:
            return self._library.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)

    def _ecc(self, kind: str) -> int | None:
        """Returns the errors since the driver was loaded."""
        ask = self._library
        return valid_count(
            lambda: ask.nvmlDeviceGetTotalEccErrors(self._handle, getattr(ask, kind), ask.NVML_VOLATILE_ECC)
        )


def _megahertz(clock: int | None) -> str:
    return "" if clock is None else f"{clock:,} MHz"
