"""Where a request fits, and the reason a person would give why it doesn't."""

from dataclasses import replace
from random import Random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.inventory import Inventory, Mode, Node, Request, WorkerGroup, excluding, unknown_nodes
from cluster.placement import Placed, Refused, Share, place, room
from tests.unit.builders import group, inventory

inventories = st.lists(
    st.tuples(st.sampled_from(["nvidia", "amd", "local"]), st.lists(st.integers(0, 16), max_size=5)),
    max_size=3,
    unique_by=lambda named: named[0],
).map(lambda groups: inventory(*(group(name, tuple(devices)) for name, devices in groups)))
requests = st.lists(
    st.builds(
        Request,
        group=st.sampled_from(["nvidia", "amd", "local", "tpu"]),
        num_workers=st.integers(1, 40),
        mode=st.sampled_from(get_args(Mode)),
    ),
    max_size=12,
)


@pytest.mark.parametrize(
    ("num_workers", "said"),
    [
        (1, "amd: 1 on amd-2"),
        (4, "amd: 4 on amd-0"),
        (8, "amd: 8 on amd-1"),
        (9, "amd: 8 on amd-1 + 1 on amd-2"),
        (11, "amd: 8 on amd-1 + 3 on amd-0"),
        (14, "amd: 8 on amd-1 + 4 on amd-0 + 2 on amd-2"),
    ],
)
def test_a_request_takes_the_fewest_nodes_and_fills_the_last_one_best(num_workers: int, said: str) -> None:
    assert _said(Request(group="amd", num_workers=num_workers), group("amd", (4, 8, 2))) == said


@pytest.mark.parametrize(
    ("num_workers", "said"),
    [
        (1, "amd: 1 on amd-1"),
        (3, "amd: 1 on amd-1 + 1 on amd-0 + 1 on amd-2"),
        (7, "amd: 3 on amd-1 + 2 on amd-0 + 2 on amd-2"),
        (10, "amd: 4 on amd-1 + 4 on amd-0 + 2 on amd-2"),
        (14, "amd: 8 on amd-1 + 4 on amd-0 + 2 on amd-2"),
    ],
)
def test_a_spread_request_is_even_over_as_many_nodes_as_there_are(num_workers: int, said: str) -> None:
    asked = Request(group="amd", num_workers=num_workers, mode="spread")
    assert _said(asked, group("amd", (4, 8, 2))) == said


def _said(request: Request, there: WorkerGroup) -> str:
    (answer,) = place([request], inventory(there))
    assert isinstance(answer, Placed)
    return answer.describe()


def test_an_excluded_node_is_left_out_and_named_in_the_reason() -> None:
    there = excluding(inventory(group("amd", (8, 8))), ["amd-1"])
    (fits, too_large) = place([Request(group="amd", num_workers=num) for num in (8, 16)], there)
    assert fits == _placed("amd", {"amd-0": 8})
    assert too_large == Refused(
        reason="amd has 8 devices on 1 node without amd-1 (excluded), 16 were asked for"
    )


def test_a_node_is_excluded_by_its_id_its_name_or_its_name_in_results() -> None:
    nodes = tuple(
        Node(node_id=f"{index}{'0' * 55}", num_devices=1, num_cpus=1, name=f"host-{index}") for index in "123"
    )
    there = inventory(WorkerGroup(name="a", vendor="cpu", nodes=nodes))
    names = [nodes[0].node_id, "host-1", "200000000000", "30", "elsewhere"]
    (left,) = excluding(there, names).groups
    assert (left.nodes, left.excluded) == (nodes[2:], nodes[:2])
    assert unknown_nodes(there, names) == ("30", "elsewhere")


def _placed(name: str, shares: dict[str, int]) -> Placed:
    return Placed(
        group=name,
        shares=tuple(Share(node_id=node_id, num_workers=num) for node_id, num in shares.items()),
    )


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
        most = min(request.num_workers, sum(num > 0 for num in capacity.values()))
        assert len(answer.shares) == (most if request.mode == "spread" else fewest)


@given(requests, inventories, st.randoms(use_true_random=False))
def test_the_order_of_groups_and_nodes_changes_nothing(
    asked: list[Request], there: Inventory, random: Random
) -> None:
    groups = tuple(
        replace(group, nodes=tuple(random.sample(group.nodes, len(group.nodes)))) for group in there.groups
    )
    shuffled = replace(there, groups=tuple(random.sample(groups, len(groups))))
    assert place(asked, shuffled) == place(asked, there)


@given(requests, inventories, st.sets(st.sampled_from(["nvidia-0", "amd-1", "amd-2", "local-0"])))
def test_nothing_is_placed_on_an_excluded_node(
    asked: list[Request], there: Inventory, excluded: set[str]
) -> None:
    placed = place(asked, excluding(there, excluded))
    used = {share.node_id for one in placed if isinstance(one, Placed) for share in one.shares}
    assert not used & excluded


def _fewest(num_workers: int, largest_first: list[int]) -> int:
    return next(count for count in range(len(largest_first) + 1) if sum(largest_first[:count]) >= num_workers)


def test_room_is_what_the_nodes_that_are_there_have_free_by_the_scarcer_of_core_and_device() -> None:
    free = {"amd-0": {"CPU": 8.0, "GPU": 1.0}, "amd-1": {"CPU": 0.5, "GPU": 4.0}, "amd-2": {"CPU": 3.0}}
    assert room(group("amd", (4, 4, 4, 4), vendor="amd"), free) == 1
    assert room(group("amd", (4, 4, 4, 4), vendor="cpu"), free) == 11


def test_nodes_that_are_left_out_give_no_room() -> None:
    (left,) = excluding(inventory(group("local", (2, 3))), ["local-1"]).groups
    assert room(left, {"local-0": {"CPU": 2.0}, "local-1": {"CPU": 3.0}}) == 2
