"""What devices tell of themselves, from records: no line of this has asked a real device."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from cluster.telemetry.amd_smi import open_amd_smi
from cluster.telemetry.nvml import open_nvml
from cluster.telemetry.readings import DeviceAddress, Nothing, Reading, Telemetry
from cluster.telemetry.sampler import Sampler, telemetry_of
from jobs.training.device.device_sample import sample_of
from reporting.recording.attempts import DeviceSample
from tests.unit.devices import ADDRESS, H100, MI300X, MI300X_ANSWERS, PCI, UUID, Hanging, Scripted

DEADLINE_S = 5.0


def of_mi300x(device: MI300X) -> Reading:
    return open_amd_smi(device, ADDRESS).read()


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (
            {"uuid": uuid.UUID("f1e2" * 8), "pci_domain_id": 0, "pci_bus_id": 193, "pci_device_id": 0},
            DeviceAddress(uuid="f1e2f1e2-f1e2-f1e2-f1e2-f1e2f1e2f1e2", pci="0000:c1:00"),
        ),
        ({"pci_domain_id": 1, "pci_bus_id": 2, "pci_device_id": None}, DeviceAddress()),
        ({"uuid": "GPU-3"}, DeviceAddress(uuid="GPU-3")),
    ],
)
def test_an_address_has_what_torch_tells_of_a_device(
    properties: dict[str, object], expected: DeviceAddress
) -> None:
    assert DeviceAddress.of(SimpleNamespace(**properties)) == expected


def test_nvml_tells_everything_in_our_units() -> None:
    assert open_nvml(H100(), ADDRESS).read() == Reading(
        energy_joules=5_000.0,
        power_watts=695.25,
        power_cap_watts=500.0,
        power_cap_default_watts=700.0,
        utilization_pct=99.0,
        temperature_c=71.0,
        clock_mhz=1_410.0,
        memory_clock_mhz=2_619.0,
        memory_used_bytes=61_000_000_000,
        throttle=("heat", "power cap"),
        ecc_corrected=3,
        ecc_uncorrected=1,
    )


def test_amd_smi_tells_everything_in_our_units() -> None:
    reading = of_mi300x(MI300X())
    assert reading.energy_joules == pytest.approx(2_000_000_000 * 15.259e-6)
    assert reading == Reading(
        energy_joules=reading.energy_joules,
        power_watts=740.0,
        power_cap_watts=pytest.approx(750.0),
        power_cap_default_watts=pytest.approx(750.0),
        utilization_pct=100.0,
        temperature_c=88.0,
        clock_mhz=1_650.0,
        memory_clock_mhz=1_300.0,
        memory_used_bytes=100_000 * 2**20,
        throttle=("power cap",),
        ecc_corrected=0,
        ecc_uncorrected=0,
    )


def test_nvml_tells_the_settings_that_stay() -> None:
    assert open_nvml(H100(), ADDRESS).settings() == {
        "device firmware": "580.65.06",
        "device BIOS": "96.00.74.00.01",
        "persistence mode": "on",
        "MIG": "off",
        "ECC": "on",
        "highest clock": "1,980 MHz",
        "NVLink": "17 of 18 links",
    }


def test_amd_smi_tells_the_settings_that_stay() -> None:
    assert open_amd_smi(MI300X(), ADDRESS).settings() == {
        "device driver": "6.12.12",
        "device firmware": "PM 00.85.109.00, MEC1 177",
        "device BIOS": "022.040.003.043.000001",
        "compute partition": "SPX",
        "memory partition": "NPS1",
        "performance level": "AUTO",
        "highest clock": "2,100 MHz",
    }


def test_a_setting_that_a_driver_refuses_is_left_out() -> None:
    of_nvidia = open_nvml(H100(refuse=("firmware", "links", "mig")), ADDRESS).settings()
    assert of_nvidia.keys() & {"device firmware", "NVLink", "MIG"} == set()
    assert of_nvidia["ECC"] == "on"
    device = MI300X(
        changes={"amdsmi_get_gpu_memory_partition": "N/A", "amdsmi_get_gpu_driver_info": None},
        refuse=("amdsmi_get_fw_info",),
    )
    of_amd = open_amd_smi(device, ADDRESS).settings()
    assert of_amd.keys() & {"memory partition", "device driver", "device firmware"} == set()
    assert of_amd["compute partition"] == "SPX"


def test_a_sampler_knows_the_settings_as_soon_as_it_has_looked() -> None:
    sampler = Sampler(open_nvml(H100(), ADDRESS))
    assert sampler.settings() == {}
    sampler.start()
    try:
        sampler.begin()
        assert sampler.settings()["NVLink"] == "17 of 18 links"
    finally:
        sampler.close()


def test_the_record_of_nvml_has_the_librarys_own_names_and_constants() -> None:
    names = [name for name in vars(H100) if name.startswith(("nvml", "NVML_"))]
    constants = [name for name in names if name.startswith("NVML_")]
    assert [name for name in names if not hasattr(pynvml, name)] == []
    assert {name: getattr(pynvml, name) for name in constants} == {
        name: getattr(H100, name) for name in constants
    }


@pytest.mark.parametrize("uuid", [UUID, f"GPU-{UUID}"])
def test_an_nvidia_device_is_found_by_its_uuid_whatever_its_number_is(uuid: str) -> None:
    library = H100()
    open_nvml(library, DeviceAddress(uuid=uuid, pci="0000:00:00"))
    assert library.asked == ["nvmlDeviceGetHandleByUUID"]


def test_an_nvidia_device_without_a_uuid_is_found_by_its_place_on_the_bus() -> None:
    library = H100()
    open_nvml(library, DeviceAddress(pci=PCI))
    assert library.asked == ["nvmlDeviceGetHandleByPciBusId"]


def test_a_part_of_a_gpu_is_not_taken_for_the_whole_one_at_the_same_place() -> None:
    found = open_nvml(H100(), DeviceAddress(uuid="MIG-0e9a", pci=PCI))
    assert found == Nothing(reason="NVML can't report the device: Not Found")


def test_an_amd_device_is_found_by_its_place_on_the_bus_in_any_case_of_letters() -> None:
    assert of_mi300x(MI300X(places=("0000:41:00.0", "0000:C1:00.0"))).power_watts == 740.0


def test_parts_of_one_amd_package_have_no_power_of_their_own() -> None:
    found = open_amd_smi(MI300X(places=(f"{PCI}.0", f"{PCI}.1")), ADDRESS)
    assert found == Nothing(reason="2 parts of one package are at 0000:c1:00; their power is shared")


def test_an_amd_device_that_is_not_there_has_no_telemetry() -> None:
    found = open_amd_smi(MI300X(places=("0000:41:00.0",)), ADDRESS)
    assert found == Nothing(reason="AMD SMI knows no device at 0000:c1:00")


def test_an_amd_driver_that_is_not_loaded_is_no_telemetry() -> None:
    found = open_amd_smi(MI300X(refuse=("amdsmi_get_processor_handles",)), ADDRESS)
    assert found == Nothing(reason="AMD SMI can't report the devices: driver not loaded")


NVML_ANSWERS = {
    "energy": {"energy_joules"},
    "power": {"power_watts"},
    "cap": {"power_cap_watts"},
    "default cap": {"power_cap_default_watts"},
    "utilization": {"utilization_pct"},
    "temperature": {"temperature_c"},
    "clock": {"clock_mhz", "memory_clock_mhz"},
    "memory": {"memory_used_bytes"},
    "ecc": {"ecc_corrected", "ecc_uncorrected"},
}


@pytest.mark.parametrize("refused", NVML_ANSWERS)
def test_what_nvml_refuses_is_null_and_nothing_else_is(refused: str) -> None:
    reading = open_nvml(H100(refuse=(refused,)), ADDRESS).read()
    assert nulls(reading) == NVML_ANSWERS[refused]


def test_an_nvidia_driver_that_refuses_everything_crashes_nothing() -> None:
    refuse = (*NVML_ANSWERS, "event reasons", "throttle reasons")
    assert open_nvml(H100(refuse=refuse), ADDRESS).read() == Reading()


def test_an_older_nvidia_driver_tells_its_reasons_under_the_older_name() -> None:
    reading = open_nvml(H100(refuse=("event reasons",)), ADDRESS).read()
    assert reading.throttle == ("heat", "power cap")


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0x0, ()),
        (0x1, ()),
        (0x2, ("clock setting",)),
        (0x8 | 0x40, ("hardware", "heat")),
        (0x80, ("power brake",)),
    ],
)
def test_nvmls_bits_are_told_in_words_and_idling_is_none(bits: int, reasons: tuple[str, ...]) -> None:
    assert open_nvml(H100(bits=bits), ADDRESS).read().throttle == reasons


AMD_SETTINGS = (
    "amdsmi_get_gpu_driver_info", "amdsmi_get_fw_info", "amdsmi_get_gpu_vbios_info",
    "amdsmi_get_gpu_compute_partition", "amdsmi_get_gpu_memory_partition", "amdsmi_get_gpu_perf_level",
)  # fmt: skip
AMD_ANSWERS = {
    "amdsmi_get_energy_count": {"energy_joules"},
    "amdsmi_get_power_info": {"power_watts"},
    "amdsmi_get_power_cap_info": {"power_cap_watts", "power_cap_default_watts"},
    "amdsmi_get_gpu_total_ecc_count": {"ecc_corrected", "ecc_uncorrected"},
    "amdsmi_get_gpu_activity": {"utilization_pct"},
    "amdsmi_get_temp_metric": {"temperature_c"},
    "amdsmi_get_clock_info": {"clock_mhz", "memory_clock_mhz"},
    "amdsmi_get_gpu_vram_usage": {"memory_used_bytes"},
    "amdsmi_get_violation_status": {"throttle"},
}


@pytest.mark.parametrize("refused", AMD_ANSWERS)
def test_what_amd_smi_refuses_is_null_and_nothing_else_is(refused: str) -> None:
    assert nulls(of_mi300x(MI300X(refuse=(refused,)))) == AMD_ANSWERS[refused]


def test_the_record_of_amd_smi_covers_all_that_is_asked() -> None:
    assert {*AMD_ANSWERS, *AMD_SETTINGS} == MI300X_ANSWERS.keys()
    assert set.union(*AMD_ANSWERS.values()) == {field.name for field in fields(Reading)}


@pytest.mark.parametrize("answer", ["N/A", None, float("nan"), float("inf"), 65_535, -1])
def test_what_can_not_be_a_power_is_null(answer: object) -> None:
    power = {"current_socket_power": answer, "average_socket_power": "N/A"}
    assert of_mi300x(MI300X(changes={"amdsmi_get_power_info": power})).power_watts is None


def test_older_names_of_amd_smis_answers_are_known() -> None:
    older = {
        "amdsmi_get_energy_count": {"power": 1_000_000, "counter_resolution": 15.3},
        "amdsmi_get_power_info": {"average_socket_power": 300},
        "amdsmi_get_clock_info": {"GFX": {"cur_clk": 1_700}, "MEM": {"cur_clk": 1_600}},
        "amdsmi_get_power_cap_info": {"power_cap": 560, "power_cap_default": 560},
        "amdsmi_get_violation_status": None,
    }
    reading = of_mi300x(MI300X(changes=older))
    assert (reading.energy_joules, reading.power_watts) == (pytest.approx(15.3), 300.0)
    assert (reading.clock_mhz, reading.memory_clock_mhz) == (1_700.0, 1_600.0)
    assert (reading.power_cap_watts, reading.power_cap_default_watts) == (560.0, 560.0)
    assert reading.throttle is None


def test_a_cpu_has_nothing_to_tell() -> None:
    assert telemetry_of("cpu", DeviceAddress()) == Nothing(reason="a CPU has no telemetry of its own")


def test_a_machine_without_the_vendors_library_has_nothing_to_tell() -> None:
    found = telemetry_of("rocm", ADDRESS)
    assert isinstance(found, Nothing)
    assert "AMD SMI can't be opened" in found.reason
    assert found.read() == Reading()


@contextmanager
def sampling(telemetry: Telemetry, **options: Any) -> Iterator[Sampler]:
    sampler = Sampler(telemetry, **options)
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.close()


def nulls(reading: Reading) -> set[str]:
    return {field.name for field in fields(reading) if getattr(reading, field.name) is None}


def test_a_sampler_tells_the_newest_look() -> None:
    device = Scripted(Reading(power_watts=100.0), Reading(power_watts=200.0))
    with sampling(device, every_s=3600.0, patience_s=60.0) as sampler:
        sampler.begin()
        sampler.end()
        assert sampler.newest() == Reading(power_watts=200.0)


def test_a_window_has_a_look_before_it_and_one_after_it() -> None:
    device = H100()
    with sampling(open_nvml(device, ADDRESS), every_s=3600.0, patience_s=60.0) as sampler:
        sampler.begin()
        device.energy_mj += 42_000
        looks = sampler.end()
    energies = [look.reading.energy_joules for look in looks]
    assert (energies[0], energies[-1]) == (5_000.0, 5_042.0)
    assert looks[0].at_s < looks[-1].at_s


def test_a_driver_that_hangs_holds_up_neither_the_training_nor_its_end() -> None:
    driver = Hanging()
    with sampling(driver, patience_s=0.01) as sampler:
        assert driver.is_asked.wait(DEADLINE_S)
        sampler.begin()
        assert sampler.end() == ()
        assert sampler.newest() == Reading()
    driver.may_answer.set()


class BegunMeanwhile:
    """Tells 1 W, of before the window that begins while it is asked, and then 2 W."""

    def __init__(self) -> None:
        self.samplers: list[Sampler] = []
        self.is_asked_again = threading.Event()

    def settings(self) -> dict[str, str]:
        return {}

    def read(self) -> Reading:
        if self.samplers:
            self.samplers.pop().begin()
            return Reading(power_watts=1.0)
        self.is_asked_again.set()
        return Reading(power_watts=2.0)


def test_a_look_that_was_going_on_when_a_window_began_is_not_of_it() -> None:
    device = BegunMeanwhile()
    sampler = Sampler(device, every_s=0.001, patience_s=0.05)
    device.samplers.append(sampler)
    sampler.start()
    assert device.is_asked_again.wait(DEADLINE_S)
    looks = sampler.end()
    sampler.close()
    assert {look.reading.power_watts for look in looks} <= {2.0}


def test_a_window_whose_end_the_driver_does_not_tell_tells_nothing() -> None:
    driver = Hanging()
    driver.may_answer.set()
    with sampling(driver, every_s=3600.0, patience_s=0.2) as sampler:
        sampler.begin()
        driver.may_answer.clear()
        assert sampler.end() == ()
    driver.may_answer.set()


def test_a_look_of_long_ago_is_not_told_as_todays() -> None:
    now = [0.0]
    device = Scripted(Reading(power_watts=1.0))
    with sampling(device, every_s=3600.0, patience_s=60.0, clock=lambda: now[0]) as sampler:
        sampler.begin()
        assert sampler.newest() == Reading(power_watts=1.0)
        now[0] = 100.0
        assert sampler.newest() == Reading()


def test_nothing_is_not_looked_at() -> None:
    before = threading.active_count()
    with sampling(Nothing(reason="none")) as sampler:
        assert threading.active_count() == before
        sampler.begin()
        assert sampler.end() == ()


def test_a_reading_is_recorded_under_the_columns_names() -> None:
    sample = sample_of("gpu 0", open_nvml(H100(), ADDRESS).read(), 7_000)
    assert sample == DeviceSample(
        device="gpu 0",
        utilization_pct=99.0,
        power_watts=695.25,
        clock_mhz=1_410.0,
        temperature_c=71.0,
        memory_bytes=7_000,
        energy_joules=5_000.0,
        power_cap_watts=500.0,
        memory_clock_mhz=2_619.0,
        memory_used_bytes=61_000_000_000,
        throttle_reasons="heat, power cap",
        ecc_corrected=3,
        ecc_uncorrected=1,
    )


@pytest.mark.parametrize(("throttle", "recorded"), [(None, None), ((), "")])
def test_an_unhindered_clock_is_told_from_one_of_which_nothing_is_known(
    throttle: tuple[str, ...] | None, recorded: str | None
) -> None:
    assert sample_of("gpu 0", Reading(throttle=throttle), 0).throttle_reasons == recorded
