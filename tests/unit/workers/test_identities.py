"""Before anything is timed: every branch of the guard, from made-up facts."""

from typing import Any

import pytest

from jobs.training.device.identities import DeviceIdentity, mismatch

H100 = "NVIDIA H100 80GB HBM3"


def device(number: int, **changes: Any) -> DeviceIdentity:
    values: dict[str, Any] = {
        "node": "node-a",
        "platform": "cuda",
        "device_id": f"uuid-{number} at 0000:c{number}:00",
        "model": H100,
    }
    return DeviceIdentity(**{**values, **changes})


def on_nvidia(*devices: DeviceIdentity, **changes: Any) -> str | None:
    return mismatch(devices, **{"world_size": len(devices), "vendor": "nvidia", **changes})


@pytest.mark.parametrize(
    ("platform", "vendor", "model"),
    [("cuda", "nvidia", H100), ("rocm", "amd", "AMD Instinct MI300X"), ("cpu", "cpu", None)],
)
def test_distinct_devices_of_the_expected_vendor_pass(platform: str, vendor: str, model: str | None) -> None:
    devices = [device(number, platform=platform, model=model) for number in range(8)]
    assert on_nvidia(*devices, vendor=vendor) is None


def test_devices_of_one_number_on_two_nodes_are_two() -> None:
    assert on_nvidia(device(0), device(0, node="node-b")) is None


def test_too_few_ranks_are_refused() -> None:
    assert on_nvidia(device(0), world_size=2) == "1 ranks came, 2 were asked for"


@pytest.mark.parametrize(
    ("platform", "vendor", "says"),
    [
        ("rocm", "nvidia", "ranks 0, 1 run on rocm, but the group's vendor is nvidia (platform cuda)"),
        ("cuda", "amd", "ranks 0, 1 run on cuda, but the group's vendor is amd (platform rocm)"),
        ("cpu", "amd", "ranks 0, 1 run on cpu, but the group's vendor is amd (platform rocm)"),
        ("cuda", "cpu", "ranks 0, 1 run on cuda, but the group's vendor is cpu (platform cpu)"),
    ],
)
def test_devices_of_another_vendor_are_refused(platform: str, vendor: str, says: str) -> None:
    found = on_nvidia(device(0, platform=platform), device(1, platform=platform), vendor=vendor)
    assert found is not None and found.startswith(says)
    assert "declare it simulated" in found


def test_one_rank_of_another_vendor_is_named() -> None:
    found = on_nvidia(device(0), device(1, platform="cpu", model=None))
    assert found is not None and found.startswith("rank 1 runs on cpu,")


def test_ranks_that_share_a_device_are_named_with_it() -> None:
    assert on_nvidia(device(0), device(1), device(1)) == (
        "ranks 1, 2 run on one device, uuid-1 at 0000:c1:00 of node node-a; expected one device per rank "
        "(check the group's visible-devices variables)"
    )


def test_several_models_in_a_group_are_refused() -> None:
    found = on_nvidia(device(0), device(1, model="NVIDIA A100-SXM4-80GB"), device(2))
    assert found == (
        f"rank 1 runs on NVIDIA A100-SXM4-80GB; ranks 0, 2 run on {H100}: a group has one device model; "
        'label its nodes apart, or all of them longhaul.mixed_devices: "true" to run on several'
    )


def test_a_model_that_nobody_knows_is_another_one() -> None:
    found = on_nvidia(device(0), device(1, model=None))
    assert found is not None and "rank 1 runs on unknown" in found


def test_several_models_are_allowed_where_the_group_says_so_but_no_shared_device_is() -> None:
    mixed = (device(0), device(1, model="NVIDIA A100-SXM4-80GB"))
    assert on_nvidia(*mixed, may_mix_devices=True) is None
    assert on_nvidia(*mixed, device(0), may_mix_devices=True) is not None
