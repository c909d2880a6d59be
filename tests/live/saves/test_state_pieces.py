"""Whatever a training is saved under, it goes on under any strategy, on any number of ranks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
import torch
import torch.distributed as dist

from checkpointing.saving.snapshot import Piece
from jobs.training.data.synthetic import make_batches
from jobs.training.models.decoder import Decoder
from jobs.training.models.init import fill as fill_first_values
from jobs.training.step import train_step
from jobs.training.strategies.build import build
from jobs.training.strategies.contract import Counters, Engine
from jobs.training.task.job import Precision, Recipe, Strategy
from jobs.training.task.presets import ModelConfig, preset
from jobs.training.task.settings import Checkpointing, CrossEntropy, Fp8
from reporting.results.settings import settings_of
from tests.live import saved_pieces
from tests.live.ranks import run_ranks
from tests.live.trainings import CPU, STRATEGIES, mean_over_ranks, recipe_for

SAVED_AFTER = 3
NUM_STEPS = 6
SEQUENCES_PER_STEP = 4
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
PAIRS = tuple(product(STRATEGIES, STRATEGIES))
MOVES = ((2, 1), (1, 2), (2, 4), (4, 2))
# What they cut and what they keep whole differs most.
CROSSINGS: tuple[tuple[Strategy, Strategy], ...] = (
    *zip(STRATEGIES, STRATEGIES, strict=True),
    ("ddp", "zero3"),
    ("zero3", "fsdp"),
    ("fsdp", "zero1"),
)
# All that exchange time for memory; by default one training.
SETTINGS = tuple(product(STRATEGIES, get_args(Checkpointing), get_args(CrossEntropy)))
FEW_SETTINGS = (("fsdp", "selective", "chunked"),)
FP8: tuple[Fp8, ...] = ("tensorwise", "rowwise")
UNEVEN = 3  # Divides nothing of the model.


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A training saved as ``origin`` that goes on as ``now``."""

    origin: Recipe
    now: Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class SetBack:
    """A training that goes back from its end to where it was saved, in the same process and engine."""

    training: Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The steps after ``SAVED_AFTER``: losses over all ranks, and what this rank's pieces were at the end.

    ``learning_rate`` is the first one's.
    """

    learning_rate: float
    losses: tuple[float, ...]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a group of ranks does, in this order."""

    saved: list[Recipe] = field(default_factory=list)
    undisturbed: list[Recipe] = field(default_factory=list)
    resumed: list[Resumed] = field(default_factory=list)


Endings = dict[Recipe | Resumed | SetBack, Ending]


