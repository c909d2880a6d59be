"""Predicted memory where theory leaves no doubt; ``test_memory_prediction`` holds it to real processes."""

from dataclasses import replace
from typing import get_args

import pytest

from jobs.spec_schema.combinations import impossible
from jobs.sweeps.memory_forecast import mask_of_parts_bytes, offloaded_bytes, predict_memory
from jobs.training.task.job import OptimizerConfig, Precision, Recipe, Strategy
from jobs.training.task.presets import preset
from jobs.training.task.settings import Checkpointing

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

LLAMA_8B = Recipe(
    model=preset("llama-3.1-8b"),
    strategy="ddp",
    world_size=8,
    seq_len=2048,
    micro_batch=1,
    grad_accum=1,
    precision="fp32",
    seed=0,
    optimizer=OptimizerConfig(),
)


def test_ddp_in_fp32_takes_sixteen_bytes_for_each_parameter_and_more() -> None:
    predicted = predict_memory(LLAMA_8B, on_cpu=False)
    assert predicted.parameters == predicted.gradients == 4 * LLAMA_8B.model.num_parameters
    assert predicted.moments == 8 * LLAMA_8B.model.num_parameters
    assert predicted.total > 16 * LLAMA_8B.model.num_parameters


def test_an_8b_model_in_slices_fits_eight_cards_of_80_gb_and_whole_it_does_not() -> None:
    recipe = replace(LLAMA_8B, precision="bf16")
    assert predict_memory(replace(recipe, strategy="zero3"), on_cpu=False).total < 50e9
    assert predict_memory(replace(recipe, strategy="fsdp"), on_cpu=False).total < 50e9
    assert predict_memory(recipe, on_cpu=False).total > 80e9


def test_an_8b_model_at_8192_tokens_fits_in_30_gib_once_little_is_kept() -> None:
    recipe = replace(LLAMA_8B, strategy="fsdp", precision="bf16", seq_len=8192)
    frugal = replace(recipe, activation_checkpointing="full", cross_entropy="chunked")
    assert predict_memory(recipe, on_cpu=False).total > 70 * 2**30
    assert predict_memory(frugal, on_cpu=False).total < 30 * 2**30


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_computed_again_is_not_held(strategy: Strategy, precision: Precision, on_cpu: bool) -> None:
    """Where activations and logits are most of the peak."""
    recipe = replace(LLAMA_8B, strategy=strategy, precision=precision, seq_len=16384)
    modes = [
        predict_memory(replace(recipe, activation_checkpointing=mode), on_cpu=on_cpu).total
        for mode in get_args(Checkpointing)
    ]
    assert modes == sorted(set(modes), reverse=True)
    chunked = predict_memory(replace(recipe, cross_entropy="chunked"), on_cpu=on_cpu).total
    assert chunked < modes[0]


@pytest.mark.parametrize("mode", get_args(Checkpointing))
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "strategy",
    [name for name in STRATEGIES if not impossible(replace(LLAMA_8B, strategy=name, compile="block"))],
)
def test_compiled_blocks_keep_no_more_than_others(
    strategy: Strategy, precision: Precision, mode: Checkpointing
) -> None:
    """On a CPU the compiler takes memory of its own, which is the same for every size."""
    eager = replace(
        LLAMA_8B, strategy=strategy, precision=precision, seq_len=16384, activation_checkpointing=mode
    )
    compiled = replace(eager, compile="block")
    before, after = (predict_memory(recipe, on_cpu=False) for recipe in (eager, compiled))
    assert after.activations < before.activations
    assert after.total < before.total
    tiny, compiled_tiny = (
        replace(recipe, model=preset("llama-tiny"), seq_len=8) for recipe in (eager, compiled)
    )
    compiler = (
        predict_memory(compiled_tiny, on_cpu=True).overhead - predict_memory(tiny, on_cpu=True).overhead
    )
    assert 50e6 < compiler < 300e6


