"""The training core on one device: a 1B model in bf16 with each setting, beside transformers' own model.

Same shapes, same weights, same tokens, same optimizer, in one process and in turn. All ways train the same
parameters, since the device has room for one copy of the state: what is timed does not depend on the values.
It is the model that is measured, without a strategy around it. It has run on an H200.

``--device cpu --model llama-tiny`` runs the same lines on a CPU, and judges nothing.
"""

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from statistics import median

import torch
from torch import Tensor, nn

from checkpointing.errors import Unfit
from cluster.accelerators import Accelerator, accelerator
from cluster.environment import DETERMINISTIC
from jobs.sweeps.memory_forecast import predict_memory
from jobs.sweeps.plan import flops_again, flops_of
from jobs.training.device import repeating
from jobs.training.models import compiling, fp8
from jobs.training.models.attention import kernel_of
from jobs.training.models.decoder import Decoder
from jobs.training.models.init import fill
from jobs.training.strategies.optimizer import adamw, clip
from jobs.training.task.job import Recipe
from jobs.training.task.presets import preset
from jobs.training.task.settings import Settings
from reporting.results.formulas import model_flops_utilization
from tests.bench.gpu_table import COMPILED, EAGER, THEIRS, Row, goals, speedup, table
from tests.gpu.apart import apart
from tests.gpu.here import CPU, DEVICE, nothing_here, versions, wait_for
from tests.gpu.saves import blocked
from tests.gpu.trainings import PLAIN, with_settings
from tests.live.hugging_face_models import hugging_face

MODEL, LENGTH = "llama-3.2-1b", 4096
ROUNDS, STEPS_PER_TURN, MOST_SEQUENCES = 5, 3, 4
# More is not left for what allocators lose while ways take turns.
SHARE_OF_MEMORY = 0.75
CHUNKED = Settings(cross_entropy="chunked")
COMPILED_CHUNKED = replace(CHUNKED, compile="block")
FP8_WAYS = (f"{COMPILED}, chunked, fp8 tensorwise", f"{COMPILED}, chunked, fp8 rowwise")
BF16_WAY = f"{COMPILED}, chunked"
WAYS: dict[str, Settings] = {
    EAGER: Settings(),
    "selective": Settings(activation_checkpointing="selective"),
    "full": Settings(activation_checkpointing="full"),
    "chunked": CHUNKED,
    COMPILED: Settings(compile="block"),
    BF16_WAY: COMPILED_CHUNKED,
    f"{COMPILED}, full, chunked": replace(COMPILED_CHUNKED, activation_checkpointing="full"),
    "deterministic": Settings(deterministic=True),
    FP8_WAYS[0]: replace(COMPILED_CHUNKED, fp8="tensorwise"),
    FP8_WAYS[1]: replace(COMPILED_CHUNKED, fp8="rowwise"),
}

