"""Which cells a sweep has, what makes a cell the same cell, and in which order runs are measured."""

import json
import re
from collections import Counter
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.stores.contract import check_name
from jobs.commandline.usage_error import SpecError
from jobs.spec_schema.sweep_spec import SweepSpec
from jobs.sweeps.grid import Cell, Run, expand, schedule
from jobs.training.task.presets import PRESETS
from tests.conftest import Golden
from tests.unit.builders import cells_of, sweep

SMOKE = Path(__file__).parents[3] / "jobs" / "specs" / "sweeps" / "smoke.yaml"
FOUR = {"strategy": ["ddp", "fsdp"], "world_size": [1, 2]}


def ids(**changes: Any) -> list[str]:
    return [cell.cell_id for cell in cells_of(sweep(**changes))]


def the_id(**changes: Any) -> str:
    (cell_id,) = ids(**changes)
    return cell_id


def load(tmp_path: Path, text: str) -> list[Cell]:
    (tmp_path / "sweep.yaml").write_text(text)
    return expand(SweepSpec.load(tmp_path / "sweep.yaml"), ["local"])


def test_the_cells_are_the_product_of_models_groups_and_axes() -> None:
    spec = sweep(models=["llama-tiny", "qwen-tiny"], groups=["a", "b"], axes=FOUR)
    points = {
        (cell.recipe.model.name, cell.group, cell.recipe.strategy, cell.recipe.world_size)
        for cell in expand(spec, [])
    }
    assert len(expand(spec, [])) == len(points) == 16


def test_auto_stands_for_all_groups_that_are_there() -> None:
    assert [cell.group for cell in expand(sweep(groups=["auto"]), ["nvidia", "amd"])] == ["nvidia", "amd"]


def test_identities_survive_a_reordered_file(tmp_path: Path) -> None:
    one = load(
        tmp_path,
        "name: trial\nmodels: [llama-tiny, qwen-tiny]\naxes: {strategy: [ddp, fsdp], world_size: [1, 2]}\n"
        "measure: {steps: 30, warmup: 5}\n",
    )
    other = load(
        tmp_path,
        "measure: {warmup: 5, steps: 30}\naxes:\n  world_size: [2, 1]\n  strategy: [fsdp, ddp]\n"
        "models: [qwen-tiny, llama-tiny]\nname: trial\n",
    )
    assert {cell.cell_id for cell in one} == {cell.cell_id for cell in other}
    assert {cell.readable_name for cell in one} == {cell.readable_name for cell in other}


def test_identities_survive_growing_axes() -> None:
    larger = {"strategy": ["zero2", "ddp", "fsdp"], "world_size": [4, 1, 2], "seq_len": [64, 128]}
    assert set(ids(axes=FOUR)) < set(ids(axes=larger, models=["qwen-tiny", "llama-tiny"]))


@pytest.mark.parametrize(
    "change",
    [
        {"name": "another"},
        {"store": "elsewhere"},
        {"repeats": 9},
        {"tier": "A"},
        {"order": "interleaved"},
        {"isolation": "run"},
        {"logging": "full"},
        {"limits": {"cell_timeout_s": 5, "memory_gb_per_worker": 1, "try_anyway": True}},
        {"overrides": {"local": {"environment": {}}}},
        {"include": [{"strategy": "ddp"}]},
        {"axes": {"strategy": ["ddp"], "world_size": [1]}},
        {"measure": {"profile_steps": 0}},
    ],
    ids=json.dumps,
)
def test_what_does_not_determine_a_result_leaves_the_identity(change: dict[str, Any]) -> None:
    assert the_id(**change) == the_id()


