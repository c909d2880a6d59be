"""What a worker group asks for on groups of every shape."""

from cluster.inventory import WorkerGroup, excluding
from cluster.placement import Refused
from jobs.execution.resources import Claim, claim_of
from tests.unit.builders import group, inventory


def claim(on: WorkerGroup, world_size: int, *, share_nodes: bool = False) -> Claim:
    answer = claim_of(on, world_size, share_nodes=share_nodes)
    assert isinstance(answer, Claim), answer
    return answer


def test_one_worker_takes_its_whole_node() -> None:
    assert claim(group(devices=(8,)), 1).resources == {"CPU": 8.0}


def test_the_workers_of_a_node_take_all_of_it_together_and_never_more() -> None:
    for world_size in range(1, 17):
        asked = claim(group(devices=(16,)), world_size)
        total = asked.resources["CPU"] * world_size
        assert 16 - 0.01 < total <= 16
        assert asked.strategy == "STRICT_PACK"


def test_two_runs_never_fit_one_node() -> None:
    whole = group(devices=(16,))
    for one in range(1, 17):
        for other in range(1, 17):
            left = 16 - claim(whole, one).resources["CPU"] * one
            assert left < claim(whole, other).resources["CPU"]


def test_a_worker_with_a_device_takes_one_and_its_share_of_the_cpus() -> None:
    asked = claim(group("red", devices=(4, 4), vendor="amd"), 8)
    assert asked.resources == {"CPU": 1.0, "GPU": 1.0}
    assert asked.strategy == "PACK"
    assert asked.describe() == "8 x 1 CPU and 1 GPU"


def test_a_shared_node_gives_each_worker_one_cpu() -> None:
    assert claim(group(devices=(8,)), 2, share_nodes=True).resources == {"CPU": 1.0}


def test_workers_that_are_spread_take_their_share_of_every_node() -> None:
    asked = claim_of(group(devices=(8, 8)), 4, share_nodes=False, spread=True)
    assert isinstance(asked, Claim)
    assert (asked.strategy, asked.resources) == ("SPREAD", {"CPU": 4.0})
    assert claim(group(devices=(8, 8)), 4).resources == {"CPU": 2.0}


def test_a_named_group_is_asked_for_by_its_label_and_the_unlabelled_one_by_its_nodes() -> None:
    assert claim(group("red", devices=(4,)), 1).selector == {"longhaul.group": "red"}
    assert claim(group(devices=(1, 1)), 1).selector == {"ray.io/node-id": "in(local-0,local-1)"}


def test_nodes_are_named_without_blanks_which_ray_would_take_for_a_part_of_the_name() -> None:
    (left,) = excluding(inventory(group("amd", (2, 2, 2))), ["amd-0", "amd-1"]).groups
    assert claim(left, 2).selector["ray.io/node-id"] == "!in(amd-0,amd-1)"


def test_more_than_the_group_has_is_refused() -> None:
    answer = claim_of(group(devices=(2,)), 3, share_nodes=False)
    assert answer == Refused(reason="local has 2 devices on 1 node, 3 were asked for")


def test_an_excluded_node_is_left_out_of_what_ray_is_asked_for() -> None:
    for name, selector in (
        ("amd", {"longhaul.group": "amd", "ray.io/node-id": "!in(amd-0)"}),
        ("local", {"ray.io/node-id": "in(local-1)"}),
    ):
        (left,) = excluding(inventory(group(name, (2, 2))), [f"{name}-0"]).groups
        assert claim(left, 2).selector == selector
        answer = claim_of(left, 3, share_nodes=False)
        assert isinstance(answer, Refused)
        assert f"without {name}-0 (excluded)" in answer.reason
