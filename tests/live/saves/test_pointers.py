"""What Ray Train's controller makes of a reported generation: Ray's own code calls us, without a cluster."""

import json
from pathlib import Path

import ray.train
from ray.train.v2._internal.callbacks.user_callback import UserCallbackHandler
from ray.train.v2._internal.execution.training_report import _TrainingReport

from checkpointing.ray_hooks import POINTER, Pointers, pointed_at


def report(checkpoint: ray.train.Checkpoint | None) -> None:
    """As the controller does once every rank has reported."""
    told = _TrainingReport(checkpoint=checkpoint, metrics={}, validation=False)
    UserCallbackHandler([Pointers()], None).after_report(told, [{}])


def test_a_reported_generation_gets_a_folder_that_ray_may_delete(tmp_path: Path) -> None:
    pointer = ray.train.Checkpoint(str(tmp_path / "g-000006"))
    for reported in (None, pointer, pointer):
        report(reported)
    assert [folder.name for folder in tmp_path.iterdir()] == ["g-000006"]
    assert json.loads((tmp_path / "g-000006" / POINTER).read_text()) == {"generation": "g-000006"}
    assert pointed_at(pointer) == "g-000006"