@pytest.mark.parametrize(
    "change",
    [
        {"models": ["qwen-tiny"]},
        {"groups": ["nvidia"]},
        {"seed": 1},
        {"share_nodes": True},
        {"spread": True},
        {"deterministic": True},
        {"grad_accum": 2},
        *(
            {"axes": {axis: [value]}}
            for axis, value in [
                ("strategy", "fsdp"),
                ("world_size", 2),
                ("seq_len", 65),
                ("micro_batch", 2),
                ("precision", "bf16"),
                ("activation_checkpointing", "full"),
                ("cross_entropy", "chunked"),
                ("compile", "block"),
                ("attention", "math"),
            ]
        ),
        *(
            {"axes": {"strategy": ["fsdp"], axis: [value]}}
            for axis, value in [("shard_within", 1), ("offload", "optimizer")]
        ),
        *(
            {"measure": {key: value}}
            for key, value in [
                ("steps", 99),
                ("warmup", 9),
                ("sync", "step"),
                ("max_s", 60),
                ("cooldown_s", 1),
                ("profile_steps", 1),
            ]
        ),
        *(
            {"optimizer": {key: value}}
            for key, value in [
                ("lr", 1e-4),
                ("beta1", 0.8),
                ("beta2", 0.9),
                ("eps", 1e-7),
                ("weight_decay", 0),
                ("warmup_steps", 1),
                ("clip_norm", 2),
            ]
        ),
        {"optimizer": {"schedule": "linear", "decay_steps": 50}},
        {"overrides": {"local": {"environment": {"NCCL_DEBUG": "INFO"}}}},
    ],
    ids=json.dumps,
)
def test_whatever_determines_a_result_changes_the_identity(change: dict[str, Any]) -> None:
    assert the_id(**change) != the_id()


@pytest.mark.parametrize("change", [{"num_layers": 3}, {"rope_theta": 1e6}, {"sliding_window": 64}])
def test_an_edited_preset_makes_new_cells(monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]) -> None:
    before = the_id()
    monkeypatch.setitem(PRESETS, "llama-tiny", replace(PRESETS["llama-tiny"], **change))
    assert the_id() != before


def test_another_groups_environment_leaves_the_identity() -> None:
    amd = {"amd": {"environment": {"NCCL_DEBUG": "INFO"}}}
    before = ids(groups=["nvidia", "amd"])
    after = ids(groups=["nvidia", "amd"], overrides=amd)
    assert before[0] == after[0]
    assert before[1] != after[1]


def test_the_identities_of_the_smoke_sweep_are_what_they_were(golden: Golden) -> None:
    """If this changes, every result that people have is measured again."""
    cells = expand(SweepSpec.load(SMOKE), ["local"])
    golden("smoke_cells.txt", "".join(f"{cell.cell_id} {cell.readable_name}\n" for cell in cells))


def test_a_cell_says_in_its_name_which_memory_it_saves() -> None:
    axes = {"activation_checkpointing": ["none", "full"], "cross_entropy": ["whole", "chunked"]}
    names = [cell.readable_name for cell in expand(sweep(axes=axes), ["local"])]
    assert names == [
        f"llama-tiny-ddp-ws1-seq64-mb1-fp32{settings}-local"
        for settings in ("", "-chunked-loss", "-full-checkpointing", "-full-checkpointing-chunked-loss")
    ]


def test_each_word_of_a_schedule_makes_other_cells() -> None:
    words: list[dict[str, Any]] = [
        {"schedule": "linear", "decay_steps": 50},
        {"schedule": "cosine", "decay_steps": 50},
        {"schedule": "cosine", "decay_steps": 60},
        {"schedule": "cosine", "decay_steps": 50, "min_lr_ratio": 0.1},
    ]
    assert len({the_id(optimizer=of) for of in words}) == len(words)


def test_a_schedule_that_is_named_as_it_always_was_leaves_the_identity() -> None:
    assert the_id(optimizer={"schedule": "constant"}) == the_id()


def test_a_sweeps_schedule_needs_an_end() -> None:
    with pytest.raises(ValueError, match=r"optimizer.decay_steps: is missing; a sweep's cells have no last"):
        sweep(optimizer={"schedule": "cosine"})


