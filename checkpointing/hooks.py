"""Ray Train's checkpoint hook on top of the log: tiny pointers to what is durable already.

Ray's dashboard and ``Result.checkpoint`` then know the newest generation. Ray's manager keeps a few
pointers, and neither owns the payload nor decides what a run goes on from.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import ray.train

POINTER = "generation.json"


def point_at(generation: str | None, step: int, loss: float) -> None:
    """Every rank of a worker group calls it at the same step; rank 0 alone names a generation.

    Waits for the next poll of Ray Train's controller.
    """
    metrics = {"step": step, "loss": loss}
    if generation is None:
        ray.train.report(metrics)
        return
    with TemporaryDirectory() as folder:
        (Path(folder) / POINTER).write_text(json.dumps({"generation": generation}))
        ray.train.report(
            {**metrics, "generation": generation}, checkpoint=ray.train.Checkpoint.from_directory(folder)
        )


def pointed_at(checkpoint: ray.train.Checkpoint) -> str:
    """The generation's name in a pointer that Ray kept."""
    with checkpoint.as_directory() as folder:
        return str(json.loads((Path(folder) / POINTER).read_text())["generation"])