def training(strategy: Strategy, world_size: int, precision: Precision = "fp32") -> Recipe:
    """At one global batch, on however many ranks."""
    accumulated = max(1, SEQUENCES_PER_STEP // world_size)
    return recipe_for(strategy, world_size=world_size, precision=precision, grad_accum=accumulated)


def same(recipe: Recipe) -> Resumed:
    return Resumed(origin=recipe, now=recipe)


def moves(source: int, target: int) -> list[Resumed]:
    return [
        Resumed(origin=training(saved, source), now=training(resumed, target)) for saved, resumed in CROSSINGS
    ]


def carry_out(work: Work, folder: Path) -> Endings:
    """Runs on a rank."""
    endings: Endings = {}
    for recipe in work.saved:
        train_and_save(recipe, folder / place(recipe))
    dist.barrier()  # Every rank reads what all have saved.
    for recipe in work.undisturbed:
        endings |= train_undisturbed(recipe, folder / place(recipe))
    for resumed in work.resumed:
        endings[resumed] = resume(resumed.now, folder / place(resumed.origin))
    return endings


def place(recipe: Recipe) -> str:
    settings = "-".join(map(str, settings_of(recipe).values()))
    return f"{recipe.strategy}-{recipe.world_size}-{recipe.precision}-{settings}"


def train_and_save(recipe: Recipe, folder: Path) -> None:
    engine = build(recipe, CPU)
    before = views(engine.pieces())
    train(engine, recipe, range(SAVED_AFTER))
    assert views(engine.pieces()) == before
    saved_pieces.save(folder, dist.get_rank(), engine.pieces(), engine.counters())
    engine.close()


def train_undisturbed(recipe: Recipe, folder: Path) -> Endings:
    """Nobody asks for its pieces before its end, nor does anything else to it."""
    engine = build(recipe, CPU)
    train(engine, recipe, range(SAVED_AFTER))
    undisturbed = train_to_end(engine, recipe)
    restore(engine, folder)
    set_back = train_to_end(engine, recipe)
    engine.close()
    return {recipe: undisturbed, SetBack(training=recipe): set_back}


def resume(recipe: Recipe, folder: Path) -> Ending:
    engine = build(recipe, CPU)
    restore(engine, folder)
    ending = train_to_end(engine, recipe)
    engine.close()
    return ending


def restore(engine: Engine, folder: Path) -> None:
    saved, counters = saved_pieces.load(folder)
    saved_pieces.fill(engine.targets(), saved)
    engine.restored(counters)
    assert engine.counters() == counters


def train_to_end(engine: Engine, recipe: Recipe) -> Ending:
    learning_rate = engine.learning_rate
    losses = train(engine, recipe, range(SAVED_AFTER, NUM_STEPS))
    return Ending(learning_rate=learning_rate, losses=losses, digest=saved_pieces.digest(engine.pieces()))


def train(engine: Engine, recipe: Recipe, steps: Iterable[int]) -> tuple[float, ...]:
    batches = make_batches(recipe, dist.get_rank(), CPU)
    return tuple(mean_over_ranks(train_step(engine, batches.load(step))) for step in steps)


def views(pieces: list[Piece]) -> list[tuple[str, tuple[int, ...], int, int, int]]:
    return [
        (piece.name, piece.shape, piece.start, piece.values.numel(), piece.values.data_ptr())
        for piece in pieces
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def on_two(folder: Path) -> list[Endings]:
    trainings = [training(strategy, 2, precision) for precision in PRECISIONS for strategy in STRATEGIES]
    pairs = [Resumed(origin=training(saved, 2), now=training(resumed, 2)) for saved, resumed in PAIRS]
    in_bf16 = [same(training(strategy, 2, "bf16")) for strategy in STRATEGIES]
    work = Work(undisturbed=trainings, saved=trainings, resumed=pairs + in_bf16)
    return run_ranks(carry_out, work, folder, num_ranks=2, tmp_path=folder)


@pytest.fixture(scope="module")
def moved(folder: Path, on_two: list[Endings]) -> list[Endings]:
    """What rank 0 saw on one and on four ranks, and again on two."""
    others = [
        run_ranks(carry_out, work_on(num_ranks), folder, num_ranks=num_ranks, tmp_path=folder)
        for num_ranks in (1, 4)
    ]
    back = Work(resumed=moves(1, 2) + moves(4, 2))
    others.append(run_ranks(carry_out, back, folder, num_ranks=2, tmp_path=folder))
    return [ranks[0] for ranks in (on_two, *others)]


def work_on(num_ranks: int) -> Work:
    trainings = [training(strategy, num_ranks) for strategy in STRATEGIES]
    return Work(saved=trainings, resumed=moves(2, num_ranks))


@pytest.mark.parametrize("settings", [FEW_SETTINGS, pytest.param(SETTINGS, marks=pytest.mark.soak)])
def test_what_is_computed_again_is_so_after_a_resume_too(
    settings: Sequence[tuple[Strategy, Checkpointing, CrossEntropy]], tmp_path: Path
) -> None:
    trainings = [
        replace(training(strategy, 2, "bf16"), activation_checkpointing=mode, cross_entropy=loss)
        for strategy, mode, loss in settings
    ]
    work = Work(undisturbed=trainings, saved=trainings, resumed=[same(recipe) for recipe in trainings])
    for rank in run_ranks(carry_out, work, tmp_path, num_ranks=2, tmp_path=tmp_path):
        assert [rank[same(recipe)] for recipe in trainings] == [rank[recipe] for recipe in trainings]


@pytest.mark.parametrize(
    ("strategy", "how"),
    [("fsdp", "rowwise"), *(pytest.param("ddp", how, marks=pytest.mark.soak) for how in FP8)],
)
def test_fp8_goes_on_to_the_bit_and_may_change_between_two_starts(
    strategy: Strategy, how: Fp8, tmp_path: Path
) -> None:
    usual = training(strategy, 2, "bf16")
    in_fp8 = replace(usual, fp8=how)
    changed = [Resumed(origin=usual, now=in_fp8), Resumed(origin=in_fp8, now=usual)]
    work = Work(undisturbed=[usual, in_fp8], saved=[usual, in_fp8], resumed=[same(in_fp8), *changed])
    for rank in run_ranks(carry_out, work, tmp_path, num_ranks=2, tmp_path=tmp_path):
        assert rank[same(in_fp8)] == rank[in_fp8]
        for one in changed:
            assert rank[one].losses == pytest.approx(rank[one.origin].losses, rel=2e-3)
            assert rank[one].digest != rank[one.origin].digest


# By default whole runs show the same, through a real store: `test_long_run`.
@pytest.mark.soak
def test_under_the_same_strategy_nothing_tells_a_resumed_training_from_an_undisturbed_one(
    on_two: list[Endings],
) -> None:
    for precision, strategy in product(PRECISIONS, STRATEGIES):
        recipe = training(strategy, 2, precision)
        assert [rank[same(recipe)] for rank in on_two] == [rank[recipe] for rank in on_two]
    print(f"\n{len(PRECISIONS) * len(STRATEGIES)} of 10 strategies and precisions to the bit")


@pytest.mark.soak
def test_a_training_that_is_set_back_takes_the_same_steps_again(on_two: list[Endings]) -> None:
    for precision, strategy in product(PRECISIONS, STRATEGIES):
        recipe = training(strategy, 2, precision)
        assert [rank[SetBack(training=recipe)] for rank in on_two] == [rank[recipe] for rank in on_two]


@pytest.mark.soak
def test_every_strategy_goes_on_from_every_other(on_two: list[Endings]) -> None:
    for saved, resumed in PAIRS:
        key = Resumed(origin=training(saved, 2), now=training(resumed, 2))
        assert_close(on_two[0][key], on_two[0][training(saved, 2)])
    print(f"\n{len(PAIRS)} of 25 pairs")


@pytest.mark.soak
@pytest.mark.parametrize(("source", "target"), MOVES)
def test_a_training_goes_on_at_another_world_size(moved: list[Endings], source: int, target: int) -> None:
    found: Endings = {key: ending for endings in moved for key, ending in endings.items()}
    for move in moves(source, target):
        # However many ranks it was saved on, on two the undisturbed one has the same global batches.
        assert_close(found[move], found[training(move.origin.strategy, 2)])
    print(f"\n{len(CROSSINGS)} of {len(CROSSINGS)} moves from world size {source} to {target}")


def assert_close(resumed: Ending, undisturbed: Ending) -> None:
    assert len(resumed.losses) == NUM_STEPS - SAVED_AFTER
    assert resumed.learning_rate == undisturbed.learning_rate
    assert resumed.losses == pytest.approx(undisturbed.losses, rel=0, abs=1e-5)


@pytest.mark.soak
@pytest.mark.parametrize("world_size", (1, 2, 4))
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_pieces_of_all_ranks_are_every_tensor_once(
    moved: list[Endings], folder: Path, strategy: Strategy, world_size: int
) -> None:
    saved, counters = saved_pieces.load(folder / place(training(strategy, world_size)))
    assert counters == Counters(num_updates=SAVED_AFTER, num_skipped_updates=0)
    assert {name: pieces[0].shape for name, pieces in saved.items()} == expected_shapes(preset("llama-tiny"))
    assert [problem for pieces in saved.values() for problem in saved_pieces.gaps_and_overlaps(pieces)] == []


def expected_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        decoder = Decoder(model)
    return {
        f"{kind}/{name}": tuple(parameter.shape)
        for kind in ("param", "exp_avg", "exp_avg_sq")
        for name, parameter in decoder.named_parameters()
    }


@pytest.mark.parametrize("problem", ("gap", "overlap", "short", "long"))
def test_pieces_that_are_not_every_tensor_once_are_noticed(problem: str) -> None:
    bounds = {"gap": (2, 3, 8), "overlap": (3, 2, 8), "short": (3, 3, 7), "long": (3, 3, 9)}
    first_end, second_start, end = bounds[problem]
    pieces = [
        Piece(name="param/a", shape=(4, 2), start=start, values=torch.zeros(stop - start))
        for start, stop in ((second_start, end), (0, first_end))
    ]
    assert saved_pieces.gaps_and_overlaps(pieces) != []


# Tied weights and biases.
USUAL_UNEVEN = tuple(
    recipe_for(strategy, world_size=UNEVEN, model="qwen-tiny", precision="bf16") for strategy in STRATEGIES
)
UNEVEN_TRAININGS = (
    *USUAL_UNEVEN,
    *(replace(recipe, shard_within=1) for recipe in USUAL_UNEVEN if recipe.strategy == "fsdp"),
    *(
        replace(recipe, offload="optimizer")
        for recipe in USUAL_UNEVEN
        if recipe.strategy in ("fsdp", "zero3")
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uneven:
    """What a rank saw where nothing divides evenly: wrong pieces by training, and what ddp ended with."""

    wrong: dict[Recipe, list[str]]
    undisturbed: Ending
    resumed: Ending


@pytest.fixture(scope="module")
def on_three(tmp_path_factory: pytest.TempPathFactory) -> list[Uneven]:
    folder = tmp_path_factory.mktemp("uneven")
    return run_ranks(look_at_uneven, folder, num_ranks=UNEVEN, tmp_path=folder)


def look_at_uneven(folder: Path) -> Uneven:
    """Runs on a rank."""
    ddp = training("ddp", UNEVEN)
    endings = carry_out(Work(undisturbed=[ddp], saved=[ddp], resumed=[same(ddp)]), folder)
    return Uneven(
        wrong={recipe: wrong_first_values(recipe, folder) for recipe in UNEVEN_TRAININGS},
        undisturbed=endings[ddp],
        resumed=endings[same(ddp)],
    )


def wrong_first_values(recipe: Recipe, folder: Path) -> list[str]:
    """Of an untrained model it is known what each element must be."""
    engine = build(recipe, CPU)
    first = folder / f"first-{place(recipe)}"
    saved_pieces.save(first, dist.get_rank(), engine.pieces(), engine.counters())
    engine.close()
    dist.barrier()
    saved, _ = saved_pieces.load(first)
    shapes = {name: pieces[0].shape for name, pieces in saved.items()}
    assert shapes == expected_shapes(recipe.model)
    return [name for name, shape in shapes.items() if not are_first_values(name, shape, saved[name], recipe)]


def are_first_values(name: str, shape: tuple[int, ...], pieces: list[Piece], recipe: Recipe) -> bool:
    kind, _, parameter = name.partition("/")
    expected = torch.zeros(shape)
    if kind == "param":
        fill_first_values(parameter, expected, seed=recipe.seed, precision=recipe.precision)
    found = Piece(name=name, shape=shape, start=0, values=torch.full((expected.numel(),), torch.nan))
    saved_pieces.fill([found], {name: pieces})
    return saved_pieces.gaps_and_overlaps(pieces) == [] and torch.equal(found.values, expected.view(-1))


@pytest.mark.parametrize("recipe", UNEVEN_TRAININGS, ids=place)
def test_every_piece_holds_the_elements_it_says_also_where_nothing_divides_evenly(
    on_three: list[Uneven], recipe: Recipe
) -> None:
    assert [rank.wrong[recipe] for rank in on_three] == [[]] * UNEVEN


def test_ddp_sums_in_the_same_order_from_its_first_step_on(on_three: list[Uneven]) -> None:
    # Of two ranks' gradients there is only one order.
    assert [rank.resumed for rank in on_three] == [rank.undisturbed for rank in on_three]
