"""Energy, clocks and limits of a window, from made-up looks."""

from collections.abc import Sequence
from typing import Any

import pytest

from cluster.telemetry.readings import Reading
from cluster.telemetry.summary import DeviceLook, Watched, watched


def looks(*readings: Reading, every_s: float = 1.0) -> tuple[DeviceLook, ...]:
    return tuple(DeviceLook(at_s=number * every_s, reading=one) for number, one in enumerate(readings))


def running(counters: Sequence[float | None], watts: float | None = 100.0) -> tuple[DeviceLook, ...]:
    return looks(*(Reading(energy_joules=counter, power_watts=watts) for counter in counters))


def test_energy_is_what_the_counter_counted() -> None:
    found = watched(running([1_000.0, 1_101.0, 1_205.0]))
    assert found.energy_joules == 205.0
    assert found.integrated_joules == 200.0


@pytest.mark.parametrize(
    ("watts", "is_believed"), [(89.0, False), (91.0, True), (109.0, True), (111.0, False)]
)
def test_energy_that_the_power_contradicts_by_more_than_a_tenth_is_null(
    watts: float, is_believed: bool
) -> None:
    found = watched(running([0.0, 100.0, 200.0], watts))
    assert found.energy_joules == (200.0 if is_believed else None)
    assert found.integrated_joules == 2 * watts


@pytest.mark.parametrize(
    "counters",
    [
        [0.0, 100.0, 50.0],
        [0.0, 300.0, 200.0],
        [2**32 - 50.0, 50.0, 150.0],
        [None, 100.0, 200.0],
        [0.0, 100.0, None],
        [0.0, 0.0, 0.0],
        [0.0],
        [],
    ],
)
def test_a_counter_that_wraps_goes_back_stands_still_or_is_missing_counts_nothing(
    counters: list[float | None],
) -> None:
    assert watched(running(counters)).energy_joules is None


def test_a_counter_that_is_missing_in_between_still_counts() -> None:
    assert watched(running([0.0, None, 200.0])).energy_joules == 200.0


def test_energy_that_no_power_confirms_is_null() -> None:
    assert watched(running([0.0, 100.0, 200.0], watts=None)).energy_joules is None
    sparse = looks(*(Reading(energy_joules=300.0 * n, power_watts=100.0) for n in range(3)), every_s=3.0)
    assert watched(sparse).energy_joules is None


def seen(**values: Any) -> Watched:
    """Of a window in which every look between the two at its ends tells ``values``."""
    idle = Reading(clock_mhz=210.0, throttle=("heat",), power_watts=60.0)
    return watched(looks(idle, Reading(**values), Reading(**values), idle))


def test_clocks_and_reasons_are_of_the_looks_inside_the_window() -> None:
    found = seen(clock_mhz=1_400.0, memory_clock_mhz=2_600.0, power_watts=700.0, throttle=())
    assert (found.clock_mhz_min, found.clock_mhz_median) == (1_400.0, 1_400.0)
    assert (found.memory_clock_mhz_median, found.power_watts_mean) == (2_600.0, 700.0)
    assert (found.throttled_pct, found.throttled) == (0.0, ())


def test_reasons_are_shares_of_the_looks_that_told() -> None:
    found = watched(
        looks(
            Reading(),
            Reading(throttle=("heat", "power cap")),
            Reading(throttle=("power cap",)),
            Reading(throttle=()),
            Reading(throttle=()),
            Reading(),
            Reading(),
        )
    )
    assert found.throttled == (("heat", 0.25), ("power cap", 0.5))
    assert found.throttled_pct == 50.0


def test_what_a_device_does_not_tell_is_null() -> None:
    assert watched(looks(Reading(), Reading(), Reading())) == Watched()
    assert watched(()) == Watched()


def test_caps_are_the_tightest_and_errors_the_new_ones() -> None:
    found = watched(
        looks(
            Reading(power_cap_watts=700.0, power_cap_default_watts=700.0, ecc_corrected=5, ecc_uncorrected=1),
            Reading(power_cap_watts=500.0, temperature_c=80.0),
            Reading(power_cap_watts=700.0, temperature_c=70.0, ecc_corrected=7, ecc_uncorrected=2),
        )
    )
    assert (found.power_cap_watts, found.power_cap_default_watts) == (500.0, 700.0)
    assert (found.temperature_c_max, found.ecc_errors) == (80.0, 3)


def test_errors_that_were_reset_are_not_counted() -> None:
    after, before = Reading(ecc_corrected=0, ecc_uncorrected=0), Reading(ecc_corrected=4, ecc_uncorrected=0)
    assert watched(looks(before, after)).ecc_errors is None
