"""The device's clock, its memory and its telemetry, beside what is known of them otherwise."""

import pytest

from jobs.sweeps.memory_forecast import predict_memory
from tests.gpu.apart import apart
from tests.gpu.conftest import Say
from tests.gpu.here import DEVICE, facts
from tests.gpu.measuring import cell, larger_recipe, readings, times

pytestmark = pytest.mark.gpu

# Of the same window: events are recorded as the device gets there, the host waits for the last one.
CLOCKS_APART = 0.02
# A context of another driver, or fragments of another allocator, take other space than was thought.
FORECAST_BOUNDS = (0.6, 1.7)
# What every device of either vendor tells, unless its driver refuses the question.
ALWAYS_TOLD = {"power_watts", "temperature_c", "utilization_pct", "clock_mhz", "memory_used_bytes"}


def test_events_measure_what_the_host_measures(seen: Say) -> None:
    found = apart(times, larger_recipe(facts().memory_bytes), device=DEVICE)
    ratio = found.by_events_s / found.by_host_s
    step_ms = found.by_events_s / found.num_steps * 1e3
    seen(f"{ratio:.4f} of the host's time, {found.num_steps} steps of {step_ms:.1f} ms")
    assert abs(ratio - 1) <= CLOCKS_APART


def test_peak_memory_is_about_what_was_forecast(seen: Say) -> None:
    recipe = larger_recipe(facts().memory_bytes)
    found = apart(cell, recipe, 10, device=DEVICE).ranks[0]
    forecast = predict_memory(recipe, on_cpu=False).total
    assert found.peak_reserved_bytes and found.peak_allocated_bytes and found.device_used_bytes
    ratio = forecast / found.device_used_bytes
    held = ", ".join(
        f"{number / 1e9:.2f} GB {name}"
        for name, number in (
            ("forecast", forecast),
            ("used on the device", found.device_used_bytes),
            ("reserved", found.peak_reserved_bytes),
            ("beyond it", found.device_used_bytes - found.peak_reserved_bytes),
            ("allocated", found.peak_allocated_bytes),
        )
    )
    seen(f"{ratio:.2f} of what is used ({held}); {recipe.model.name}, retries {found.allocator_retries}")
    assert FORECAST_BOUNDS[0] <= ratio <= FORECAST_BOUNDS[1]


def test_a_measured_cell_has_what_devices_have(seen: Say) -> None:
    recipe = larger_recipe(facts().memory_bytes)
    found = apart(cell, recipe, 20, device=DEVICE)
    rank = found.ranks[0]
    rate = recipe.tokens_per_step * len(found.step_times_s) / found.window_s
    assert found.h2d_bytes_per_step and found.h2d_s_per_step
    copied = f"{found.h2d_bytes_per_step / found.h2d_s_per_step / 1e9:.1f} GB/s to the device"
    seen(f"{rate:,.0f} tokens/s on {rank.device} ({rank.device_id}), {copied}, {found.attention_kernel}")
    assert found.environment.platform in ("cuda", "rocm")
    assert found.environment.device == rank.device


def test_telemetry_tells_every_value_or_why_not(seen: Say) -> None:
    found = apart(readings, device=DEVICE)
    if found.nothing:
        seen(f"nothing: {found.nothing}")
        pytest.skip(found.nothing)
    told = ", ".join(f"{name} {value}" for name, value in found.values.items() if value is not None)
    refused = "; ".join(f"{name}: {error}" for name, error in found.refused.items())
    seen(f"{told}; missing: {', '.join(found.missing) or 'nothing'} ({refused or 'no question was refused'})")
    assert not ALWAYS_TOLD & set(found.missing) or found.refused
