"""What the doctor makes of what it saw: every finding has its level and its remedy, and nothing is hidden."""

from dataclasses import replace

import pytest

from cluster.probe.node_facts import DiskFacts
from jobs.doctor.examination import Examination, Finding, Forecast, Link, NodeAnswer, Promise, Skew
from jobs.doctor.node_checks import exit_code, judge
from jobs.doctor.text import as_json, as_text
from tests.conftest import Golden
from tests.unit.examinations import (
    A1,
    A2,
    B1,
    DENIED,
    HEALTHY,
    OWN,
    RUN,
    STORE,
    amd,
    answer,
    broken,
    nvidia,
    pair,
    rates,
)
from tests.unit.printed import checked


def findings(seen: Examination) -> list[Finding]:
    return [finding for finding in judge(seen) if finding.level != "ok"]


def only(seen: Examination) -> Finding:
    """The one thing that is wrong, with what to do about it."""
    (finding,) = findings(seen)
    assert finding.remedy
    return finding


def with_answers(*answers: NodeAnswer) -> Examination:
    return replace(HEALTHY, answers=answers, promises=(), forecast=None)


def with_run(forecast: Forecast, free_bytes: int | None = None) -> Examination:
    return replace(HEALTHY, forecast=forecast, store=replace(STORE, free_bytes=free_bytes))


def test_a_healthy_cluster_is_told_as_reviewed_and_ends_with_0(golden: Golden) -> None:
    found = judge(HEALTHY)
    assert exit_code(found) == 0
    golden("doctor_healthy.txt", as_text(HEALTHY, found))


def test_a_broken_cluster_is_told_as_reviewed_and_ends_with_1(golden: Golden) -> None:
    found = judge(broken())
    assert exit_code(found) == 1
    assert all(finding.remedy for finding in found if finding.level != "ok")
    golden("doctor_broken.txt", as_text(broken(), found))


def test_programs_get_every_number_and_finding(golden: Golden) -> None:
    text = as_json(HEALTHY, judge(HEALTHY))
    found = checked("doctor", text)
    assert found["exit_code"] == 0
    assert len(found["answers"][0]["facts"]["gemms"]) == 6
    golden("doctor_healthy.json", text)


def test_the_worst_finding_decides() -> None:
    ok, warning, failed = (
        Finding(level=level, subject="s", found="f") for level in ("ok", "warning", "failed")
    )
    assert exit_code([]) == exit_code([ok]) == 0
    assert exit_code([ok, warning]) == 3
    assert exit_code([warning, failed, ok]) == 1


def test_a_node_that_left_while_it_was_asked_is_a_finding_and_keeps_nobody_else_from_answering() -> None:
    found = judge(with_answers(answer(A1, "ActorDiedError: the node left"), answer(A2, nvidia())))
    assert [(one.level, one.subject) for one in found if "nvidia" in one.subject] == [
        ("failed", "nvidia: gpu-1"),
        ("ok", "nvidia: gpu-2"),
    ]
    assert "the node left" in found[0].found


def test_fewer_visible_devices_than_promised_name_the_variable_that_hides_them() -> None:
    hidden = nvidia(num_devices=1, visible={"CUDA_VISIBLE_DEVICES": "0"})
    found = only(with_answers(answer(A1, hidden)))
    assert found.level == "failed"
    assert found.found == "only 1 of 2 promised devices are visible (CUDA_VISIBLE_DEVICES=0)"


def test_a_node_whose_torch_is_of_another_vendor_is_unusable_unless_it_is_simulated() -> None:
    facts = nvidia(platform="cpu", device=None, gemms=(), copies=())
    found = only(with_answers(answer(A1, facts)))
    assert (found.level, "finds cpu" in found.found) == ("failed", True)
    assert findings(with_answers(answer(replace(A1, simulated=True), facts))) == []


def test_saves_that_need_more_than_a_node_may_give_them_are_a_warning() -> None:
    finding = only(with_run(replace(RUN, local_max_bytes=200_000_000_000)))
    assert (finding.level, finding.found) == ("warning", "needs 289.09 GB in /nvme, of 200.00 GB allowed")