Parameters = dict[str, nn.Parameter]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all ways have in common. ``recipe`` is the eager one."""

    recipe: Recipe
    device: torch.device
    rounds: int
    parameters: Parameters
    ids: Tensor
    labels: Tensor

    @property
    def tokens_per_turn(self) -> int:
        return STEPS_PER_TURN * self.ids.numel()


@dataclass(slots=True, kw_only=True)
class Way:
    """A model to train, and what its turns took. ``refused`` ends it: it has no more turns."""

    name: str
    loss: Callable[[Tensor, Tensor], Tensor] | None
    deterministic: bool = False
    refused: str | None = None
    peak_bytes: int = 0


def main(words: Sequence[str] | None = None) -> int:
    told = _arguments().parse_args(words)
    device = CPU if told.device == "cpu" else DEVICE
    if device.type != "cpu" and (why_not := nothing_here()):
        print(f"bench-gpu: {why_not}; nothing was measured")
        return 0
    # Read when the device is first touched, so all ways have the work space that one of them needs.
    os.environ.update(DETERMINISTIC)
    recipe = recipe_for(told.model, told.seq_len, told.micro_batch, device)
    # In a process of its own and before all else: it needs the device for itself.
    saving = apart(blocked, replace(recipe, micro_batch=1), device=device).ratio
    rows, fp8_speedup = measured(recipe, told.ways or tuple(WAYS), told.rounds, device)
    print(headline(recipe, device))
    print("\n".join(table(rows)))
    if device.type == "cpu":
        print("on a CPU nothing is judged")
        return 0
    found = goals(rows, saving, fp8_speedup)
    print("\n".join(goal.line() for goal in found))
    return 0 if all(goal.is_met for goal in found) else 1


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu judges nothing")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--seq-len", type=int, default=LENGTH)
    parser.add_argument("--micro-batch", type=int, help="default: what fits, eager, up to 4")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--ways", nargs="+", choices=tuple(WAYS), metavar="WAY", help="default: all")
    return parser


def headline(recipe: Recipe, device: torch.device) -> str:
    name = "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)
    shape = f"{recipe.model.name}, {recipe.precision}, {recipe.micro_batch} x {recipe.seq_len} tokens"
    return f"{date.today()}, {name}, {versions()}: {shape}"


def recipe_for(model: str, seq_len: int, micro_batch: int | None, device: torch.device) -> Recipe:
    """Without ``micro_batch`` the largest power of two that leaves room for the eager way."""
    recipe = replace(
        PLAIN, model=preset(model), precision="bf16", seq_len=seq_len, grad_accum=1, micro_batch=1
    )
    if micro_batch is not None or device.type == "cpu":
        return replace(recipe, micro_batch=micro_batch or 1)
    bound = SHARE_OF_MEMORY * torch.cuda.get_device_properties(device).total_memory
    while recipe.micro_batch < MOST_SEQUENCES:
        larger = replace(recipe, micro_batch=2 * recipe.micro_batch)
        if predict_memory(larger, on_cpu=False).total > bound:
            break
        recipe = larger
    return recipe


def measured(
    recipe: Recipe, names: Sequence[str], rounds: int, device: torch.device
) -> tuple[list[Row], float | None]:
    """A row for each way, and how much faster the faster kind of fp8 is than bf16."""
    bench = bench_of(recipe, rounds, device)
    ways = [their_way(bench), *(our_way(bench, name) for name in names)]
    taken = take_turns(bench, ways)
    rows = [row_of(bench, way, taken) for way in ways]
    of_fp8 = [speedup(taken, name, BF16_WAY) for name in FP8_WAYS]
    return rows, max((one for one in of_fp8 if one is not None), default=None)


def bench_of(recipe: Recipe, rounds: int, device: torch.device) -> Bench:
    with torch.device("meta"):
        decoder = Decoder(recipe.model)
    decoder.to_empty(device=device)
    for path, parameter in decoder.named_parameters():
        fill(path, parameter, seed=recipe.seed, precision=recipe.precision)
    shape = (recipe.micro_batch, recipe.seq_len + 1)
    tokens = torch.randint(0, recipe.model.vocab_size, shape, device=device)
    return Bench(
        recipe=recipe,
        device=device,
        rounds=rounds,
        parameters=dict(decoder.named_parameters()),
        ids=tokens[:, :-1].contiguous(),
        labels=tokens[:, 1:].contiguous(),
    )


def our_way(bench: Bench, name: str) -> Way:
    settings, device = WAYS[name], bench.device
    try:
        if settings.compile == "block":
            compiling.prepare(device)
        if settings.fp8 != "none":
            fp8.prepare(settings.fp8, device)
    except Unfit as error:
        return Way(name=name, loss=None, refused=str(error))
    with torch.device("meta"):
        decoder = Decoder(bench.recipe.model, settings, torch.bfloat16)
    decoder.load_state_dict(bench.parameters, assign=True)
    return Way(name=name, loss=decoder.train(), deterministic=settings.deterministic)


def their_way(bench: Bench) -> Way:
    """As its users train it in bf16: fp32 parameters under autocast, attention by torch's sdpa."""
    config = bench.recipe.model
    with bench.device:
        model = hugging_face(config).train()
    model.set_attn_implementation("sdpa")
    parameters = dict(bench.parameters)
    if config.tied_embeddings:
        parameters["lm_head.weight"] = parameters["model.embed_tokens.weight"]
    model.load_state_dict(parameters, assign=True)

    def loss(ids: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(bench.device.type, dtype=torch.bfloat16):
            found: Tensor = model(ids, labels=labels, shift_labels=labels, use_cache=False).loss
        return found

    return Way(name=THEIRS, loss=loss)


def take_turns(bench: Bench, ways: Sequence[Way]) -> Mapping[str, list[float]]:
    """The seconds of each way's windows, one a round. The first round compiles and is not counted."""
    optimizer = adamw(bench.parameters.values(), bench.recipe.optimizer)
    taken: dict[str, list[float]] = {way.name: [] for way in ways}
    for turn in range(bench.rounds + 1):
        first = turn % len(ways)
        for way in [*ways[first:], *ways[:first]]:
            if way.refused is None:
                taken[way.name].append(_turn(bench, way, optimizer))
    # A way that ran out of memory in a later round has no numbers either.
    return {way.name: [] if way.refused else taken[way.name][1:] for way in ways}


def _turn(bench: Bench, way: Way, optimizer: torch.optim.Optimizer) -> float:
    """The seconds of a window, after a step that finds out what memory the way needs."""
    device = bench.device
    _forget_memory(device)
    repeating.prepare(way.deterministic)
    try:
        _step(bench, way, optimizer)
        wait_for(device)
        started = time.perf_counter()
        for _ in range(STEPS_PER_TURN):
            _step(bench, way, optimizer)
        wait_for(device)
        taken_s = time.perf_counter() - started
    except torch.OutOfMemoryError as error:
        way.refused = f"out of memory: {str(error).splitlines()[0]}"
        optimizer.zero_grad()
        return 0.0
    if device.type != "cpu":
        way.peak_bytes = max(way.peak_bytes, torch.cuda.max_memory_allocated(device))
    return taken_s


def _step(bench: Bench, way: Way, optimizer: torch.optim.Optimizer) -> None:
    assert way.loss is not None
    way.loss(bench.ids, bench.labels).backward()
    clip(bench.parameters.values(), bench.recipe.optimizer.clip_norm)
    optimizer.step()
    optimizer.zero_grad()


def _forget_memory(device: torch.device) -> None:
    gc.collect()
    if device.type != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def row_of(bench: Bench, way: Way, taken: Mapping[str, Sequence[float]]) -> Row:
    if way.refused or not taken[way.name]:
        return Row(name=way.name, refused=way.refused or "no turn was counted")
    settings = WAYS.get(way.name, Settings())
    recipe, chip = with_settings(bench.recipe, settings), _chip(bench.device)
    rate = bench.tokens_per_turn / median(taken[way.name])
    peak = chip.peak_flops(recipe.product_dtype) if chip else None
    is_ours = way.name in WAYS
    repeating.prepare(way.deterministic)  # It decides which kernel ``auto`` takes.
    return Row(
        name=way.name,
        tokens_per_s=rate,
        speedup=speedup(taken, way.name, THEIRS),
        mfu=model_flops_utilization(rate, flops_of(recipe), peak),
        hfu=model_flops_utilization(rate, flops_of(recipe) + flops_again(recipe), peak),
        peak_bytes=way.peak_bytes or None,
        kernel=kernel_of(recipe, bench.device, torch.bfloat16) if is_ours else "sdpa",
    )


def _chip(device: torch.device) -> Accelerator | None:
    return None if device.type == "cpu" else accelerator(torch.cuda.get_device_name(device))


if __name__ == "__main__":
    sys.exit(main())