def test_include_adds_a_part_of_the_grid_beside_the_axes() -> None:
    cells = cells_of(sweep(axes=FOUR, include=[{"strategy": "zero3", "world_size": 4}]))
    assert Counter((cell.recipe.strategy, cell.recipe.world_size) for cell in cells) == Counter(
        [("ddp", 1), ("ddp", 2), ("fsdp", 1), ("fsdp", 2), ("zero3", 4)]
    )


def test_what_is_included_twice_is_one_cell() -> None:
    assert len(ids(include=[{"strategy": "ddp"}, {"world_size": 1}])) == 1


def test_exclude_takes_away_what_matches_all_that_it_names() -> None:
    cells = cells_of(sweep(axes=FOUR, exclude=[{"strategy": "ddp", "world_size": 2}]))
    assert [(cell.recipe.strategy, cell.recipe.world_size) for cell in cells] == [
        ("ddp", 1),
        ("fsdp", 1),
        ("fsdp", 2),
    ]


def test_a_sequence_too_long_for_one_model_may_be_excluded_for_it() -> None:
    models, axes = ["llama-tiny", "llama-mini"], {"seq_len": [1024]}
    cells = cells_of(sweep(models=models, axes=axes, exclude=[{"model": "llama-tiny", "seq_len": 1024}]))
    assert [cell.recipe.model.name for cell in cells] == ["llama-mini"]


def test_blocks_that_cannot_be_compiled_may_be_excluded_from_it() -> None:
    axes = {"strategy": ["zero2", "zero3"], "compile": ["none", "block"]}
    with pytest.raises(SpecError, match=r"axes.compile: block can't be had under zero3"):
        expand(sweep(axes=axes), ["local"])
    without = sweep(axes=axes, exclude=[{"strategy": "zero3", "compile": "block"}])
    assert len(expand(without, ["local"])) == 3


