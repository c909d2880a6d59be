"""What is known of a cell before anything starts: where it goes, what it needs, and why it can't run."""

from dataclasses import replace
from typing import Any

import pytest

from cluster.inventory import WorkerGroup
from cluster.placement import Placed
from jobs.commandline.usage_error import SpecError
from jobs.sweeps.grid import expand, schedule
from jobs.sweeps.plan import PREDICTION_ERROR, Plan, check_groups, plan_all
from jobs.sweeps.tables import placement_text, plan_table
from jobs.training.task.search.largest_batch import BatchSearch
from tests.unit.builders import GB, group, inventory, plans_of, sweep

H100 = "NVIDIA H100 80GB HBM3"


def plan(*groups: WorkerGroup, **changes: Any) -> Plan:
    (only,) = plans_of(sweep(**changes), *groups).values()
    return only


def needed(*groups: WorkerGroup, **changes: Any) -> int:
    return plan(*groups, **changes).predicted_memory_bytes


def limit(num_bytes: float) -> dict[str, Any]:
    return {"memory_gb_per_worker": num_bytes / GB}


def test_plans_come_in_the_order_of_the_cells() -> None:
    spec = sweep(axes={"strategy": ["zero3", "ddp"], "world_size": [2, 1]})
    cells = expand(spec, [])
    assert [found.cell for found in plan_all(cells, inventory(group()), spec.limits)] == cells


def test_a_group_that_the_cluster_lacks_is_unschedulable() -> None:
    found = plan(group("local"), groups=["tpu"])
    assert found.refused
    assert found.refused.status == "unschedulable"
    assert found.refused.reason == "there is no group 'tpu' in the test's cluster (groups: local)"
    assert (found.group, found.predicted_s, found.memory_limit_bytes) == (None, None, None)


def test_groups_that_are_not_there_are_one_line_each_with_the_nearest_that_is() -> None:
    cluster = inventory(group("nvidia"), group("amd"))
    check_groups(["amd", "nvidia"], cluster)
    with pytest.raises(SpecError) as raised:
        check_groups(["nvidai", "tpu", "amd", "tpu"], cluster)
    where = "in the test's cluster (groups: amd, nvidia)"
    assert raised.value.problems == [
        f"groups: there is no group 'nvidai' {where}; did you mean 'nvidia'?",
        f"groups: there is no group 'tpu' {where}",
    ]
    with pytest.raises(SpecError, match="groups: none"):
        check_groups(["amd"], inventory())


def test_more_workers_than_devices_are_unschedulable_however_much_memory_there_is() -> None:
    found = plan(group(devices=(1,)), axes={"world_size": [2]}, limits={"memory_gb_per_worker": 1e-6})
    assert found.refused
    assert (found.refused.status, found.refused.phase) == ("unschedulable", None)


def test_spread_workers_are_placed_on_all_nodes_and_share_the_memory_of_each() -> None:
    spec = sweep(axes={"world_size": [2]})
    nodes = inventory(group(devices=(2, 2), memory_bytes=64 * GB))
    for mode, shares, limit in (("spread", [1, 1], 0.8 * 64 * GB), ("whole_node", [2], 0.4 * 64 * GB)):
        (found,) = plan_all(expand(spec, []), nodes, spec.limits, mode)
        assert isinstance(found.answer, Placed)
        assert [share.num_workers for share in found.answer.shares] == shares
        assert found.memory_limit_bytes == int(limit)


def test_what_cannot_fit_however_wrong_the_prediction_is_refused_with_what_it_wants() -> None:
    wanted = needed()
    found = plan(limits=limit(wanted / (1 + PREDICTION_ERROR) - 1000))
    assert found.refused
    assert (found.refused.status, found.refused.phase) == ("oom", "predicted")
    assert found.refused.wanted_bytes == wanted
    assert f"{wanted / GB:.2f} GB per worker" in found.refused.reason
    assert "limits.try_anyway=true" in found.refused.reason


@pytest.mark.parametrize("too_much", [1.0, 1 + PREDICTION_ERROR])
def test_what_may_fit_is_started(too_much: float) -> None:
    assert plan(limits=limit(needed() / too_much + 1000)).refused is None


def test_try_anyway_starts_it_and_still_bounds_it() -> None:
    found = plan(limits={**limit(1_000_000), "try_anyway": True})
    assert found.refused is None
    assert found.memory_budget_bytes == 1_000_000


def test_without_a_limit_workers_share_four_fifths_of_the_tightest_node() -> None:
    found = plan(group(devices=(4, 2), memory_bytes=8 * GB), axes={"world_size": [6]})
    assert found.memory_budget_bytes == int(0.8 * 8 * GB / 4)


def test_a_node_of_unknown_memory_bounds_nothing() -> None:
    found = plan(group(memory_bytes=None))
    assert (found.memory_limit_bytes, found.memory_budget_bytes, found.refused) == (None, None, None)