def test_a_disk_need_hold_no_more_than_a_node_may_give_to_saves() -> None:
    small = DiskFacts(folder="/nvme", free_bytes=10**11, write_bytes_per_s=1e9, fsync_s=0.001)
    seen = replace(HEALTHY, answers=(answer(A1, nvidia()), answer(A2, nvidia(disk=small))), promises=())
    seen = replace(seen, forecast=replace(RUN, local_max_bytes=5 * 10**10))
    assert [found.found for found in findings(seen)] == ["needs 289.09 GB in /nvme, of 50.00 GB allowed"]


def test_a_device_without_telemetry_is_a_warning() -> None:
    found = only(with_answers(answer(B1, amd(telemetry=None))))
    assert (found.level, "amdsmi" in found.remedy) == ("warning", True)


@pytest.mark.parametrize(
    ("offset_s", "uncertainty_s", "level"),
    [
        (0.9, 0.0, None),
        (-0.9, 0.0, None),
        (1.1, 0.0, "warning"),
        (-1.1, 0.0, "warning"),
        (1.1, 0.2, None),
        (299.0, 0.0, "warning"),
        (-301.0, 0.0, "failed"),
    ],
)
def test_a_clock_is_wrong_by_what_is_beyond_the_uncertainty(
    offset_s: float, uncertainty_s: float, level: str | None
) -> None:
    skew = Skew(offset_s=offset_s, uncertainty_s=uncertainty_s)
    found = findings(with_answers(answer(A1, nvidia(), skew=skew)))
    assert [finding.level for finding in found] == ([level] if level else [])


@pytest.mark.parametrize(("package", "other"), [("python", "3.11.8"), ("ray", "2.59.0")])
def test_another_python_or_ray_anywhere_is_unusable(package: str, other: str) -> None:
    versions = {**amd().versions, package: other}
    found = only(with_answers(answer(A1, nvidia()), answer(A2, nvidia()), answer(B1, amd(versions=versions))))
    assert found.level == "failed"
    assert found.found == f"{package} differs: {OWN[package]}, but amd: gpu-9 has {other}"


def test_the_drivers_version_is_the_one_that_others_differ_from() -> None:
    older = {**nvidia().versions, "ray": "2.59.0"}
    found = only(with_answers(answer(A1, nvidia(versions=older)), answer(A2, nvidia(versions=older))))
    assert found.found.startswith("ray differs: 2.60.0, but nvidia: gpu-1 has 2.59.0, nvidia: gpu-2")


def test_torch_must_be_the_same_within_a_group_and_may_differ_between_groups() -> None:
    older = {**nvidia().versions, "torch": "2.12.0+cu130"}
    assert findings(with_answers(answer(A1, nvidia()), answer(B1, amd()))) == []
    found = only(with_answers(answer(A1, nvidia()), answer(A2, nvidia(versions=older))))
    assert (found.level, found.subject) == ("failed", "nvidia")


@pytest.mark.parametrize(("package", "level"), [("torch", "failed"), ("deepspeed", "warning")])
def test_a_package_that_is_missing_is_named_with_its_node(package: str, level: str) -> None:
    without = {**nvidia().versions, package: None}
    found = only(with_answers(answer(A1, nvidia(versions=without))))
    assert (found.level, found.found) == (level, f"{package} is not installed on gpu-1")


def test_two_device_models_in_a_group_are_unusable() -> None:
    found = only(with_answers(answer(A1, nvidia()), answer(A2, nvidia(device="NVIDIA H200"))))
    assert (found.level, "NVIDIA H100 80GB HBM3, NVIDIA H200" in found.found) == ("failed", True)


def test_a_device_that_is_slower_than_its_peers_is_named() -> None:
    found = findings(with_answers(answer(A1, nvidia()), answer(A2, nvidia(gemms=rates(600)))))
    assert [finding.level for finding in found] == ["warning", "warning"]
    assert found[0].found == (
        "bf16 products are slower than on the fastest device: gpu-2 device 0 by 24%, gpu-2 device 1 by 25%"
    )


