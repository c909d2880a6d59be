"""What is predicted of a rank's memory is what it takes: peaks of real processes, on gloo.

``pytest -s`` shows every kind of memory of every case beside what was measured.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import get_args

import pytest
import torch
import torch.distributed as dist

from jobs.sweeps.memory_forecast import MemoryPrediction, mask_of_parts_bytes, predict_memory
from jobs.training.benchmark.feed import BatchFeed
from jobs.training.device import host_memory
from jobs.training.models.decoder import Block, Positions, positions_of, within_samples
from jobs.training.precision import COMPUTE_DTYPE
from jobs.training.step import train_step
from jobs.training.strategies.build import build
from jobs.training.task.job import OptimizerConfig, Precision, Recipe, Strategy
from jobs.training.task.presets import preset
from jobs.training.task.settings import Checkpointing, Compile, CrossEntropy, Fp8, Offload
from reporting.results.settings import settings_text
from tests.live.ranks import run_ranks
from tests.live.trainings import STRATEGIES

CPU = torch.device("cpu")
MODELS = (
    "llama-mini",
    # Families differ by little, and each case takes a fresh pair of processes.
    pytest.param("qwen-mini", marks=pytest.mark.soak),
    pytest.param("mistral-mini", marks=pytest.mark.soak),
)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
# The third step is the first in which all is there that will ever be: ddp renews its buckets in the second.
NUM_STEPS = 3
DEADLINE_S = 600.0
# One whose optimizer has all of the state, and the faster one of those that share out all.
QUICK = ("fsdp",)


def recipe_for(
    model: str, strategy: Strategy, *, grad_accum: int = 1, precision: Precision = "fp32", seq_len: int
) -> Recipe:
    return Recipe(
        model=preset(model),
        strategy=strategy,
        world_size=2,
        seq_len=seq_len,
        micro_batch=1,
        grad_accum=grad_accum,
        precision=precision,
        seed=0,
        optimizer=OptimizerConfig(),
    )


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "strategy",
    [one if one in QUICK else pytest.param(one, marks=pytest.mark.soak) for one in STRATEGIES],
)
def test_a_worker_grows_by_what_was_predicted(strategy: Strategy, model: str, tmp_path: Path) -> None:
    recipe = recipe_for(model, strategy, seq_len=384)
    growth = max(
        run_ranks(grow, recipe, num_ranks=2, tmp_path=tmp_path, deadline_s=DEADLINE_S, from_scratch=True)
    )
    predicted = predict_memory(recipe, on_cpu=True)
    print(row(recipe, predicted, growth))
    assert predicted.total == pytest.approx(growth, rel=0.25)


def cells_of(how: Compile) -> list[Recipe]:
    """Every strategy and precision with what exchanges time for memory; part of it in another family too."""
    if how == "none":
        kept = (("none", "whole"), ("full", "whole"), ("full", "chunked"), ("selective", "chunked"))
        cells = [*product(["llama-mini"], STRATEGIES, PRECISIONS, kept)]
        cells += product(["qwen-mini"], ("ddp", "zero3"), PRECISIONS, kept)
    else:
        kept = (("none", "whole"), ("selective", "whole"), ("full", "whole"))
        strategies = [strategy for strategy in STRATEGIES if strategy != "zero3"]
        cells = [*product(["llama-mini", "qwen-mini"], strategies, PRECISIONS, kept)]
        cells += product(["llama-mini"], strategies, PRECISIONS, [("full", "chunked")])
    return [
        replace(
            recipe_for(model, strategy, precision=precision, seq_len=1024),
            activation_checkpointing=mode,
            cross_entropy=loss,
            compile=how,
        )
        for model, strategy, precision, (mode, loss) in cells
    ]


@pytest.mark.soak
@pytest.mark.parametrize("how", get_args(Compile))
def test_a_grid_of_cells_is_forecast_within_a_tenth(how: Compile, tmp_path: Path) -> None:
    recipes = cells_of(how)
    assert len(recipes) >= 40
    assert largest_error(f"compile: {how}", recipes, tmp_path) <= 0.1


@pytest.mark.soak
def test_simulated_fp8_is_forecast_within_15_percent(tmp_path: Path) -> None:
    """What torchao's emulation holds for a moment, and the heap for longer, is not known better."""
    strategies: tuple[Strategy, ...] = ("ddp", "fsdp")
    ways: tuple[Fp8, ...] = ("tensorwise", "rowwise")
    kept: tuple[tuple[Checkpointing, CrossEntropy], ...] = (("none", "whole"), ("full", "chunked"))
    recipes = [
        replace(
            recipe_for("llama-mini", strategy, precision="bf16", seq_len=1024),
            fp8=how,
            activation_checkpointing=mode,
            cross_entropy=loss,
        )
        for strategy, how, (mode, loss) in product(strategies, ways, kept)
    ]
    assert largest_error("fp8", recipes, tmp_path) <= 0.15


