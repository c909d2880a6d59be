"""What is best for what: the seeds' own figures, and fronts small enough to see."""

from dataclasses import replace

import pytest

from reporting.analysis.advice import advise
from reporting.analysis.findings import Advice, CellSummary
from tests.unit.summaries import cell

# As the seeds' documents print them, at 4 GPUs.
SEEDS = (
    cell(strategy="ddp", world_size=4, tokens_per_sec=12_220.0, peak_vram_gb=13.97,
         scaling_efficiency_pct=73.0, scaling_baseline_world_size=2),
    cell(strategy="fsdp", world_size=4, tokens_per_sec=9_424.0,
         scaling_efficiency_pct=69.6, scaling_baseline_world_size=2),
    cell(strategy="zero2", world_size=4, tokens_per_sec=18_147.0, peak_vram_gb=10.47,
         scaling_efficiency_pct=82.4, scaling_baseline_world_size=2),
    cell(strategy="zero3", world_size=4, tokens_per_sec=15_977.0, peak_vram_gb=9.67),
)  # fmt: skip


def of_goal(goal: str, *cells: CellSummary) -> Advice:
    (found,) = (advice for advice in advise(cells)[0] if advice.goal == goal)
    return found


def strategies_on_front(*cells: CellSummary) -> set[str]:
    front = advise(cells)[1]
    return {one.subject.strategy for one in cells if one.cell_id in front}


@pytest.mark.parametrize(
    ("goal", "strategy", "said"),
    [
        ("throughput", "zero2", "18,147 tokens/s; 1.49x the tokens/s of ddp with 25 % less memory"),
        (
            "memory",
            "zero3",
            "9.67 GB per device; unknown for 1 cell; 1.31x the tokens/s of ddp with 31 % less memory",
        ),
        ("efficiency", "zero2", "keeps 82.4 % of the throughput per device of 2 devices; ddp keeps 73.0 %"),
    ],
)
def test_the_seeds_figures_are_read_against_their_own_ddp(goal: str, strategy: str, said: str) -> None:
    found = of_goal(goal, *SEEDS)
    assert found.cell_id == next(one.cell_id for one in SEEDS if one.subject.strategy == strategy)
    assert said in found.sentence


def test_a_front_holds_who_is_not_beaten_in_both() -> None:
    assert strategies_on_front(*SEEDS) == {"zero2", "zero3"}


def test_of_two_that_are_as_fast_only_the_thriftier_is_on_the_front() -> None:
    assert strategies_on_front(cell(peak_vram_gb=9.0), cell(strategy="fsdp", peak_vram_gb=8.0)) == {"fsdp"}


def test_who_is_slower_with_the_same_memory_is_not_on_the_front() -> None:
    slower = cell(strategy="fsdp", tokens_per_sec=7_000.0, peak_vram_gb=9.0)
    assert strategies_on_front(cell(peak_vram_gb=9.0), slower) == {"ddp"}


def test_where_no_memory_is_known_the_fastest_is_the_front_and_the_advice_says_why() -> None:
    cells = (cell(), cell(strategy="fsdp", tokens_per_sec=9_000.0))
    assert strategies_on_front(*cells) == {"fsdp"}
    found = of_goal("memory", *cells)
    assert found.cell_id is None
    assert found.sentence == "No accelerator memory was measured."


def test_each_number_of_devices_has_a_front_of_its_own() -> None:
    small, large = cell(peak_vram_gb=9.0), cell(world_size=4, tokens_per_sec=9_000.0, peak_vram_gb=8.0)
    assert advise((small, large))[1] == {small.cell_id, large.cell_id}


def test_ddp_of_another_batch_is_no_baseline() -> None:
    best = cell(strategy="zero2", tokens_per_sec=9_000.0)
    assert "ddp" not in of_goal("throughput", best, cell(micro_batch=2)).sentence


def test_without_ddp_the_next_fastest_strategy_is_what_the_best_is_held_against() -> None:
    cells = (
        cell(strategy="zero2", tokens_per_sec=9_000.0),
        cell(strategy="fsdp", tokens_per_sec=6_000.0),
        cell(strategy="zero3", tokens_per_sec=3_000.0),
    )
    assert "1.50x the tokens/s of fsdp" in of_goal("throughput", *cells).sentence


def test_strategies_that_only_noise_tells_apart_are_named() -> None:
    cells = (
        cell(tokens_per_sec=9_000.0),
        cell(strategy="fsdp", tokens_per_sec=8_990.0),
        cell(strategy="zero1", tokens_per_sec=8_000.0),
    )
    sure = [
        replace(one, tokens_per_sec=replace(found, low=found.median - 50, high=found.median + 50))
        for one in cells
        if (found := one.tokens_per_sec)
    ]
    assert of_goal("throughput", *sure).sentence.endswith("; fsdp is not shown to be slower.")


def test_one_world_size_says_nothing_of_efficiency() -> None:
    found = of_goal("efficiency", cell(scaling_efficiency_pct=100.0, scaling_baseline_world_size=2))
    assert (found.cell_id, found.sentence) == (None, "Nothing was measured at two world sizes.")


def test_few_runs_and_simulated_ones_are_called_so() -> None:
    found = of_goal("throughput", cell(num_runs=1, flags=("simulated",)))
    assert found.sentence.endswith("(1 run, simulated).")


def test_a_group_whose_cells_all_failed_gets_a_sentence_for_every_goal() -> None:
    advice, front = advise((cell(tokens_per_sec=None, status="oom"),))
    assert {found.goal for found in advice} == {"throughput", "memory", "efficiency"}
    assert all(found.cell_id is None and found.sentence == "No cell has numbers." for found in advice)
    assert front == frozenset()


def test_groups_and_models_are_advised_apart() -> None:
    advice, _ = advise((cell(), cell(group="red"), cell(model="llama-8b")))
    assert [(found.group, found.model) for found in advice if found.goal == "memory"] == [
        ("blue", "llama-1b"), ("blue", "llama-8b"), ("red", "llama-1b"),
    ]  # fmt: skip


def test_nothing_is_advised_of_nothing() -> None:
    assert advise(()) == ((), frozenset())