@pytest.mark.parametrize(
    ("strategy", "bytes_per_parameter"),
    [("ddp", 16), ("fsdp", 12 / 8), ("zero1", 4 + 12 / 8), ("zero2", 4 + 12 / 8), ("zero3", 20 / 8)],
)
def test_training_state_is_what_each_strategy_is_known_for(
    strategy: Strategy, bytes_per_parameter: float
) -> None:
    """In fp32 on 8 ranks, as the only backward pass of a step starts. ZeRO keeps masters in fp32 too."""
    predicted = predict_memory(replace(LLAMA_8B, strategy=strategy, micro_batch=8), on_cpu=False)
    state = predicted.parameters + predicted.masters + predicted.moments + predicted.gradients
    assert state / LLAMA_8B.model.num_parameters == pytest.approx(bytes_per_parameter, rel=1e-6)


def test_a_copy_within_four_of_eight_ranks_takes_the_state_of_four() -> None:
    fsdp = replace(LLAMA_8B, strategy="fsdp", precision="bf16")
    within, of_four = replace(fsdp, shard_within=4), replace(fsdp, world_size=4)
    assert predict_memory(within, on_cpu=False) == predict_memory(of_four, on_cpu=False)
    assert predict_memory(replace(fsdp, shard_within=8), on_cpu=False) == predict_memory(fsdp, on_cpu=False)


def test_what_is_offloaded_is_not_on_the_device() -> None:
    fsdp = replace(LLAMA_8B, strategy="fsdp", precision="bf16")
    offloaded = predict_memory(replace(fsdp, offload="optimizer"), on_cpu=False)
    assert (offloaded.moments, offloaded.masters) == (0, 0)
    assert offloaded.parameters == LLAMA_8B.model.num_parameters * 4 / 8
    zero3 = replace(fsdp, strategy="zero3", offload="optimizer")
    offloaded = predict_memory(zero3, on_cpu=False)
    assert (offloaded.moments, offloaded.masters, offloaded.gradients) == (0, 0, 0)


@pytest.mark.parametrize(
    ("strategy", "shard_within", "bytes_per_parameter"),
    [("fsdp", None, 8 / 8), ("fsdp", 4, 8 / 4), ("fsdp", 1, 8), ("zero3", None, 20 / 8)],
)
def test_what_is_offloaded_is_in_host_memory(
    strategy: Strategy, shard_within: int | None, bytes_per_parameter: float
) -> None:
    """As ``test_where_state_lies`` finds it in real ranks."""
    recipe = replace(LLAMA_8B, strategy=strategy, precision="bf16", shard_within=shard_within)
    assert offloaded_bytes(recipe) == 0
    found = offloaded_bytes(replace(recipe, offload="optimizer"))
    assert found / recipe.model.num_parameters == pytest.approx(bytes_per_parameter)


@pytest.mark.parametrize("strategy", ["fsdp", "zero3"])
def test_on_a_cpu_offloading_saves_nothing(strategy: Strategy) -> None:
    recipe = replace(LLAMA_8B, strategy=strategy)
    usual = predict_memory(recipe, on_cpu=True)
    offloaded = predict_memory(replace(recipe, offload="optimizer"), on_cpu=True)
    assert offloaded.moments == usual.moments
    assert offloaded.total >= usual.total


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_more_of_anything_never_takes_less(strategy: Strategy, precision: Precision, on_cpu: bool) -> None:
    recipe = replace(LLAMA_8B, strategy=strategy, precision=precision)
    base = predict_memory(recipe, on_cpu=on_cpu).total
    assert predict_memory(replace(recipe, seq_len=4096), on_cpu=on_cpu).total > base
    assert predict_memory(replace(recipe, micro_batch=2), on_cpu=on_cpu).total > base
    assert predict_memory(replace(recipe, grad_accum=4), on_cpu=on_cpu).total >= base
    assert predict_memory(replace(recipe, world_size=16), on_cpu=on_cpu).total <= base


def test_short_sequences_peak_when_all_gradients_are_there_and_no_activations() -> None:
    short = replace(LLAMA_8B, strategy="fsdp", seq_len=16)
    predicted = predict_memory(short, on_cpu=False)
    assert predicted.activations == predicted.logits == 0
    assert predicted.gradients == pytest.approx(4 * short.model.num_parameters / 8)


