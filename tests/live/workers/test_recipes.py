"""What a training is asked for, each strategy does alike: its schedule, its clipping, its first weights."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from checkpointing.errors import Unfit
from jobs.training.data.synthetic import make_batches
from jobs.training.models.decoder import Decoder
from jobs.training.models.hugging_face import tensor_shapes
from jobs.training.state.pretrained import begin_with
from jobs.training.step import train_step
from jobs.training.strategies.build import build
from jobs.training.strategies.contract import Engine
from jobs.training.task.context import Context
from jobs.training.task.job import Recipe, Strategy
from jobs.training.task.presets import PRESETS, preset
from jobs.training.task.schedules import lr_factor
from tests.live.ranks import run_ranks
from tests.live.trainings import CPU, mean_over_ranks, recipe_for

NUM_STEPS, CLIP_NORM = 6, 0.05
NATIVE: tuple[Strategy, ...] = ("ddp", "fsdp")
OURS_AND_DEEPSPEEDS: tuple[Strategy, ...] = ("ddp", "zero1", "zero2", "zero3")
RANKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What ``NUM_STEPS`` steps of training showed; ``moment_norm`` is that of all first moments after one."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    first_grad_norm: float
    moment_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """``foreign_loss`` is that of ``FOREIGN`` on the first batch; ``refused`` what a wrong model was told."""

    seen: dict[Strategy, Seen]
    foreign_loss: dict[Strategy, float]
    refused: str


def recipe(strategy: Strategy) -> Recipe:
    plain = recipe_for(strategy, world_size=RANKS, grad_accum=1)
    optimizer = replace(
        plain.optimizer,
        warmup_steps=2,
        schedule="cosine",
        decay_steps=NUM_STEPS,
        min_lr_ratio=0.1,
        clip_norm=CLIP_NORM,
    )
    # Its first weights are spread more widely than the presets', whose spread each strategy could guess.
    return replace(plain, optimizer=optimizer, model=replace(plain.model, init_std=0.04))


def look(folder: Path, strategies: tuple[Strategy, ...]) -> Found:
    """Runs on a rank."""
    return Found(
        seen={strategy: train(recipe(strategy)) for strategy in strategies},
        foreign_loss={strategy: loss_of_foreign(recipe(strategy), folder) for strategy in strategies},
        refused=refusal(recipe(strategies[-1]), folder),
    )


def train(wanted: Recipe) -> Seen:
    engine = build(wanted, CPU)
    batches = make_batches(wanted, dist.get_rank(), CPU)
    rates, losses = [engine.learning_rate], [mean_over_ranks(train_step(engine, batches.load(0)))]
    norm, moment_norm = engine.grad_norm, norm_of_moments(engine)
    assert norm is not None
    first = float(norm)
    for step in range(1, NUM_STEPS):
        rates.append(engine.learning_rate)
        losses.append(mean_over_ranks(train_step(engine, batches.load(step))))
    engine.close()
    return Seen(rates=tuple(rates), losses=tuple(losses), first_grad_norm=first, moment_norm=moment_norm)


def norm_of_moments(engine: Engine) -> float:
    """Over all ranks, each of which has its own elements."""
    own = [piece.values for piece in engine.pieces() if piece.name.startswith("exp_avg/")]
    total = torch.stack([values.square().sum() for values in own if values.numel()]).sum()
    dist.all_reduce(total)
    return float(total.sqrt())


def loss_of_foreign(wanted: Recipe, folder: Path) -> float:
    engine = build(wanted, CPU)
    begin_with(folder, wanted.model, engine)
    (ids, labels), *_ = make_batches(wanted, dist.get_rank(), CPU).load(0)
    loss = mean_over_ranks(engine.evaluate(ids, labels))
    engine.close()
    return loss


def refusal(wanted: Recipe, folder: Path) -> str:
    """Rank 1 has no such folder."""
    engine = build(wanted, CPU)
    try:
        begin_with(folder / "none" if dist.get_rank() else folder, wanted.model, engine)
    except Unfit as error:
        return str(error)
    finally:
        engine.close()
    return "begun"


def here() -> Context:
    rank = dist.get_rank()
    return Context(rank=rank, world_size=dist.get_world_size(), local_rank=rank, device=CPU)


def foreign() -> Decoder:
    """Weights that no seed of ours would give."""
    decoder = Decoder(preset("llama-tiny"))
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
    return decoder


@pytest.fixture(scope="module", params=[NATIVE, pytest.param(OURS_AND_DEEPSPEEDS, marks=pytest.mark.soak)])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("foreign")
    save_file(dict(foreign().state_dict()), folder / "model.safetensors")
    first, second = run_ranks(look, folder, request.param, num_ranks=RANKS, tmp_path=folder)
    assert second == first
    return first


def test_every_strategy_goes_by_the_same_schedule_to_the_bit(found: Found) -> None:
    optimizer = recipe("ddp").optimizer
    expected = tuple(optimizer.lr * lr_factor(step, optimizer) for step in range(NUM_STEPS))
    assert {seen.rates for seen in found.seen.values()} == {expected}
    assert expected[2] == optimizer.lr > expected[3] > expected[-1] > optimizer.lr * 0.1


def test_every_strategy_clips_gradients_to_the_same_norm(found: Found) -> None:
    ddp, beta1 = found.seen["ddp"], recipe("ddp").optimizer.beta1
    assert ddp.first_grad_norm > 2 * CLIP_NORM
    for strategy, seen in found.seen.items():
        assert seen.moment_norm == pytest.approx((1 - beta1) * CLIP_NORM, rel=1e-4), strategy
        assert seen.first_grad_norm == pytest.approx(ddp.first_grad_norm, rel=1e-4), strategy
        assert seen.losses == pytest.approx(ddp.losses, rel=0, abs=1e-5), strategy


def test_every_strategy_begins_with_weights_that_others_have_trained(found: Found) -> None:
    decoder = foreign()
    batches = [make_batches(recipe("ddp"), rank, CPU).load(0)[0] for rank in range(RANKS)]
    with torch.no_grad():
        expected = sum(float(decoder(ids, labels)) for ids, labels in batches) / RANKS
    assert abs(expected - found.seen["ddp"].losses[0]) > 1e-2
    assert list(found.foreign_loss.values()) == pytest.approx([expected] * len(found.seen), abs=1e-5)


def test_weights_that_one_rank_does_not_find_are_refused_by_all(found: Found) -> None:
    assert found.refused.endswith("none is not there; expected a model's folder, on every node")


@pytest.mark.parametrize("name", [name for name in PRESETS if name.endswith(("-tiny", "-mini"))])
def test_a_presets_tensors_are_named_and_shaped_as_the_decoders(name: str) -> None:
    with torch.device("meta"):
        decoder = Decoder(preset(name))
    shapes = {name: tuple(parameter.shape) for name, parameter in decoder.named_parameters()}
    assert tensor_shapes(preset(name)) == shapes
