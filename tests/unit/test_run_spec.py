"""What a run's spec says of recording, and what it may not say."""

from pathlib import Path

import pytest

from jobs.errors import SpecError
from jobs.run_spec import RunSpec
from jobs.training.task import Recording, WandbProject

RUN = "name: r\nmodel: llama-tiny\nsteps: 4\n"


def load(tmp_path: Path, more: str = "") -> RunSpec:
    path = tmp_path / "spec.yaml"
    path.write_text(RUN + more)
    return RunSpec.load(path, [])


def test_recording_needs_no_word_and_tells_nobody_outside(tmp_path: Path) -> None:
    assert load(tmp_path).record.policy() == Recording(flush_s=10.0, tensorboard=True, wandb=None)


def test_what_is_asked_for_is_recorded(tmp_path: Path) -> None:
    spec = load(tmp_path, "record: {flush_s: 2, tensorboard: false, wandb: {project: big-runs}}")
    wanted = Recording(flush_s=2.0, tensorboard=False, wandb=WandbProject(project="big-runs"))
    assert spec.record.policy() == wanted


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("record: {flush_s: 0}", "record.flush_s"),
        ("record: {flush: 3}", "flush_s"),
        ("record: {wandb: {}}", "record.wandb.project"),
        ("record: {wandb: {project: 'a b'}}", "'a b' is not a name"),
        ("record: {wandb: {project: p, api_key: x}}", "api_key"),
    ],
)
def test_what_can_not_be_meant_is_said(more: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=says):
        load(tmp_path, more)
