"""The loss in chunks beside torch's own ``linear_cross_entropy``: time, peak memory, and errors against fp64.

First the head alone. Then in whole steps on two ranks, under fsdp and zero3, which gather the head's weight
around its forward pass: a loss that computes its gradients in the backward pass asks for the weight again.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, get_args

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn import LinearCrossEntropyOptions

from jobs.training.benchmark.feed import BatchFeed
from jobs.training.device import host_memory
from jobs.training.models import decoder
from jobs.training.models.head import chunked_cross_entropy, whole_cross_entropy
from jobs.training.step import train_step
from jobs.training.strategies.build import build
from jobs.training.task.job import OptimizerConfig, Precision, Recipe, Strategy, tokens_per_chunk
from jobs.training.task.presets import preset
from tests.bench.apart import apart
from tests.live.ranks import run_ranks

TOKENS, HIDDEN, WORDS = 2048, 256, 65_536
ROUNDS, STEPS = 3, 3
CPU = torch.device("cpu")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
GATHERING: tuple[Strategy, ...] = ("fsdp", "zero3")
# Ours may be off from fp64 by no more than the loss of all logits, give or take a rounding.
BOUND = 1.25

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
Results = tuple[Tensor, Tensor, Tensor]


def torchs(reduction: str, policy: str, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Torch's loss in chunks as large as ours. ``none`` is averaged here, in fp32."""
    loss = F.linear_cross_entropy(
        hidden.flatten(0, -2),
        weight,
        labels.flatten(),
        reduction=reduction,
        options=LinearCrossEntropyOptions(batch_chunk_size=tokens_per_chunk(len(weight)), acc_policy=policy),
    ).float()
    return loss / labels.numel() if reduction == "sum" else loss.mean()


WAYS: dict[str, Loss] = {
    "whole": whole_cross_entropy,
    "ours, chunked": chunked_cross_entropy,
    "torch, none": partial(torchs, "none", "auto"),
    "torch, none, compact": partial(torchs, "none", "compact"),
    "torch, mean": partial(torchs, "mean", "auto"),
    "torch, sum": partial(torchs, "sum", "auto"),
}
OURS, USUAL = "ours, chunked", "whole"
SOUND = (OURS, "torch, none", "torch, none, compact")


def main() -> bool:
    is_good = True
    for precision in DTYPES:
        exact = results_of(whole_cross_entropy, *(part.double() for part in tensors(precision)))
        errors = {name: errors_of(name, precision, exact) for name in WAYS}
        taken = times_of(precision)
        for name in WAYS:
            peak = apart(__name__, name, precision)["bytes"]
            loss, of_hidden, of_weight = errors[name]
            print(
                f"{precision} {name:19} {median(taken[name]) * 1e3:6.0f} ms of CPU, {peak / 1e6:4.0f} MB; "
                f"off by {loss:.0e} (loss), {of_hidden:.1e} (hidden states), {of_weight:.1e} (weight)"
            )
        pairs = zip(errors[OURS], errors[USUAL], strict=True)
        is_good &= all(ours <= BOUND * usual + 1e-6 for ours, usual in pairs)
    for strategy in GATHERING:
        for line in gathered(strategy):
            print(line, flush=True)
    print(f"  {TOKENS} tokens, {WORDS} words; ours in chunks: bound {BOUND} of the error of all logits")
    return is_good


def tensors(precision: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, TOKENS, HIDDEN, generator=generator)
    weight = 0.02 * torch.randn(WORDS, HIDDEN, generator=generator)
    return hidden.to(DTYPES[precision]), weight.to(DTYPES[precision])


def results_of(loss_of: Loss, hidden: Tensor, weight: Tensor) -> Results:
    """The loss and both gradients."""
    labels = torch.randint(0, WORDS, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    hidden, weight = hidden.requires_grad_(), weight.requires_grad_()
    loss = loss_of(hidden, weight, labels)
    loss.backward()
    assert hidden.grad is not None and weight.grad is not None
    return loss.detach(), hidden.grad, weight.grad


def errors_of(name: str, precision: str, exact: Results) -> tuple[float, ...]:
    """How far each result is from the exact one, by the norms."""
    ours = results_of(WAYS[name], *tensors(precision))
    return tuple(
        float((one.double() - right).norm() / right.norm()) for one, right in zip(ours, exact, strict=True)
    )


def times_of(precision: str) -> dict[str, list[float]]:
    """The seconds of CPU that each way takes, in turn, after one round that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in WAYS}
    for turn in range(1 + ROUNDS):
        for name, loss_of in WAYS.items():
            hidden, weight = tensors(precision)
            started = time.process_time()
            results_of(loss_of, hidden, weight)
            if turn:
                taken[name].append(time.process_time() - started)
    return taken


def peak_bytes(name: str, precision: str) -> int:
    host_memory.return_large_pieces()
    hidden, weight = tensors(precision)
    before = host_memory.reset_peak()
    results_of(WAYS[name], hidden, weight)
    return host_memory.peak_bytes() - before


def gathered(strategy: Strategy) -> list[str]:
    """What a step of a model that is mostly head takes, with each loss that is not wrong."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = run_ranks(
            steps_on_a_rank,
            strategy,
            num_ranks=2,
            tmp_path=Path(folder),
            deadline_s=900,
            from_scratch=True,
        )
    return [
        f"{strategy} {what} {seconds * 1e3:6.0f} ms of CPU a step, peak {growth / 1e6:4.0f} MB; {loss:.5f}"
        for what, (seconds, growth, loss) in ranks[0].items()
    ]


def steps_on_a_rank(strategy: Strategy) -> dict[str, tuple[float, int, float]]:
    """Of each precision and loss: the seconds of CPU for a step, the growth of the process, the last loss."""
    host_memory.return_large_pieces()
    a_step_of(recipe_of(strategy, "fp32"))  # What the first engine loads counts for none.
    found = {}
    for precision, name in product(get_args(Precision), SOUND):
        chosen: Any = WAYS[name]
        decoder.chunked_cross_entropy = chosen
        found[f"{precision} {name:20}"] = a_step_of(recipe_of(strategy, precision))
    return found


def a_step_of(recipe: Recipe) -> tuple[float, int, float]:
    before = host_memory.reset_peak()
    engine = build(recipe, CPU)
    feed = BatchFeed(recipe, dist.get_rank(), CPU)
    taken, loss = [], torch.zeros(())
    for step in range(STEPS):
        started = time.process_time()
        loss = train_step(engine, feed.of_step(step))
        taken.append(time.process_time() - started)
    growth = host_memory.peak_bytes() - before
    engine.close()
    return min(taken), growth, loss.item()


def recipe_of(strategy: Strategy, precision: Precision) -> Recipe:
    return Recipe(
        model=replace(preset("llama-mini"), vocab_size=WORDS, hidden_size=HIDDEN, num_layers=1),
        strategy=strategy,
        world_size=2,
        seq_len=TOKENS,
        micro_batch=1,
        grad_accum=1,
        precision=precision,
        seed=0,
        optimizer=OptimizerConfig(),
        cross_entropy="chunked",
    )


if __name__ == "__main__":
    print(json.dumps({"bytes": peak_bytes(*sys.argv[1:])}))
