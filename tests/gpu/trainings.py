"""Short trainings on a device or on the CPU, from the same first values and with the same samples."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import torch

from checkpointing.errors import Unfit
from checkpointing.saving.snapshot import Piece
from jobs.training.data.synthetic import make_batches
from jobs.training.models.attention import kernel_of
from jobs.training.models.decoder import Decoder
from jobs.training.models.init import materialize, unfilled
from jobs.training.precision import COMPUTE_DTYPE
from jobs.training.step import train_step
from jobs.training.strategies.build import build
from jobs.training.strategies.contract import Counters, Engine
from jobs.training.task.job import OptimizerConfig, Precision, Recipe, Strategy
from jobs.training.task.presets import preset
from jobs.training.task.settings import Attention, Settings
from tests.gpu.here import CPU

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
NUM_STEPS = 5
PLAIN = Recipe(
    model=preset("llama-tiny"),
    strategy="ddp",
    world_size=1,
    seq_len=128,
    micro_batch=2,
    grad_accum=2,
    precision="fp32",
    seed=1,
    optimizer=OptimizerConfig(lr=1e-3, warmup_steps=5),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How a training went. ``refused`` is why it can't be had here; the rest is empty then."""

    losses: tuple[float, ...] = ()
    kernel: str = ""
    refused: str | None = None

    def distance(self, other: "Course") -> float:
        """The largest distance of the losses of a step."""
        return max(abs(one - its) for one, its in zip(self.losses, other.losses, strict=True))


def plain(strategy: Strategy, precision: Precision) -> Recipe:
    return replace(PLAIN, strategy=strategy, precision=precision)


def with_settings(recipe: Recipe, settings: Settings) -> Recipe:
    return replace(recipe, **settings_of(settings))


def settings_of(settings: Settings) -> Mapping[str, str]:
    """The fields of ``Settings`` alone, whatever has been added to them."""
    return {name: getattr(settings, name) for name in Settings.__dataclass_fields__}


def train_each(recipes: Sequence[Recipe], device: torch.device) -> list[Course]:
    """One engine after the other in this process."""
    return [train(recipe, device) for recipe in recipes]


def train(recipe: Recipe, device: torch.device) -> Course:
    try:
        engine = build(recipe, device)
    except Unfit as error:
        return Course(refused=str(error))
    try:
        set_first_values(engine, recipe)
        return Course(
            losses=tuple(steps(engine, recipe, range(NUM_STEPS), device)),
            kernel=kernel_of(recipe, device, COMPUTE_DTYPE[recipe.precision]),
        )
    finally:
        engine.close()


def steps(engine: Engine, recipe: Recipe, numbers: Iterable[int], device: torch.device) -> list[float]:
    """Does these steps; returns their losses."""
    batches = make_batches(recipe, 0, device)
    return [float(train_step(engine, batches.load(number))) for number in numbers]


def documents_in_rows(
    kernels: Sequence[Attention], device: torch.device
) -> list[tuple[Sequence[float], str] | tuple[str, None]]:
    """By each kernel, losses of some updates with rows of several documents, and which one ran; or why none
    did.
    """
    return [_documents_in_rows(replace(plain("ddp", "bf16"), attention=how), device) for how in kernels]


def _documents_in_rows(
    recipe: Recipe, device: torch.device
) -> tuple[Sequence[float], str] | tuple[str, None]:
    try:
        kernel = kernel_of(recipe, device, torch.bfloat16, within_samples=True)
    except Unfit as error:
        return str(error), None
    decoder = Decoder(recipe.model, Settings(attention=recipe.attention), torch.bfloat16)
    materialize(decoder, CPU, seed=recipe.seed, precision="fp32")
    decoder.to(device)
    rows = torch.arange(2 * 256, device=device).reshape(2, 256) * 7 % 500
    begins = rows % 61 == 0
    optimizer = torch.optim.SGD(decoder.parameters(), lr=0.05)
    losses = []
    for _ in range(NUM_STEPS):
        loss = decoder(rows, rows.roll(-1, 1), begins)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, kernel


def set_first_values(engine: Engine, recipe: Recipe) -> None:
    """Gives a fresh engine the values that the CPU draws: each kind of device draws its own."""
    decoder = unfilled(recipe, COMPUTE_DTYPE[recipe.precision])
    materialize(decoder, CPU, seed=recipe.seed, precision=recipe.precision)
    drawn = {name: parameter.detach().view(-1) for name, parameter in decoder.named_parameters()}
    for piece in engine.targets():
        _fill(piece, drawn)
    engine.restored(Counters(num_updates=0, num_skipped_updates=0))


@torch.no_grad()
def _fill(piece: Piece, drawn: Mapping[str, torch.Tensor]) -> None:
    kind, _, name = piece.name.partition("/")
    if kind == "param":
        piece.values.copy_(drawn[name][piece.start : piece.start + piece.values.numel()])
    else:
        piece.values.zero_()