def test_an_accelerator_is_bounded_by_its_own_memory_and_not_by_us() -> None:
    there = group("nvidia", (8,), vendor="nvidia", device=H100)
    found = plan(there, groups=["nvidia"], models=["mistral-7b"], axes={"strategy": ["ddp"]}, limits=limit(1))
    assert found.memory_limit_bytes == 80 * 2**30
    assert found.memory_budget_bytes is None
    assert found.refused
    assert (found.refused.status, found.refused.phase) == ("oom", "predicted")


def test_an_unknown_accelerator_refuses_nothing_and_has_no_forecast() -> None:
    there = group("nvidia", (8,), vendor="nvidia", device="NVIDIA Z900")
    found = plan(there, groups=["nvidia"], models=["mistral-7b"])
    assert (found.refused, found.memory_limit_bytes, found.predicted_s) == (None, None, None)


def test_a_simulated_group_is_planned_as_the_cores_that_it_is() -> None:
    there = group("amd", (2,), vendor="amd", device="MI300X", simulated=True, memory_bytes=8 * GB)
    found = plan(there, groups=["amd"])
    assert found.memory_budget_bytes == int(0.8 * 8 * GB)
    assert found.predicted_s == plan(group()).predicted_s


@pytest.mark.parametrize("change", [{"steps": 200}, {"warmup": 20}, {"cooldown_s": 30}])
def test_the_forecast_grows_with_what_is_measured(change: dict[str, Any]) -> None:
    more, usual = plan(measure=change).predicted_s, plan().predicted_s
    assert more is not None
    assert usual is not None
    assert more > usual


def test_the_forecast_knows_that_time_ends_a_window() -> None:
    bounded = plan(models=["mistral-7b"], measure={"steps": 1000, "max_s": 60, "warmup": 0}).predicted_s
    endless = plan(models=["mistral-7b"], measure={"steps": 1000, "warmup": 0}).predicted_s
    assert bounded is not None
    assert endless is not None
    assert bounded < endless / 100


def test_flops_per_token_are_the_models_at_that_length() -> None:
    there = group("nvidia", (8,), vendor="nvidia", device=H100)
    found = plan(there, groups=["nvidia"], models=["llama-3.1-8b"], axes={"seq_len": [8192]})
    assert found.flops_per_token == pytest.approx(57.914e9, rel=1e-5)


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
def test_only_full_checkpointing_computes_products_again(mode: str) -> None:
    """All products of a block but the last, and attention: 2 N + 4 L d S of a second forward pass."""
    axes = {"seq_len": [8192], "activation_checkpointing": [mode]}
    there = group("nvidia", (8,), vendor="nvidia", device=H100)
    found = plan(there, groups=["nvidia"], models=["llama-3.1-8b"], axes=axes)
    products = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 2 * 4096 * 14336)
    again = 2 * products + 4 * 32 * 4096 * 8192 if mode == "full" else 0
    assert found.recomputed_flops_per_token == pytest.approx(again, rel=1e-3)


def test_a_copy_of_the_state_on_several_nodes_is_seen_beforehand() -> None:
    axes = {"strategy": ["fsdp"], "world_size": [12], "shard_within": [None, 2, 4, 6, 12]}
    spec = sweep(axes=axes)
    plans = plan_all(expand(spec, []), inventory(group(devices=(6, 6))), spec.limits)
    placed = "local: 6 on local-0 + 6 on local-1"
    assert [placement_text(found) for found in plans] == [
        placed,
        placed,
        f"{placed} (sharded within 4: over several nodes)",
        placed,
        f"{placed} (sharded within 12: over several nodes)",
    ]


def offloading(*groups: WorkerGroup, **changes: Any) -> list[Plan]:
    """Plans of 12 workers, 8 on the first node, without and with 64.24 GB offloaded by all."""
    axes = {"strategy": ["fsdp"], "world_size": [12], "offload": ["none", "optimizer"]}
    spec = sweep(
        groups=["nvidia"], models=["llama-3.1-8b"], axes={**axes, **changes.pop("axes", {})}, **changes
    )
    return plan_all(expand(spec, []), inventory(*groups), spec.limits)


def nvidia(**changes: Any) -> WorkerGroup:
    return group("nvidia", (8, 4), **{"vendor": "nvidia", "device": H100, **changes})


MOMENTS_ON_FIRST = 8 * 8 * 8_030_261_248 / 12


def test_what_a_cell_offloads_is_told_for_the_node_with_most_of_its_workers() -> None:
    usual, offloads = offloading(nvidia())
    assert (usual.host_memory_bytes, offloads.refused) == (None, None)
    assert offloads.host_memory_bytes == pytest.approx(MOMENTS_ON_FIRST)
    title, *_, first, second = plan_table([usual, offloads], 1).splitlines()[1:4]
    assert "host GB/node" in title
    assert " -  " in first
    assert f" {MOMENTS_ON_FIRST / GB:.2f}  " in second
    assert "host" not in plan_table([usual], 1)