def largest_error(what: str, recipes: Sequence[Recipe], tmp_path: Path) -> float:
    errors = []
    for recipe in recipes:
        growth = max(
            run_ranks(grow, recipe, num_ranks=2, tmp_path=tmp_path, deadline_s=DEADLINE_S, from_scratch=True)
        )
        predicted = predict_memory(recipe, on_cpu=True)
        print(row(recipe, predicted, growth))
        errors.append(predicted.total / growth - 1)
    print(distribution(what, errors))
    return max(map(abs, errors))


def distribution(what: str, errors: list[float]) -> str:
    sizes = sorted(map(abs, errors))
    tenths = ", ".join(f"{sizes[len(sizes) * tenth // 10]:.1%}" for tenth in (1, 5, 9))
    return (
        f"{what}: {len(errors)} cells: error {min(errors):+.1%} to {max(errors):+.1%}, "
        f"{fmean(errors):+.1%} in the mean; a tenth, half, nine tenths of them are below {tenths}"
    )


@pytest.mark.parametrize("model", ["llama-tiny", "qwen-3-tiny"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("mode", get_args(Checkpointing))
def test_a_compiled_block_keeps_what_was_predicted(
    mode: Checkpointing, precision: Precision, model: str
) -> None:
    """To the byte. What is kept is decided before any kernel is written, so none is."""
    recipe = replace(
        recipe_for(model, "fsdp", precision=precision, seq_len=64),
        activation_checkpointing=mode,
        compile="block",
    )
    kept = kept_of_block(recipe, backend="aot_eager_decomp_partition")
    assert kept == predicted_of_block(recipe)


def test_a_block_keeps_what_was_predicted() -> None:
    """But for what norms keep of their sums."""
    for model, precision in product(("llama-tiny", "qwen-3-tiny"), PRECISIONS):
        recipe = recipe_for(model, "fsdp", precision=precision, seq_len=64)
        assert kept_of_block(recipe) == pytest.approx(predicted_of_block(recipe), rel=0.01)


def kept_of_block(recipe: Recipe, backend: str | None = None) -> float:
    """The bytes for one token that a block's forward pass keeps, besides its weights and the rotation."""
    dtype = COMPUTE_DTYPE[recipe.precision]
    block = Block(recipe.model, replace(recipe, compile="none")).to(dtype)
    positions = positions_of(recipe.model, recipe.seq_len, CPU, dtype)
    hidden = torch.zeros(1, recipe.seq_len, recipe.model.hidden_size, dtype=dtype, requires_grad=True)
    kept: dict[int, tuple[int, torch.Tensor]] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        # The state of the random generator, which checkpointing keeps, is not one of the block's.
        if tensor.dtype != torch.uint8:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    torch.compiler.reset()
    run = Block.forward if backend is None else torch.compile(Block.forward, fullgraph=True, backend=backend)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = run(block, hidden, positions.rotation, positions.mask, positions.grouped)
    assert out.requires_grad
    for other in (*block.parameters(), *positions.rotation):
        kept.pop(other.untyped_storage().data_ptr(), None)
    return sum(num_bytes for num_bytes, _ in kept.values()) / recipe.seq_len


def test_a_mask_that_keeps_documents_apart_is_held_once_for_all_heads_and_blocks() -> None:
    for precision, seq_len in product(PRECISIONS, (64, 61)):
        recipe = recipe_for("llama-tiny", "fsdp", precision=precision, seq_len=seq_len)
        recipe = replace(recipe, micro_batch=3)
        dtype = COMPUTE_DTYPE[recipe.precision]
        plain = positions_of(recipe.model, recipe.seq_len, CPU, dtype)
        begins = torch.zeros(recipe.micro_batch, recipe.seq_len, dtype=torch.bool)
        begins[:, ::10] = True
        apart = within_samples(recipe.model, plain, begins)
        more = kept_of_blocks(recipe, apart) - kept_of_blocks(recipe, plain)
        assert more == mask_of_parts_bytes(recipe)


def kept_of_blocks(recipe: Recipe, positions: Positions) -> int:
    """The bytes that the forward passes of two blocks keep, besides their weights and the rotation."""
    dtype = COMPUTE_DTYPE[recipe.precision]
    blocks = [Block(recipe.model, recipe).to(dtype) for _ in range(2)]
    size = (recipe.micro_batch, recipe.seq_len, recipe.model.hidden_size)
    hidden = torch.zeros(size, dtype=dtype, requires_grad=True)
    kept: dict[int, tuple[int, torch.Tensor]] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        for block in blocks:
            hidden = block(hidden, positions.rotation, positions.mask, positions.grouped)
    for other in (*(one for block in blocks for one in block.parameters()), *positions.rotation):
        kept.pop(other.untyped_storage().data_ptr(), None)
    return sum(num_bytes for num_bytes, _ in kept.values())


def predicted_of_block(recipe: Recipe) -> float:
    """The same as it is predicted: what one block more adds, where activations are the peak."""
    recipe = replace(recipe, seq_len=2**16)
    longer = replace(recipe, model=replace(recipe.model, num_layers=recipe.model.num_layers + 1))
    less, more = (predict_memory(one, on_cpu=True).activations for one in (recipe, longer))
    return (more - less) / recipe.seq_len


@pytest.mark.soak
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("offload", get_args(Offload))
@pytest.mark.parametrize(
    ("strategy", "world_size", "within"),
    [("fsdp", 2, None), ("fsdp", 4, None), ("fsdp", 4, 2), ("zero3", 2, None), ("zero3", 4, None)],
)
def test_where_the_state_lies_is_forecast_too(
    strategy: Strategy,
    world_size: int,
    within: int | None,
    offload: Offload,
    precision: Precision,
    tmp_path: Path,
) -> None:
    """On a CPU offloaded state is in the same memory."""
    plain = recipe_for("llama-mini", strategy, precision=precision, seq_len=384, grad_accum=2)
    recipe = replace(plain, world_size=world_size, shard_within=within, offload=offload)
    ranks = run_ranks(
        grow, recipe, num_ranks=world_size, tmp_path=tmp_path, deadline_s=DEADLINE_S, from_scratch=True
    )
    predicted = predict_memory(recipe, on_cpu=True)
    print(row(recipe, predicted, max(ranks)))
    assert predicted.total == pytest.approx(max(ranks), rel=0.12)


def grow(recipe: Recipe) -> int:
    """Runs on a rank that never trained before, as a run's worker does."""
    host_memory.return_large_pieces()
    return train(recipe)


def train(recipe: Recipe) -> int:
    """Runs on a rank: by how many bytes its peak was above where it started."""
    before = host_memory.reset_peak()
    engine = build(recipe, CPU)
    feed = BatchFeed(recipe, dist.get_rank(), CPU)
    for step in range(NUM_STEPS):
        train_step(engine, feed.of_step(step))
    growth = host_memory.peak_bytes() - before
    engine.close()
    return growth


def row(recipe: Recipe, predicted: MemoryPrediction, growth: int) -> str:
    kinds = "  ".join(
        f"{kind.name} {getattr(predicted, kind.name) / 1e6:.0f}" for kind in fields(MemoryPrediction)
    )
    return (
        f"\n{recipe.model.name} {recipe.strategy} on {recipe.world_size} {recipe.precision} "
        f"x{recipe.grad_accum} {settings_text(recipe)} (MB): {kinds}"
        f"  total {predicted.total / 1e6:.0f}  measured {growth / 1e6:.0f}"
        f"  predicted/measured {predicted.total / growth:.2f}"
        f"  without overhead {(predicted.total - predicted.overhead) / growth:.2f}"
    )
