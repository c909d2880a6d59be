"""One reading of a device, whatever interface it came from. Pure.

A value that a driver refuses, reports as "N/A" or raises an error for is None. One missing value never
costs the others, and never the training.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any, Protocol

# Drivers answer these instead of "N/A" for values that a chip does not report.
_UNKNOWN = frozenset({2**16 - 1, 2**32 - 1, 2**64 - 1})
_MOST_CHARS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAddress:
    """Identifies a device independently of its number in this process, which depends on visible devices.

    ``uuid`` is the driver's, without a prefix; ``pci`` is ``domain:bus:device`` in lower-case hex digits.
    """

    uuid: str | None = None
    pci: str | None = None

    @classmethod
    def of(cls, properties: object) -> "DeviceAddress":
        """Takes the address from torch's device properties. An older torch or a runtime that hides the bus
        gives less.

        NVIDIA's interface finds a device by its uuid, AMD's by its place on the bus.
        """
        uuid = getattr(properties, "uuid", None)
        domain, bus, slot = (
            getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")
        )
        is_known = isinstance(domain, int) and isinstance(bus, int) and isinstance(slot, int)
        return cls(
            uuid=None if uuid is None else str(uuid),
            pci=f"{domain:04x}:{bus:02x}:{slot:02x}" if is_known else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading. ``energy_joules`` and the ECC errors count from some time in the past.

    ``throttle`` names why the clock is reduced right now: empty if it is not, None if that is unknown.
    """

    energy_joules: float | None = None
    power_watts: float | None = None
    power_cap_watts: float | None = None
    power_cap_default_watts: float | None = None
    utilization_pct: float | None = None
    temperature_c: float | None = None
    clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    memory_used_bytes: int | None = None
    throttle: tuple[str, ...] | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None


class Telemetry(Protocol):
    def read(self) -> Reading:
        """Waits milliseconds for the driver; raises nothing."""

    def settings(self) -> dict[str, str]:
        """What stays as it is while the device works: firmware, modes, links. Raises nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """No telemetry; ``reason`` is a text for people."""

    reason: str

    def read(self) -> Reading:
        return Reading()

    def settings(self) -> dict[str, str]:
        return {}


def valid_number(ask: Callable[[], Any], scale: float = 1.0) -> float | None:
    """Returns the answer in our unit; None if there is none or the number cannot be true."""
    try:
        answer = ask()
    except Exception:
        return None
    if isinstance(answer, bool) or not isinstance(answer, int | float) or answer in _UNKNOWN:
        return None
    return answer * scale if isfinite(answer) and answer >= 0 else None


def valid_count(ask: Callable[[], Any], scale: int = 1) -> int | None:
    number = valid_number(ask)
    return None if number is None else int(number) * scale


def valid_text(ask: Callable[[], Any]) -> str:
    """Returns the answer as one short line; empty if there is none or the driver says that there is none."""
    try:
        answer = ask()
    except Exception:
        return ""
    text = answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)
    text = " ".join(text.split())[:_MOST_CHARS]
    return "" if text.upper() in ("", "N/A", "NONE", "UNKNOWN") else text
