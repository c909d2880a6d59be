"""AMD's telemetry. Its tests use a record of what AMD SMI's reference promises; it never ran on a GPU.

The caller opens AMD SMI and passes the library: the real module or a record of it. Names of values differ
between ROCm releases, so each is looked up under all the names it has had since ROCm 6.0.
"""

from collections.abc import Callable, Mapping
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

_MICRO = 1e-6
# No device has a cap of a tenth of a megawatt: larger numbers are microwatts, as on bare metal.
_MOST_WATTS = 1e5
_MIB = 2**20
_FIRMWARE = ("PM", "SMU", "MEC1", "RLC", "SDMA0")
_REASONS = {
    "active_ppt_pwr": "power cap",
    "active_socket_thrm": "heat",
    "active_hbm_thrm": "heat",
    "active_vr_thrm": "heat",
    "active_prochot_thrm": "hardware",
}


def open_amd_smi(library: Any, address: DeviceAddress) -> Telemetry:
    """Finds the device by its place on the bus. AMD SMI numbers all devices of the node in its own order."""
    try:
        handles = library.amdsmi_get_processor_handles()
        found = [
            one for one in handles if _bus_address(library.amdsmi_get_gpu_device_bdf(one)) == address.pci
        ]
    except library.AmdSmiException as error:
        return Nothing(reason=f"AMD SMI can't report the devices: {error}")
    if len(found) == 1:
        return AmdSmi(library, found[0])
    if found:
        return Nothing(
            reason=f"{len(found)} parts of one package are at {address.pci}; their power is shared"
        )
    return Nothing(reason=f"AMD SMI knows no device at {address.pci}")


def _bus_address(bdf: str) -> str:
    return bdf.lower().partition(".")[0]


class AmdSmi:
    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle

    def read(self) -> Reading:
        ask, device = self._library, self._handle
        # Energy is read first, so that it belongs to the moment when the look began.
        energy = self._answer_of(ask.amdsmi_get_energy_count)
        power = self._answer_of(ask.amdsmi_get_power_info)
        cap = self._answer_of(ask.amdsmi_get_power_cap_info)
        ecc = self._answer_of(ask.amdsmi_get_gpu_total_ecc_count)
        return Reading(
            energy_joules=_energy(energy),
            power_watts=_first(power, "socket_power", "current_socket_power", "average_socket_power"),
            power_cap_watts=_watts(_first(cap, "power_cap")),
            power_cap_default_watts=_watts(_first(cap, "default_power_cap", "power_cap_default")),
            utilization_pct=valid_number(lambda: ask.amdsmi_get_gpu_activity(device)["gfx_activity"]),
            temperature_c=valid_number(self._temperature),
            clock_mhz=self._clock("GFX"),
            memory_clock_mhz=self._clock("MEM"),
            memory_used_bytes=valid_count(lambda: ask.amdsmi_get_gpu_vram_usage(device)["vram_used"], _MIB),
            throttle=self._throttle(),
            ecc_corrected=valid_count(lambda: ecc["correctable_count"]),
            ecc_uncorrected=valid_count(lambda: ecc["uncorrectable_count"]),
        )

    def settings(self) -> dict[str, str]:
        ask, device = self._library, self._handle
        # Each value is looked up where it is used: an older library lacks the call itself.
        found = {
            "device driver": valid_text(lambda: ask.amdsmi_get_gpu_driver_info(device)["driver_version"]),
            "device firmware": self._firmware(),
            "device BIOS": valid_text(lambda: ask.amdsmi_get_gpu_vbios_info(device)["version"]),
            "compute partition": valid_text(lambda: ask.amdsmi_get_gpu_compute_partition(device)),
            "memory partition": valid_text(lambda: ask.amdsmi_get_gpu_memory_partition(device)),
            "performance level": valid_text(lambda: _last_word(ask.amdsmi_get_gpu_perf_level(device))),
            "highest clock": self._highest_clock(),
        }
        return {name: value for name, value in found.items() if value}

    def _firmware(self) -> str:
        """Returns the versions of the blocks that decide clocks and scheduling."""

        def listed() -> str:
            blocks = self._library.amdsmi_get_fw_info(self._handle)["fw_list"]
            named = {_last_word(block["fw_name"]): block["fw_version"] for block in blocks}
            return ", ".join(f"{name} {named[name]}" for name in _FIRMWARE if name in named)

        return valid_text(listed)

    def _highest_clock(self) -> str:
        ask = self._library
        clock = self._answer_of(lambda one: ask.amdsmi_get_clock_info(one, ask.AmdSmiClkType.GFX))
        highest = _first(clock, "max_clk")
        return "" if highest is None else f"{highest:,.0f} MHz"

    def _answer_of(self, ask: Callable[[Any], Any]) -> Mapping[str, Any]:
        try:
            answer = ask(self._handle)
        except Exception:
            return {}
        return answer if isinstance(answer, Mapping) else {}

    def _temperature(self) -> Any:
        kinds, metrics = self._library.AmdSmiTemperatureType, self._library.AmdSmiTemperatureMetric
        return self._library.amdsmi_get_temp_metric(self._handle, kinds.JUNCTION, metrics.CURRENT)

    def _clock(self, kind: str) -> float | None:
        ask = self._library
        clock = self._answer_of(lambda one: ask.amdsmi_get_clock_info(one, getattr(ask.AmdSmiClkType, kind)))
        return _first(clock, "clk", "cur_clk")

    def _throttle(self) -> tuple[str, ...] | None:
        """Returns None before MI300, which does not report the reasons in this way."""
        try:
            ask = self._library.amdsmi_get_violation_status
        except AttributeError:
            return None
        flags = {
            name: flag for name, flag in self._answer_of(ask).items() if name in _REASONS and flag in (0, 1)
        }
        return tuple(sorted({_REASONS[name] for name, flag in flags.items() if flag})) if flags else None


def _first(answer: Mapping[str, Any], *names: str) -> float | None:
    known = (valid_number(lambda name=name: answer[name]) for name in names)  # type: ignore[misc]  # bound now
    return next((number for number in known if number is not None), None)


def _last_word(name: Any) -> str:
    """Returns the part of an enumeration's name that differs: ``AUTO`` of ``AMDSMI_DEV_PERF_LEVEL_AUTO``."""
    text = str(getattr(name, "name", name))
    return text.removeprefix("AMDSMI_").removeprefix("FW_ID_").removeprefix("DEV_PERF_LEVEL_")


def _energy(answer: Mapping[str, Any]) -> float | None:
    ticks, tick_uj = _first(answer, "energy_accumulator", "power"), _first(answer, "counter_resolution")
    return ticks * tick_uj * _MICRO if ticks and tick_uj else None


def _watts(cap: float | None) -> float | None:
    """Returns None for 0, which means that the user set no cap."""
    if not cap:
        return None
    return cap * _MICRO if cap > _MOST_WATTS else cap
