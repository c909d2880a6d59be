"""The training core beside transformers' own model, and what each memory setting costs in time and gains.

Same shapes, same weights, same tokens, same optimizer, same threads: whole training steps in one process, in
turn, so that a noisy machine is as noisy for all. Peak memory is that of a process of its own.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor, nn

from jobs.training.device import host_memory
from jobs.training.models.decoder import Decoder
from jobs.training.models.init import fill
from jobs.training.strategies.optimizer import adamw, clip
from jobs.training.task.job import OptimizerConfig
from jobs.training.task.presets import preset
from jobs.training.task.settings import Settings
from tests.bench.apart import apart
from tests.live.hugging_face_models import hugging_face

# So many tokens for so few weights that what the settings save is most of what is held.
MODEL = replace(preset("llama-mini"), vocab_size=16_384, hidden_size=256, intermediate_size=704, head_dim=32)
BATCH, LENGTH, ROUNDS, WARMUP = 1, 2048, 8, 2
BOUND = 1.0
WAYS: dict[str, Settings] = {
    "ours": Settings(),
    "chunked loss": Settings(cross_entropy="chunked"),
    "selective": Settings(activation_checkpointing="selective"),
    "full": Settings(activation_checkpointing="full"),
    "full, chunked": Settings(activation_checkpointing="full", cross_entropy="chunked"),
    "compiled": Settings(compile="block"),
    "compiled, full, chunked": Settings(
        compile="block", activation_checkpointing="full", cross_entropy="chunked"
    ),
}
THEIRS, THEIRS_FULL = "transformers", "transformers, full"

Step = Callable[[], float]


def main() -> bool:
    names = [THEIRS, THEIRS_FULL, *WAYS]
    steps = {name: step_of(name) for name in names}
    taken: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(WARMUP + ROUNDS):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            started = time.perf_counter()
            steps[name]()
            if turn >= WARMUP:
                taken[name].append(time.perf_counter() - started)
    peak = {name: apart(__name__, name)["bytes"] for name in names}
    speed = {name: _ratio(taken[THEIRS], taken[name]) for name in names}
    for name in names:
        rate = BATCH * LENGTH / median(taken[name])
        memory = f"peak {peak[name] / 1e6:.0f} MB, {peak[name] / peak[THEIRS]:.2f}x"
        print(f"{name:23} {rate:6.0f} tokens/s, {speed[name]:.3f}x of transformers'; {memory}")
    print(f"               ours eager: bound {BOUND:.2f}; {ROUNDS} rounds, fp32, {LENGTH} tokens")
    return speed["ours"] >= BOUND


def _ratio(theirs: list[float], ours: list[float]) -> float:
    """Of the steps of each round, which were taken within seconds of each other."""
    return median(one / other for one, other in zip(theirs, ours, strict=True))


def step_of(name: str) -> Step:
    torch.manual_seed(0)
    model = (hugging_face(MODEL) if name.startswith(THEIRS) else Decoder(MODEL, WAYS[name])).train()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            fill(path, parameter, seed=0, precision="fp32")
    if name == THEIRS_FULL:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    tokens = torch.randint(0, MODEL.vocab_size, (BATCH, LENGTH + 1))
    ids, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    optimizer = adamw(model.parameters(), OptimizerConfig())

    def step() -> float:
        loss = _loss(model, ids, labels)
        loss.backward()
        clip(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def _loss(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    if isinstance(model, Decoder):
        loss: Tensor = model(ids, labels)
        return loss
    theirs: Tensor = model(ids, labels=labels, shift_labels=labels, use_cache=False).loss
    return theirs


def peak_bytes(name: str) -> int:
    host_memory.return_large_pieces()
    before = host_memory.reset_peak()
    step = step_of(name)
    for _ in range(3):
        step()
    return host_memory.peak_bytes() - before


if __name__ == "__main__":
    print(json.dumps({"bytes": peak_bytes(sys.argv[1])}))
