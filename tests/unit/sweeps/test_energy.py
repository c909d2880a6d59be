"""The energy of a cell: from the ranks' looks to its row, from recorded answers alone."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from cluster.telemetry.nvml import open_nvml
from cluster.telemetry.readings import Reading
from cluster.telemetry.summary import DeviceLook, Watched, watched
from jobs.sweeps.rows.energy import power_of
from reporting.analysis.sides.environments import facts
from reporting.results.records import PowerRecord, read_record
from reporting.results.result_rows import row_of
from tests.unit.builders import measurement, rank_summary, record, run_of, sweep
from tests.unit.devices import ADDRESS, H100

WARM = Watched(
    energy_joules=6_000.0,
    integrated_joules=6_100.0,
    power_watts_mean=600.0,
    power_cap_watts=700.0,
    power_cap_default_watts=700.0,
    clock_mhz_min=1_300.0,
    clock_mhz_median=1_500.0,
    memory_clock_mhz_median=2_600.0,
    temperature_c_max=70.0,
    throttled_pct=50.0,
    throttled=(("power cap", 0.5),),
    ecc_errors=0,
)


def power(*told: Watched, num_tokens: int = 1_000) -> PowerRecord | None:
    return power_of([rank_summary(rank, watched=one) for rank, one in enumerate(told)], num_tokens)


def known(*told: Watched) -> PowerRecord:
    found = power(*told)
    assert found is not None
    return found


def test_joules_per_token_are_all_ranks_joules_over_all_ranks_tokens() -> None:
    found = known(WARM, replace(WARM, energy_joules=4_000.0))
    assert (found.energy_joules, found.energy_joules_per_token) == (10_000.0, 10.0)


def test_energy_is_null_where_one_device_does_not_tell_it() -> None:
    found = known(WARM, replace(WARM, energy_joules=None))
    assert (found.energy_joules, found.energy_joules_per_token) == (None, None)
    assert found.energy_integrated_joules == 12_200.0


def test_limits_and_clocks_are_the_worst_devices() -> None:
    hot = replace(
        WARM,
        power_cap_watts=500.0,
        clock_mhz_min=900.0,
        clock_mhz_median=1_100.0,
        temperature_c_max=90.0,
        throttled_pct=80.0,
        throttled=(("heat", 0.8), ("power cap", 0.25)),
        ecc_errors=2,
    )
    found = known(WARM, hot, Watched())
    assert (found.power_cap_watts, found.power_cap_default_watts) == (500.0, 700.0)
    assert (found.clock_mhz_min, found.clock_mhz_median) == (900.0, 1_300.0)
    assert (found.temperature_c_max, found.ecc_errors) == (90.0, 2)
    assert (found.throttled_pct, found.throttled) == (80.0, {"heat": 80.0, "power cap": 50.0})


def test_ranks_without_telemetry_leave_no_power_behind() -> None:
    assert power(Watched(), Watched()) is None


def measured_row(**ranks: Any) -> Any:
    spec = sweep()
    run = run_of(spec)
    return record(spec, run, measurement(run.run_id, ranks=(rank_summary(0, **ranks),)))


def test_a_row_carries_the_power_that_its_result_has() -> None:
    data = measured_row(watched=WARM).to_json()
    found = read_record(data).power_metrics
    row = row_of(data, "made up")
    assert found is not None
    for name, value in asdict(found).items():
        assert getattr(row, name) == (tuple(value.items()) if name == "throttled" else value)
    assert row.energy_joules_per_token == 6_000.0 / (row.tokens_per_step or 0) / (row.steps or 0)


def test_a_result_of_before_power_was_recorded_reads_as_one_without() -> None:
    row = measured_row()
    assert row.power_metrics is None
    older = row.to_json().replace(b'"power_metrics":null,', b"")
    assert older != row.to_json()
    assert read_record(older) == row
    assert row_of(older, "made up").energy_joules_per_token is None


def test_two_groups_with_different_caps_are_told_apart() -> None:
    rows = [
        replace(row_of(measured_row(watched=WARM).to_json(), "made up"), group=group, power_cap_watts=watts)
        for group, watts in (("blue", 700.0), ("red", 500.0))
    ]
    (cap,) = (fact for fact in facts(rows) if fact.name == "power cap")
    assert (cap.values, cap.differs) == (("700 W", "500 W"), True)


@pytest.mark.parametrize(("added_mj", "joules"), [(6_950_000, 6_950.0), (9_000_000, None), (-1, None)])
def test_from_a_recorded_device_to_its_joules_and_no_further_than_its_power_confirms(
    added_mj: int, joules: float | None
) -> None:
    device = H100()
    telemetry = open_nvml(device, ADDRESS)

    def look(at_s: float) -> DeviceLook:
        return DeviceLook(at_s=at_s, reading=telemetry.read())

    looks = [look(float(second)) for second in range(10)]
    device.energy_mj += added_mj
    looks.append(look(10.0))
    assert watched(looks).energy_joules == joules
    assert watched(looks).integrated_joules == pytest.approx(6_952.5)


def test_a_driver_that_tells_nothing_leaves_nothing() -> None:
    silent = [DeviceLook(at_s=float(second), reading=Reading()) for second in range(5)]
    assert power(watched(silent)) is None
