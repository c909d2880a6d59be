"""Stock Ray Train V2 with its own defaults and its documented checkpoints: a driver on the head of a cluster.

``python -m tests.bench.recovery.stock FOLDER NUM_STEPS EVERY [MODEL]``: the model, the data and the optimizer
of ``longhaul train``, a torch.save of all of it each EVERY steps, reported as the guide has it, and as many
restarts as it takes. Each step of rank 0 becomes a line of ``FOLDER/steps``.
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ray import train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

GRAD_CLIP = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A step that a worker process had finished at a time."""

    ended_s: float
    worker: str
    step: int


def main(folder: Path, num_steps: int, every: int, model: str) -> None:
    TorchTrainer(
        _train,
        train_loop_config={"num_steps": num_steps, "every": every, "folder": str(folder), "model": model},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="stock",
            storage_path=str(folder / "ray"),
            failure_config=FailureConfig(max_failures=-1),
        ),
    ).fit()


def steps_of(folder: Path) -> list[Done]:
    """In the order in which they were done. A line that is being written is left out."""
    path = folder / "steps"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    whole = (line.split() for line in lines if line.endswith("\n"))
    return [Done(ended_s=float(at), worker=worker, step=int(step)) for at, worker, step in whole]


def _train(config: dict[str, Any]) -> None:
    """The guide's loop: get the checkpoint, train, save on rank 0, report on all."""
    import torch

    from jobs.training.strategies.ddp import replica

    recipe = _recipe(config["model"])
    rank = train.get_context().get_world_rank()
    model = train.torch.prepare_model(replica(recipe, torch.device("cpu")))
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.optimizer.lr)
    start = 0
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt")
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
    rows = _rows(recipe, rank)
    with (Path(config["folder"]) / "steps").open("a", buffering=1) as steps:
        for step in range(start + 1, config["num_steps"] + 1):
            ids = rows(step - 1)
            loss = model(ids[:, :-1], ids[:, 1:])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
            optimizer.step()
            optimizer.zero_grad()
            if rank == 0:
                steps.write(f"{time.time()} {_worker()} {step}\n")
            if step % config["every"] == 0 or step == config["num_steps"]:
                _report(step, loss.item(), rank, model, optimizer)


def _report(step: int, loss: float, rank: int, model: Any, optimizer: Any) -> None:
    import torch

    with TemporaryDirectory() as folder:
        checkpoint = None
        if rank == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, Path(folder) / "state.pt")
            checkpoint = Checkpoint.from_directory(folder)
        train.report({"loss": loss, "step": step}, checkpoint=checkpoint)


def _rows(recipe: Any, rank: int) -> Callable[[int], Any]:
    """The samples that ours reads at the same step."""
    import torch

    from jobs.training.data.synthetic import sample
    from jobs.training.task.sample_order import sample_at, share_of_rank

    def of_step(number: int) -> Any:
        (places,) = share_of_rank(
            number * recipe.sequences_per_step,
            rank=rank,
            world_size=recipe.world_size,
            micro_batch=recipe.micro_batch,
            grad_accum=1,
        )
        numbers = [sample_at(place, num_samples=4096, seed=recipe.seed) for place in places]
        return torch.stack([sample(recipe, found) for found in numbers])

    return of_step


def _recipe(model: str) -> Any:
    from jobs.training.task.job import OptimizerConfig, Recipe
    from jobs.training.task.presets import preset

    return Recipe(
        model=preset(model),
        strategy="ddp",
        world_size=2,
        seq_len=64,
        micro_batch=1,
        grad_accum=1,
        precision="fp32",
        seed=0,
        optimizer=OptimizerConfig(),
    )


def _worker() -> str:
    """One word for this process among those of all hosts."""
    return f"{os.uname().nodename}:{os.getpid()}"


if __name__ == "__main__":
    words = sys.argv[1:]
    main(Path(words[0]), int(words[1]), int(words[2]), words[3] if len(words) > 3 else "llama-tiny")