@pytest.mark.parametrize("changed", ["hidden_size", "intermediate_size", "num_heads", "num_kv_heads"])
def test_a_model_whose_sizes_fp8_cannot_take_is_refused_by_what_is_odd(
    changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = {"num_heads": 9} if changed == "num_kv_heads" else {"num_kv_heads": 1}
    odd = replace(PRESETS["llama-tiny"], head_dim=4, **shared, **{changed: 9})
    monkeypatch.setitem(PRESETS, "llama-tiny", odd)
    axes = {"precision": ["bf16"], "fp8": ["rowwise"]}
    with pytest.raises(
        SpecError, match=rf"axes.fp8: rowwise takes sizes in multiples of 16, but .*{changed}.* is (9|36)\b"
    ):
        expand(sweep(axes=axes), ["local"])


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_may_be_trained_in_fp8(name: str) -> None:
    axes = {"precision": ["bf16"], "fp8": ["tensorwise", "rowwise"]}
    assert len(expand(sweep(models=[name], axes=axes), ["local"])) == 2


def test_ways_of_fp8_are_cells_of_their_own() -> None:
    found = ids(axes={"precision": ["bf16"], "fp8": ["none", "tensorwise", "rowwise"]})
    assert len(set(found)) == 3
    assert found[:1] == ids(axes={"precision": ["bf16"]})


@pytest.mark.parametrize(
    ("impossible", "says"),
    [
        ({"strategy": "ddp", "shard_within": 2}, "2 can't be had under ddp; expected null, or fsdp"),
        (
            {"world_size": 2, "shard_within": 4},
            "4 does not divide 2 ranks; expected null for all ranks, or one of 1, 2,",
        ),
    ],
)
def test_numbers_of_neighbours_that_cannot_be_had_may_be_excluded(
    impossible: dict[str, Any], says: str
) -> None:
    axes = {"strategy": ["fsdp"], "world_size": [4], "shard_within": [None, *{impossible["shard_within"]}]}
    axes |= {axis: [*axes[axis], value] for axis, value in impossible.items() if axis != "shard_within"}
    with pytest.raises(SpecError, match=re.escape(f"axes.shard_within: {says}")):
        expand(sweep(axes=axes), ["local"])
    assert len(expand(sweep(axes=axes, exclude=[impossible]), ["local"])) == 3


def test_no_number_of_neighbours_can_be_selected_too() -> None:
    axes = {"strategy": ["fsdp"], "world_size": [4], "shard_within": [None, 2]}
    cells = expand(sweep(axes=axes, exclude=[{"shard_within": [None]}]), ["local"])
    assert [cell.recipe.shard_within for cell in cells] == [2]
    assert cells[0].readable_name.endswith("-sharded-within-2-local")
    assert len(expand(sweep(axes=axes, exclude=[{"shard_within": [2]}]), ["local"])) == 1


def test_only_fsdp_and_zero3_offload() -> None:
    axes = {"strategy": ["ddp", "fsdp", "zero1", "zero2", "zero3"], "offload": ["optimizer"]}
    with pytest.raises(SpecError) as refused:
        expand(sweep(axes=axes), ["local"])
    assert [problem.partition(";")[0] for problem in refused.value.problems] == [
        f"axes.offload: optimizer can't be had under {strategy}" for strategy in ("ddp", "zero1", "zero2")
    ]


def test_repeats_are_rounds_over_all_cells() -> None:
    spec = sweep(axes=FOUR, repeats=3)
    runs = schedule(spec, cells_of(spec))
    rounds = [list(round_) for _, round_ in groupby(runs, key=lambda run: run.repeat)]
    assert [run.order for run in runs] == list(range(1, 13))
    assert len(rounds) == 3
    assert all({run.cell.cell_id for run in round_} == set(ids(axes=FOUR)) for round_ in rounds)


def test_the_shuffled_order_is_the_same_each_time_and_another_for_each_round_and_seed() -> None:
    axes = {"strategy": ["ddp", "fsdp", "zero1", "zero2", "zero3"], "world_size": [1, 2, 4]}

    def order(**changes: Any) -> list[str]:
        spec = sweep(axes=axes, repeats=2, **changes)
        return [run.cell.readable_name for run in schedule(spec, cells_of(spec))]

    assert order() == order()
    assert order() != order(seed=1)
    assert order()[:15] != order()[15:]


def test_a_shuffled_round_does_not_always_begin_with_the_same_world_size() -> None:
    spec = sweep(axes={"world_size": [1, 2, 4]}, repeats=6)
    runs = schedule(spec, cells_of(spec))
    firsts = {run.cell.recipe.world_size for run in runs if (run.order - 1) % 3 == 0}
    assert len(firsts) > 1


def test_the_interleaved_order_is_the_grids_in_every_round() -> None:
    spec = sweep(axes={"strategy": ["ddp", "fsdp", "zero2"]}, repeats=2, order="interleaved")
    assert [run.cell.recipe.strategy for run in schedule(spec, cells_of(spec))] == [
        "ddp",
        "fsdp",
        "zero2",
    ] * 2


def test_within_a_round_the_cells_of_one_group_and_world_size_stand_together() -> None:
    spec = sweep(groups=["a", "b"], axes=FOUR, repeats=3)
    blocks = [key for key, _ in groupby(schedule(spec, expand(spec, [])), key=_block)]
    assert len(blocks) == len(set(blocks)) == 3 * 4


def _block(run: Run) -> tuple[int, str, int]:
    return (run.repeat, run.cell.group, run.cell.recipe.world_size)


@given(
    groups=st.lists(
        st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True), min_size=1, max_size=3, unique=True
    ),
    world_sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=3, unique=True),
    repeats=st.integers(1, 12),
)
def test_every_run_has_a_name_of_its_own_that_every_store_takes(
    groups: list[str], world_sizes: list[int], repeats: int
) -> None:
    if "auto" in groups:
        groups = ["auto"]
    spec = sweep(models=["mistral-7b-v0.1"], groups=groups, axes={"world_size": world_sizes}, repeats=repeats)
    runs = schedule(spec, expand(spec, ["local"]))
    names = [run.name for run in runs]
    assert len(set(names)) == len({run.run_id for run in runs}) == len(runs)
    assert all(check_name(f"sweeps/s/runs/{name}/result.json") for name in names)


