"""Ray Train's checkpoint hook on top of the log: small pointers to generations that are already durable.

Ray's dashboard and ``Result.checkpoint`` then show the newest generation as the name of the pointer. Ray
keeps a few pointers on the driver's node. They hold no payload, they cause no store request, and resuming
never depends on them.
"""

import json
from pathlib import Path
from typing import Any

import ray.train

POINTER = "generation.json"


def point_at(generation: str | None, step: int, loss: float) -> None:
    """Reports a step to Ray Train. Every rank of a worker group must call it at the same step.

    Only rank 0 names generations, each once. Waits for the next poll of Ray Train's controller.
    """
    metrics = {"step": step, "loss": loss}
    if generation is None:
        ray.train.report(metrics)
        return
    storage = ray.train.get_context().get_storage()
    pointer = ray.train.Checkpoint(
        storage.build_checkpoint_path_from_name(generation), storage.storage_filesystem
    )
    ray.train.report(
        {**metrics, "generation": generation},
        checkpoint=pointer,
        checkpoint_upload_mode=ray.train.CheckpointUploadMode.NO_UPLOAD,
    )


def pointed_at(checkpoint: ray.train.Checkpoint) -> str:
    """Returns the generation that a pointer names."""
    return Path(checkpoint.path).name


class Pointers(ray.train.UserCallback):  # type: ignore[misc]  # ray's types are skipped
    """Runs in Ray Train's controller, which later deletes the reported folders and fails if one is
    missing.
    """

    def after_report(
        self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: ray.train.Checkpoint | None
    ) -> None:
        if checkpoint is not None:
            folder = Path(checkpoint.path)
            folder.mkdir(exist_ok=True)
            (folder / POINTER).write_text(
                json.dumps({"generation": pointed_at(checkpoint)}), encoding="utf-8"
            )