def test_a_device_far_below_its_datasheet_is_a_warning_unless_somebody_uses_it() -> None:
    slow = nvidia(gemms=rates(300))
    assert "reach 30% of the datasheet's 989 TFLOP/s" in only(with_answers(answer(A1, slow))).found
    busy = only(with_answers(answer(replace(A1, in_use="8 CPU"), slow)))
    assert "is in use (8 CPU)" in busy.found


def test_what_could_not_be_measured_is_told() -> None:
    found = only(with_answers(answer(A1, nvidia(problems=("disk: OSError: no space",)))))
    assert (found.level, found.found) == ("warning", "could not be measured: disk: OSError: no space")


@pytest.mark.parametrize(
    ("disk", "says"),
    [
        (DiskFacts(folder="/d", free_bytes=10**9, write_bytes_per_s=1e9, fsync_s=0.001), "1.0 GB free"),
        (DiskFacts(folder="/d", free_bytes=10**12, write_bytes_per_s=1e7, fsync_s=0.001), "10 MB/s"),
        (DiskFacts(folder="/d", free_bytes=10**12, write_bytes_per_s=1e9, fsync_s=0.25), "250 ms per fsync"),
    ],
)
def test_a_full_or_slow_disk_is_a_warning(disk: DiskFacts, says: str) -> None:
    found = only(with_answers(answer(A1, nvidia(disk=disk))))
    assert (found.level, says in found.found) == ("warning", True)


def test_too_little_shared_memory_is_a_warning() -> None:
    assert "64 MiB" in only(with_answers(answer(A1, nvidia(shm_bytes=64 * 2**20)))).found


@pytest.mark.parametrize("node", [None, A1.name])
def test_a_link_that_does_not_work_makes_a_group_unusable(node: str | None) -> None:
    found = only(replace(HEALTHY, links=(Link(group="nvidia", node=node, rate="no answer in time"),)))
    assert (found.level, found.subject) == ("failed", "nvidia")
    assert "NCCL_SOCKET_IFNAME" in found.remedy


def test_missing_nodes_are_a_warning_and_missing_devices_a_failure() -> None:
    more_nodes = replace(HEALTHY, promises=(Promise(group="amd", num_nodes=3, devices_per_node=2),))
    assert (only(more_nodes).level, only(more_nodes).found) == ("warning", "1 of 3 nodes are there")
    more_devices = replace(HEALTHY, promises=(Promise(group="amd", num_nodes=1, devices_per_node=8),))
    assert (only(more_devices).level, only(more_devices).subject) == ("failed", "amd: gpu-9")


def test_who_is_draining_is_told_and_not_asked() -> None:
    found = only(replace(HEALTHY, draining=("amd: gpu-7",)))
    assert (found.level, found.subject) == ("warning", "amd: gpu-7")


def test_more_cores_than_there_are_is_a_warning() -> None:
    facts = nvidia(platform="cpu", device=None, num_devices=1, gemms=(), copies=())
    found = only(with_answers(answer(replace(A1, vendor="cpu"), facts)))
    assert (found.level, found.found) == ("warning", "Ray counts 2 cores, 1 are there: ranks share")


