"""What is there of what was promised, and what became of the nodes; every finding says what to do."""

from dataclasses import replace

import pytest

from cluster.inventory import Node, WorkerGroup
from cluster.promised_vs_live import differences
from tests.unit.builders import group, inventory

H100 = group("green", (8, 8), vendor="nvidia", device="H100-SXM")


def said(promised: WorkerGroup, *there: WorkerGroup) -> list[str]:
    found = differences(inventory(promised), inventory(*there))
    assert all(finding.remedy.endswith(".") for finding in found)
    return [f"{finding.kind} {finding.level} {finding.group}: {finding.found}" for finding in found]


def nodes(*names: str, is_draining: bool = False, life: int = 1) -> tuple[Node, ...]:
    return tuple(
        Node(node_id=f"{name}-{life}", name=name, num_devices=8, num_cpus=8, is_draining=is_draining)
        for name in names
    )


def of(*members: Node) -> WorkerGroup:
    return WorkerGroup(
        name="green",
        vendor="nvidia",
        nodes=tuple(node for node in members if not node.is_draining),
        excluded=tuple(node for node in members if node.is_draining),
    )


def test_a_cluster_that_is_as_promised_leaves_nothing_to_say() -> None:
    assert said(H100, H100) == []


def test_missing_nodes_are_counted_and_only_a_warning_for_they_may_be_rented_later() -> None:
    assert said(H100, replace(H100, nodes=H100.nodes[:1])) == [
        "missing_nodes warning green: 1 of 2 nodes are missing, 8 of 16 devices are there"
    ]
    assert said(H100) == ["missing_nodes warning green: 2 of 2 nodes are missing, 0 of 16 devices are there"]


def test_fewer_devices_than_promised_are_a_failure_of_that_node() -> None:
    assert said(H100, group("green", (8, 7), vendor="nvidia", device="H100-SXM")) == [
        "fewer_devices failed green: node green-1 has 7 devices, 8 were promised"
    ]


def test_more_devices_and_more_nodes_than_promised_are_told() -> None:
    assert said(H100, group("green", (8, 16), vendor="nvidia", device="H100-SXM")) == [
        "more_devices warning green: node green-1 has 16 devices, 8 were promised"
    ]
    assert said(H100, group("green", (8, 8, 8), vendor="nvidia", device="H100-SXM")) == [
        "more_nodes note green: 3 nodes are there, 1 more than promised"
    ]


def test_a_group_that_nobody_promised_is_told() -> None:
    assert said(H100, H100, group("local", (4,))) == [
        "unexpected_group warning local: 1 node with 4 devices, of which the test's cluster does not know"
    ]


def test_another_vendor_is_told_once_and_nothing_else_of_that_group() -> None:
    assert said(H100, group("green", (4,), vendor="amd", device="MI300X")) == [
        "other_vendor failed green: its nodes are amd, nvidia was promised"
    ]


@pytest.mark.parametrize("device", ["H200", "H100 PCIe", "A10G"])
def test_another_device_is_told_for_each_node(device: str) -> None:
    assert said(H100, replace(H100, device=device)) == [
        f"other_device failed green: node green-{index} has {device}, H100-SXM was promised"
        for index in (0, 1)
    ]


@pytest.mark.parametrize("device", ["NVIDIA H100 80GB HBM3", "H100", None])
def test_the_same_device_under_another_name_is_none_and_an_unknown_one_is_not_guessed(
    device: str | None,
) -> None:
    assert said(H100, replace(H100, device=device)) == []


def test_simulated_devices_where_real_ones_were_promised_are_a_failure() -> None:
    assert said(H100, replace(H100, simulated=True)) == [
        "other_simulation failed green: its devices are simulated, real ones were promised"
    ]


def test_a_draining_node_is_there_and_told() -> None:
    there = replace(H100, nodes=H100.nodes[:1], excluded=(replace(H100.nodes[1], is_draining=True),))
    assert said(H100, there) == ["draining note green: node green-1 is being drained"]
