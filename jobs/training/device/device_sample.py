"""Converts a reading of a device to the form that the records store. Pure."""

from cluster.telemetry.readings import Reading
from reporting.recording.attempts import DeviceSample


def sample_of(device: str, reading: Reading, allocated_bytes: int) -> DeviceSample:
    """The sample of one reading. ``allocated_bytes`` is this rank's own, which no device driver knows."""
    return DeviceSample(
        device=device,
        utilization_pct=reading.utilization_pct,
        power_watts=reading.power_watts,
        clock_mhz=reading.clock_mhz,
        temperature_c=reading.temperature_c,
        memory_bytes=allocated_bytes,
        energy_joules=reading.energy_joules,
        power_cap_watts=reading.power_cap_watts,
        memory_clock_mhz=reading.memory_clock_mhz,
        memory_used_bytes=reading.memory_used_bytes,
        throttle_reasons=None if reading.throttle is None else ", ".join(reading.throttle),
        ecc_corrected=reading.ecc_corrected,
        ecc_uncorrected=reading.ecc_uncorrected,
    )
