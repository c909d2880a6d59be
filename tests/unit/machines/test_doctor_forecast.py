"""How much of the store and the disks a run will take, told from its spec before it starts."""

import json
from typing import Any

import pytest

from cluster.inventory import Inventory, Node, WorkerGroup
from jobs.doctor.examination import Forecast
from jobs.doctor.forecast import forecast
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.task.presets import preset

GENERATION = 12 * preset("llama-tiny").num_parameters


def inventory(*sizes: int) -> Inventory:
    nodes = tuple(Node(node_id=f"n{i}", num_devices=size, num_cpus=size) for i, size in enumerate(sizes))
    return Inventory(groups=(WorkerGroup(name="local", vendor="cpu", nodes=nodes),), source="a test")


def of(*sizes: int, **changes: Any) -> Forecast:
    plain = {"name": "r", "model": "llama-tiny", "steps": 1000, "data": {"samples": 10**6}, "world_size": 2}
    spec = RunSpec.model_validate_json(json.dumps({**plain, **changes}))
    return forecast(spec, inventory(*(sizes or (4,))))


def kept(**retention: Any) -> int:
    rules = {"last": 0, "epochs": False, "best": 0, **retention}
    return of(checkpoint={"every_s": 60.0, "retention": rules}).num_kept


def test_a_checkpoint_is_weights_and_two_moments_in_fp32_whatever_the_strategy() -> None:
    for strategy in ("ddp", "fsdp", "zero3"):
        for precision in ("fp32", "bf16"):
            assert of(strategy=strategy, precision=precision).generation_bytes == GENERATION


def test_rules_add_up_to_the_most_that_is_kept_at_a_time() -> None:
    # Two to stand on, one on its way, one that waits to be verified.
    assert kept() == 4
    assert kept(last=10) == 12
    assert kept(every_steps=100) == 14


def test_ends_of_epochs_are_kept_for_ever() -> None:
    # 2 samples a step: an epoch of 400 ends 5 times in 1000 steps.
    rules = {"every_s": 60.0, "retention": {"last": 2, "best": 0}}
    assert of(data={"samples": 400}, checkpoint=rules).num_kept == 9
    rules = {"every_s": 60.0, "retention": {"last": 2, "best": 0, "every_epochs": 2}}
    assert of(data={"samples": 400}, checkpoint=rules).num_kept == 6


def test_the_best_count_only_where_something_is_evaluated() -> None:
    rules = {"every_s": 60.0, "retention": {"last": 2, "epochs": False, "best": 3}}
    assert of(checkpoint=rules).num_kept == 4
    assert of(checkpoint=rules, eval={"every_steps": 10, "samples": 64}).num_kept == 7


def test_never_more_are_kept_than_are_saved() -> None:
    assert of(steps=20, checkpoint={"every_steps": 10, "retention": {"last": 50}}).num_kept == 3


def test_what_is_kept_by_the_clock_grows_with_it() -> None:
    assert of().grows is None
    growing = of(checkpoint={"retention": {"every_s": 3600.0}})
    assert growing.grows == "every 3,600 s"


@pytest.mark.parametrize(("sizes", "share"), [((4,), 1.0), ((1, 1), 0.5), ((1,), 1.0)])
def test_a_node_keeps_its_ranks_share_and_one_more_while_it_saves(
    sizes: tuple[int, ...], share: float
) -> None:
    local = {"local": {"dir": "/nvme", "keep": 2}}
    found = of(*sizes, checkpoint=local)
    assert (found.local_folder, found.local_bytes) == ("/nvme", round(3 * share * GENERATION))


def test_without_a_local_folder_the_disks_are_free() -> None:
    assert (of().local_folder, of().local_bytes) == (None, None)


def test_a_run_that_does_not_fit_is_refused_in_the_words_of_placement() -> None:
    assert of(4).refused is None
    assert of(1).refused == "local has 1 device on 1 node, 2 were asked for"


def test_a_benchmark_saves_nothing() -> None:
    assert of(mode="benchmark").store_bytes == 0


def test_a_bound_on_the_saves_of_a_node_is_part_of_the_forecast() -> None:
    assert of(checkpoint={"local": {"dir": "/nvme", "max_bytes": 5}}).local_max_bytes == 5