def test_a_global_batch_says_how_many_micro_batches_a_step_has() -> None:
    cells = cells_of(sweep(axes={"world_size": [1, 2], "micro_batch": [1, 4]}, global_batch=16))
    assert [(cell.recipe.micro_batch, cell.recipe.grad_accum) for cell in cells] == [
        (1, 16), (4, 4), (1, 8), (4, 2),
    ]  # fmt: skip
    assert {cell.recipe.sequences_per_step for cell in cells} == {16}


def test_a_cell_is_the_same_whether_its_steps_are_told_by_global_batch_or_by_grad_accum() -> None:
    assert the_id(axes={"micro_batch": 4}, global_batch=16) == the_id(axes={"micro_batch": 4}, grad_accum=4)


def test_a_cell_that_asks_for_the_largest_micro_batch_is_one_cell_of_its_own() -> None:
    asked, *others = ids(axes={"micro_batch": ["max", 1, 2, 4]}, global_batch=4)
    assert asked not in others
    assert asked == the_id(
        axes={"micro_batch": "max"}, global_batch=4, repeats=7, limits={"try_anyway": True}
    )
    assert asked != the_id(axes={"micro_batch": "max"}, global_batch=8)
    (cell,) = cells_of(sweep(axes={"micro_batch": "max"}, global_batch=4))
    assert cell.readable_name == "llama-tiny-ddp-ws1-seq64-mbmax-fp32-local"


def test_the_largest_micro_batch_can_be_included_and_excluded() -> None:
    axes = {"micro_batch": [1, "max"], "strategy": ["ddp", "fsdp"]}
    cells = cells_of(sweep(axes=axes, global_batch=4, exclude=[{"micro_batch": "max", "strategy": "ddp"}]))
    assert [(cell.recipe.strategy, bool(cell.question)) for cell in cells] == [
        ("ddp", False), ("fsdp", False), ("fsdp", True),
    ]  # fmt: skip
    added = cells_of(sweep(include=[{"micro_batch": "max"}], global_batch=4))
    assert [bool(cell.question) for cell in added] == [False, True]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"axes": {"micro_batch": "max"}}, "global_batch: is missing; micro_batch max needs"),
        ({"include": [{"micro_batch": ["max"]}]}, "global_batch: is missing; micro_batch max needs"),
        ({"global_batch": 4, "grad_accum": 1}, "leave grad_accum out"),
    ],
)
def test_a_batch_that_is_told_twice_or_not_at_all_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        sweep(**changes)


@pytest.mark.parametrize("micro_batch", [3, "max"])
def test_a_global_batch_that_cannot_be_divided_names_the_combination(micro_batch: int | str) -> None:
    axes = {"world_size": [1, 2], "micro_batch": micro_batch}
    with pytest.raises(SpecError, match=r"global_batch: 9 sequences can't be divided among 2 devices"):
        cells_of(sweep(axes=axes, global_batch=9))


def test_all_cells_of_a_deterministic_sweep_are_and_without_the_key_identities_are_as_before() -> None:
    found = cells_of(sweep(deterministic=True, axes={"attention": ["auto", "math"]}))
    assert [cell.recipe.deterministic for cell in found] == [True, True]
    assert found[0].readable_name.endswith("-deterministic-local")
    assert the_id(deterministic=False) == the_id() == "650c5ad9e1fe923d"
    with pytest.raises(
        SpecError, match=r"axes\.attention: cudnn can't be had with deterministic: true, where"
    ):
        expand(sweep(deterministic=True, axes={"attention": ["cudnn"]}), ["local"])
