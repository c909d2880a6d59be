"""What a device tells of itself in one look, whoever made it. Pure.

What a driver refuses to tell, tells as "N/A" or raises about is None: one answer that is missing never costs
the others, and never the training.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any, Protocol

# What drivers answer, instead of "N/A", for what a chip can't tell.
_UNKNOWN = frozenset({2**16 - 1, 2**32 - 1, 2**64 - 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAddress:
    """Which device it is, whatever its number in this process: that one depends on visible devices.

    ``uuid`` is the driver's, without a prefix; ``pci`` is ``domain:bus:device`` in lower-case hex digits.
    """

    uuid: str | None = None
    pci: str | None = None

    @classmethod
    def of(cls, properties: object) -> "DeviceAddress":
        """From torch's properties of a device: an older torch, or a runtime that hides the bus, tells less.

        NVIDIA's interface goes by the uuid, AMD's by the place on the bus.
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
    """One look. ``energy_joules`` counts from some time in the past, as the ECC errors do.

    ``throttle`` names why the clock is held back right now: empty if it isn't, None if nobody knows.
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
        """Takes milliseconds, of waiting for the driver; raises nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """No telemetry, and the reason in a person's words."""

    reason: str

    def read(self) -> Reading:
        return Reading()


def told(ask: Callable[[], Any], scale: float = 1.0) -> float | None:
    """The answer in our unit; None where there is none, or no number that can be true."""
    try:
        answer = ask()
    except Exception:
        return None
    if isinstance(answer, bool) or not isinstance(answer, int | float) or answer in _UNKNOWN:
        return None
    return answer * scale if isfinite(answer) and answer >= 0 else None


def counted(ask: Callable[[], Any], scale: int = 1) -> int | None:
    number = told(ask)
    return None if number is None else int(number) * scale