@pytest.mark.parametrize(
    ("visible", "is_refused"),
    [
        ({"ROCR_VISIBLE_DEVICES": "0,1"}, True),
        ({"ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "0,1"}, False),
        ({"HIP_VISIBLE_DEVICES": "0,1"}, False),
    ],
)
def test_a_variable_of_amd_that_ray_refuses_is_named(visible: dict[str, str], is_refused: bool) -> None:
    found = judge(with_answers(answer(B1, amd(visible=visible))))
    assert any("ROCR_VISIBLE_DEVICES is set without" in one.found for one in found) == is_refused


def test_promises_that_nobody_was_asked_about_say_so() -> None:
    alone = replace(
        HEALTHY, is_cluster=False, promises=(Promise(group="x", num_nodes=1, devices_per_node=1),)
    )
    assert "RAY_ADDRESS" in only(alone).remedy


@pytest.mark.parametrize(
    ("change", "level", "says"),
    [
        ({"failed": "begin: no", "denied": True}, "failed", "right to read, write, list and delete"),
        ({"failed": "create: no answer within 60 s"}, "failed", "choose another with --store"),
        ({"winners": 2}, "failed", "conditional writes"),
        ({"winners": 0}, "failed", "conditional writes"),
        ({"reads_what_it_wrote": False}, "failed", "caches and mirrors"),
        ({"large_is_whole": False}, "failed", "caches and mirrors"),
        ({"left_behind": ("probe/a",)}, "warning", "allow deleting"),
        ({"put_s": 3.0}, "warning", "nodes' region"),
        ({"verbs": (*STORE.verbs, DENIED)}, "warning", "the right to read, write, list and delete"),
        ({"verbs": (*STORE.verbs, replace(DENIED, verb="get"))}, "failed", "the right to read"),
    ],
)
def test_a_store_that_breaks_its_contract_is_named_with_its_remedy(
    change: dict[str, object], level: str, says: str
) -> None:
    found = only(replace(HEALTHY, store=replace(STORE, **change)))  # type: ignore[arg-type]  # of the table
    assert (found.level, says in found.remedy) == (level, True)


def test_a_store_that_one_node_does_not_see_is_unusable() -> None:
    found = only(with_answers(answer(A1, nvidia()), answer(A2, nvidia(), sees_store=False)))
    assert (found.level, found.found) == ("failed", "not the same one on gpu-2")


@pytest.mark.parametrize(
    ("free_bytes", "level"),
    [
        (RUN.store_bytes - 1, "failed"),
        (RUN.store_bytes, "warning"),
        (2 * RUN.store_bytes, None),
        (None, None),
    ],
)
def test_the_space_of_a_run_is_held_against_what_is_free(free_bytes: int | None, level: str | None) -> None:
    found = findings(with_run(RUN, free_bytes))
    assert [finding.level for finding in found] == ([level] if level else [])


def test_the_tightest_disk_must_hold_a_nodes_own_generations() -> None:
    small = DiskFacts(folder="/nvme", free_bytes=10**11, write_bytes_per_s=1e9, fsync_s=0.001)
    seen = replace(HEALTHY, answers=(answer(A1, nvidia()), answer(A2, nvidia(disk=small))), promises=())
    found = only(seen)
    assert (found.level, "needs 289.09 GB in /nvme" in found.found) == ("failed", True)
    assert findings(replace(seen, forecast=replace(RUN, local_folder=None, local_bytes=None))) == []


def test_saving_more_slowly_than_saves_are_due_is_a_warning() -> None:
    found = only(with_run(replace(RUN, save_every_s=100.0)))
    assert found.found == "one writer takes 235 s for a checkpoint, due every 100 s"


def test_a_run_that_no_group_can_take_is_unusable() -> None:
    refused = replace(RUN, refused="amd has 2 devices on 1 node, 16 were asked for")
    assert only(with_run(refused)).level == "failed"


def test_what_grows_for_ever_is_a_warning_where_the_store_has_an_end() -> None:
    growing = replace(RUN, grows="every 3,600 s")
    assert findings(with_run(growing)) == []
    assert "96.36 GB every 3,600 s" in only(with_run(growing, 10**14)).found


def test_pairs_of_nodes_are_a_small_table_and_of_very_many_the_worst() -> None:
    few = replace(HEALTHY, links=(pair("gpu-1", "gpu-2", 42.0), pair("gpu-1", "gpu-3", "no answer in time")))
    block = as_text(few, ()).partition("all-reduce of two nodes\n")[2].partition("\n\n")[0]
    assert block.splitlines() == [
        "  nvidia: gpu-1 - gpu-2  42.00 GB/s (nccl)",
        "  nvidia: gpu-1 - gpu-3  no answer in time (nccl)",
    ]
    many = [pair("gpu-0", f"gpu-{number}", 10.0 + number) for number in range(1, 40)]
    lines = as_text(replace(HEALTHY, links=(*many, pair("gpu-0", "gpu-99", "lost"))), ())
    shown = lines.partition("all-reduce of two nodes\n")[2].partition("\n\n")[0].splitlines()
    assert len(shown) == 16
    assert shown[0].split() == ["nvidia:", "gpu-0", "-", "gpu-99", "lost", "(nccl)"]
    assert "gpu-1 " in shown[1]
    assert shown[-1].split() == ["nvidia:", "25", "more", "none", "slower", "(nccl)"]