@pytest.mark.parametrize(("seq_len", "is_more"), [(8192, False), (65536, True)])
def test_casts_to_fp8_count_where_they_are_more_than_a_chunk_of_logits(seq_len: int, is_more: bool) -> None:
    usual = replace(
        LLAMA_8B, strategy="fsdp", precision="bf16", seq_len=seq_len,
        activation_checkpointing="full", cross_entropy="chunked",
    )  # fmt: skip
    eager, compiled = (
        predict_memory(replace(recipe, fp8="rowwise"), on_cpu=False).total
        - predict_memory(recipe, on_cpu=False).total
        for recipe in (usual, replace(usual, compile="block"))
    )
    assert (eager > 0) == is_more
    assert eager < 1.05 * 9 * seq_len * usual.model.intermediate_size
    assert 0 <= compiled <= eager


def test_a_window_that_bites_costs_a_mask_and_one_that_does_not_costs_nothing() -> None:
    mistral = replace(LLAMA_8B, model=preset("mistral-7b-v0.1"), precision="bf16")
    unlimited = replace(mistral, model=replace(mistral.model, sliding_window=None))
    within, beyond = 4096, 8192
    for length, is_larger in ((within, False), (beyond, True)):
        windowed = predict_memory(replace(mistral, seq_len=length), on_cpu=True).activations
        plain = predict_memory(replace(unlimited, seq_len=length), on_cpu=True).activations
        assert windowed - plain == (2 * length**2 if is_larger else 0)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_flex_attention_has_no_mask_for_a_window_and_takes_key_heads_as_they_are(
    precision: Precision,
) -> None:
    mistral = replace(
        LLAMA_8B,
        model=preset("mistral-7b-v0.1"),
        precision=precision,
        seq_len=8192,
        attention="flex",
    )
    unlimited = replace(mistral, model=replace(mistral.model, sliding_window=None))
    assert predict_memory(mistral, on_cpu=False) == predict_memory(unlimited, on_cpu=False)
    flex, usual, by_mask = (
        predict_memory(one, on_cpu=False).activations
        for one in (mistral, replace(unlimited, attention="auto"), replace(mistral, attention="efficient"))
    )
    # Without a mask, only fp32 has them repeated.
    assert flex < by_mask
    assert (flex < usual) == (precision == "fp32")
    assert flex <= usual


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize("mode", get_args(Checkpointing))
def test_documents_that_are_kept_apart_take_a_mask_for_each_row(mode: Checkpointing, on_cpu: bool) -> None:
    recipe = replace(
        LLAMA_8B,
        precision="bf16",
        strategy="fsdp",
        seq_len=8192,
        micro_batch=2,
        activation_checkpointing=mode,
    )
    assert mask_of_parts_bytes(recipe) == 2 * 2 * 8192**2
    causal, apart = (predict_memory(recipe, on_cpu=on_cpu, in_parts=in_parts) for in_parts in (False, True))
    more = apart.activations - causal.activations - mask_of_parts_bytes(recipe)
    # With a mask no kernel of a device takes grouped keys and values, so each block's are repeated.
    model = recipe.model
    repeated = 2 * 2 * (model.attention_size - model.kv_size) * 2 * 8192
    num_kept = {"none": model.num_layers, "selective": 1, "full": 1}[mode]
    assert more == (0 if on_cpu else num_kept * repeated)


def test_the_mask_is_there_as_the_backward_pass_reaches_the_first_block() -> None:
    """Where that is the peak: all gradients are alive, and little else."""
    recipe = replace(LLAMA_8B, strategy="zero1", activation_checkpointing="full", seq_len=8192)
    causal, apart = (predict_memory(recipe, on_cpu=True, in_parts=in_parts) for in_parts in (False, True))
    assert causal.gradients > 4 * recipe.model.num_parameters
    assert causal.logits == 0
    assert apart.activations - causal.activations == mask_of_parts_bytes(recipe)