def test_what_a_cell_offloads_must_fit_in_the_memory_of_each_node() -> None:
    _, offloads = offloading(nvidia(memory_bytes=int(MOMENTS_ON_FIRST) - 1000))
    assert offloads.refused
    assert (offloads.refused.status, offloads.refused.phase) == ("oom", "predicted")
    assert offloads.refused.reason == (
        "offload: optimizer needs 42.83 GB of host memory on nvidia-0, 42.83 GB are there "
        "(--set limits.try_anyway=true starts it all the same)"
    )
    assert offloads.refused.wanted_bytes == offloads.host_memory_bytes
    enough = nvidia(memory_bytes=int(MOMENTS_ON_FIRST) + 1000)
    too_little = nvidia(memory_bytes=1)
    assert [plan.refused for plan in offloading(enough)] == [None, None]
    assert [plan.refused for plan in offloading(too_little, limits={"try_anyway": True})] == [None, None]


def test_a_small_node_counts_by_its_own_workers() -> None:
    there = nvidia(memory_bytes=int(MOMENTS_ON_FIRST) + 1000)
    first, second = there.nodes
    small = replace(second, memory_bytes=int(MOMENTS_ON_FIRST / 2) - 1000)
    _, offloads = offloading(replace(there, nodes=(first, small)))
    assert offloads.refused
    assert "needs 21.41 GB of host memory on nvidia-1, 21.41 GB are there" in offloads.refused.reason


def test_on_cpus_what_is_offloaded_is_part_of_what_a_worker_needs() -> None:
    for there in (nvidia(simulated=True), nvidia(vendor="cpu", device=None)):
        assert [plan.host_memory_bytes for plan in offloading(there)] == [None, None]


def test_ten_thousand_cells_are_planned_and_shown() -> None:
    axes = {
        "strategy": ["ddp", "fsdp", "zero1", "zero2", "zero3"],
        "world_size": list(range(1, 11)),
        "seq_len": list(range(1, 21)),
        "micro_batch": list(range(1, 6)),
        "precision": ["fp32", "bf16"],
    }
    spec = sweep(axes=axes, repeats=1)
    cells = expand(spec, [])
    assert len({cell.cell_id for cell in cells}) == len(cells) == 10_000
    plans = plan_all(cells, inventory(group(devices=(8,), memory_bytes=64 * GB)), spec.limits)
    assert "10,000 cells x 1 repeat = 10,000 runs" in plan_table(plans, spec.repeats)
    assert len({run.name for run in schedule(spec, cells)}) == 10_000


def test_the_forecast_counts_profiled_steps() -> None:
    """As much as more steps of the window."""
    plain, longer, profiled = (
        plan(measure={"steps": steps, "profile_steps": profile}).predicted_s
        for steps, profile in ((20, 0), (30, 0), (20, 10))
    )
    assert plain is not None and longer is not None
    assert profiled == longer > plain


def largest(**changes: Any) -> BatchSearch:
    """The search of a cell that asks for the largest micro-batch of 16 sequences."""
    limits = {"memory_gb_per_worker": 1.0}
    spec = sweep(
        models=["llama-mini"], axes={"micro_batch": "max"}, global_batch=16, **{"limits": limits, **changes}
    )
    (plan,) = plans_of(spec).values()
    assert plan.search is not None
    assert plan.recipe.micro_batch == plan.search.guess
    return plan.search


def test_a_search_begins_with_the_largest_micro_batch_that_the_forecast_lets_fit() -> None:
    spec = sweep(models=["llama-mini"], axes={"micro_batch": [1, 2, 4, 8, 16]}, global_batch=16)
    bytes_of = [plan.predicted_memory_bytes for plan in plans_of(spec).values()]
    for place, size in enumerate((2, 4, 8)):
        limits = {"memory_gb_per_worker": (bytes_of[place + 1] + 1000) / 1e9}
        assert largest(limits=limits).guess == size


def test_what_the_forecast_excludes_is_no_candidate_unless_everything_is_tried() -> None:
    tight = largest(limits={"memory_gb_per_worker": 0.75})
    assert tight.candidates[-1] < 16
    assert largest(limits={"memory_gb_per_worker": 0.75, "try_anyway": True}).candidates == (1, 2, 4, 8, 16)


def test_on_a_device_of_unknown_memory_a_search_begins_with_one_sequence() -> None:
    spec = sweep(axes={"micro_batch": "max"}, global_batch=6)
    (plan,) = plans_of(spec, group(vendor="nvidia", device="A card of tomorrow")).values()
    assert plan.search == BatchSearch(sequences=6, candidates=(1, 2, 3, 6), guess=1)


def test_a_micro_batch_that_does_not_go_with_the_other_settings_is_no_candidate() -> None:
    axes = {"micro_batch": "max", "seq_len": 8, "precision": "bf16", "fp8": "rowwise"}
    spec = sweep(axes=axes, global_batch=12)
    (plan,) = plans_of(spec).values()
    assert plan.search is not None
    assert plan.search.candidates == (2, 4, 6, 12)
    with pytest.raises(SpecError, match=r"multiples of 16"):
        plans_of(sweep(axes=axes, global_batch=3))
