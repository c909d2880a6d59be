"""Where a request fits, and the reason a person would give why it doesn't."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.inventory import Inventory, Request
from cluster.placement import Placed, Refused, place
from tests.unit.builders import group, inventory

inventories = st.lists(
    st.tuples(st.sampled_from(["nvidia", "amd", "local"]), st.lists(st.integers(0, 16), max_size=5)),
    max_size=3,
    unique_by=lambda named: named[0],
).map(lambda groups: inventory(*(group(name, tuple(devices)) for name, devices in groups)))
requests = st.lists(
    st.builds(
        Request, group=st.sampled_from(["nvidia", "amd", "local", "tpu"]), num_workers=st.integers(1, 40)
    ),
    max_size=8,
)


@pytest.mark.parametrize(
    ("num_workers", "said"),
    [
        (1, "amd: 1 on amd-1"),
        (8, "amd: 8 on amd-1"),
        (9, "amd: 8 on amd-1 + 1 on amd-0"),
        (14, "amd: 8 on amd-1 + 4 on amd-0 + 2 on amd-2"),
    ],
)
def test_a_request_takes_the_fewest_nodes_the_largest_first(num_workers: int, said: str) -> None:
    (answer,) = place([Request(group="amd", num_workers=num_workers)], inventory(group("amd", (4, 8, 2))))
    assert isinstance(answer, Placed)
    assert answer.describe() == said


@pytest.mark.parametrize(
    ("devices", "num_workers", "reason"),
    [
        ((1,), 2, "local has 1 device on 1 node, 2 were asked for"),
        ((4, 4), 16, "local has 8 devices on 2 nodes, 16 were asked for"),
        ((), 1, "local has 0 devices on 0 nodes, 1 were asked for"),
    ],
)
def test_too_many_workers_are_refused_with_what_is_there(
    devices: tuple[int, ...], num_workers: int, reason: str
) -> None:
    answers = place([Request(group="local", num_workers=num_workers)], inventory(group(devices=devices)))
    assert answers == [Refused(reason=reason)]


def test_a_group_that_is_not_there_is_refused_with_those_that_are() -> None:
    there = inventory(group("nvidia"), group("amd"))
    assert place([Request(group="tpu", num_workers=1)], there) == [
        Refused(reason="there is no group 'tpu' in the test's cluster (groups: amd, nvidia)")
    ]


def test_an_empty_cluster_refuses_everything() -> None:
    assert place([Request(group="local", num_workers=1)], inventory()) == [
        Refused(reason="there is no group 'local' in the test's cluster (groups: none)")
    ]


@given(requests, inventories)
def test_every_request_has_one_answer_and_it_is_always_the_same(
    asked: list[Request], there: Inventory
) -> None:
    answers = place(asked, there)
    assert len(answers) == len(asked)
    assert answers == place(asked, there)
    assert answers == [place([request], there)[0] for request in asked]


@given(requests, inventories)
def test_a_placement_is_whole_on_one_group_and_never_overfills_a_node(
    asked: list[Request], there: Inventory
) -> None:
    for request, answer in zip(asked, place(asked, there), strict=True):
        of_group = there.group(request.group)
        capacity = {node.node_id: node.num_devices for node in of_group.nodes} if of_group else {}
        if isinstance(answer, Refused):
            assert request.num_workers > sum(capacity.values())
            continue
        assert answer.group == request.group
        assert sum(share.num_workers for share in answer.shares) == request.num_workers
        assert len({share.node_id for share in answer.shares}) == len(answer.shares)
        assert all(1 <= share.num_workers <= capacity[share.node_id] for share in answer.shares)
        fewest = _fewest(request.num_workers, sorted(capacity.values(), reverse=True))
        assert len(answer.shares) == fewest


def _fewest(num_workers: int, largest_first: list[int]) -> int:
    return next(count for count in range(len(largest_first) + 1) if sum(largest_first[:count]) >= num_workers)
