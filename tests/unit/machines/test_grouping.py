"""Nodes as a running Ray tells of them, and the groups that they form."""

import pytest

from cluster.grouping import NodesAlike, grouped
from cluster.inventory import ClusterError, Node, WorkerGroup

GREEN = {"longhaul.group": "green", "longhaul.vendor": "nvidia", "longhaul.device": "H100"}


def found(
    node_id: str, labels: dict[str, str], *, num_gpus: int = 0, num_cpus: int = 4, is_draining: bool = False
) -> NodesAlike:
    node = Node(node_id=node_id, num_devices=num_gpus, num_cpus=num_cpus, is_draining=is_draining)
    return NodesAlike(place=f"node {node_id}", labels=labels, nodes=(node,))


def only(*nodes: NodesAlike) -> WorkerGroup:
    (group,) = grouped(nodes)
    return group


def test_a_draining_node_is_known_but_nothing_may_start_on_it() -> None:
    group = only(found("a", GREEN, num_gpus=8), found("b", GREEN, num_gpus=8, is_draining=True))
    assert [node.node_id for node in group.nodes] == ["a"]
    assert [node.node_id for node in group.excluded] == ["b"]
    assert group.num_devices == 8


def test_a_group_whose_nodes_all_drain_is_still_a_group() -> None:
    assert only(found("b", GREEN, num_gpus=8, is_draining=True)).num_devices == 0


@pytest.mark.parametrize(
    ("recognised", "vendor"), [("AMD-Instinct-MI300X-OAM", "amd"), ("H100", "nvidia"), ("A10G", "nvidia")]
)
def test_what_ray_recognised_tells_the_vendor_of_an_unlabelled_node(recognised: str, vendor: str) -> None:
    group = only(found("a", {"ray.io/accelerator-type": recognised}, num_gpus=1))
    assert (group.name, group.vendor, group.device) == ("local", vendor, recognised)


@pytest.mark.parametrize("labels", [{}, {"ray.io/accelerator-type": "Intel-GPU-Max-1550"}])
def test_gpus_of_which_nobody_knows_the_vendor_are_refused(labels: dict[str, str]) -> None:
    with pytest.raises(
        ClusterError, match=r"^node a\.labels: found longhaul\.vendor=None, .* whose they are$"
    ):
        grouped([found("a", labels, num_gpus=1)])


def test_a_group_without_a_vendor_is_refused_also_if_ray_knows_the_devices() -> None:
    labels = {"longhaul.group": "green", "ray.io/accelerator-type": "H100"}
    with pytest.raises(ClusterError, match="group 'green' must say whose devices it has"):
        grouped([found("a", labels, num_gpus=1)])


def test_two_vendors_are_refused_also_where_models_may_be_mixed() -> None:
    mixed = GREEN | {"longhaul.mixed_devices": "true"}
    with pytest.raises(ClusterError) as refused:
        grouped(
            [
                found("a", mixed, num_gpus=1),
                found("b", mixed | {"longhaul.vendor": "amd", "longhaul.device": "MI300X"}, num_gpus=1),
            ]
        )
    assert str(refused.value) == (
        "group 'green' has nvidia H100 (node a) and amd MI300X (node b); a group is one vendor and one "
        "device model: give them different longhaul.group labels"
    )


def test_on_the_vendor_cpu_a_device_is_a_core_whatever_gpus_there_are() -> None:
    assert only(found("a", {"longhaul.vendor": "cpu"}, num_gpus=2, num_cpus=6)).num_devices == 6


def test_a_node_that_promised_a_vendor_but_has_no_devices_is_in_no_group() -> None:
    assert grouped([found("a", GREEN, num_gpus=0)]) == ()
