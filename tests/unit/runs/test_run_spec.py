"""What a run's spec says of recording, and what it may not say."""

from dataclasses import fields
from pathlib import Path

import pytest

from jobs.alerts.rules import Bounds, Ringing, Wanted
from jobs.commandline.usage_error import SpecError
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.task.task import Recording, WandbProject

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
        ("record: {mlflow: {experiment: \"x' or '\"}}", "is not a name"),
        ("record: {mlflow: {experiment: e, token: x}}", "token"),
    ],
)
def test_what_can_not_be_meant_is_said(more: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=says):
        load(tmp_path, more)


def test_alarms_are_on_and_ring_for_nobody_until_a_command_is_given(tmp_path: Path) -> None:
    assert _bounds(load(tmp_path).alarms) == Bounds()
    assert load(tmp_path).alarms.ringing() is None
    asked = load(tmp_path, "alarms: {command: [notify-send, a b], timeout_s: 5, straggler: null}").alarms
    assert asked.ringing() == Ringing(command=("notify-send", "a b"), timeout_s=5.0)
    assert _bounds(asked) == Bounds(straggler=None)


@pytest.mark.parametrize("word", ["https://me:hush@host/hook", "https://host/hook?token=hush"])
def test_a_command_with_a_secret_in_it_is_refused_and_the_secret_not_repeated(
    word: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as refused:
        load(tmp_path, f"alarms: {{command: [curl, '{word}']}}")
    assert "alarms: command: holds an address with credentials" in str(refused.value)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ("", Wanted(every_s=60.0, every_steps=None)),
        ("checkpoint: {every_s: 10, store: {every: 6}}", Wanted(every_s=60.0, every_steps=None)),
        ("checkpoint: {every_s: null, every_steps: 5}", Wanted(every_s=None, every_steps=5)),
        ("mode: benchmark", Wanted(every_s=None, every_steps=None)),
    ],
)
def test_a_stale_checkpoint_is_held_against_how_often_one_is_to_be_durable(
    more: str, wanted: Wanted, tmp_path: Path
) -> None:
    assert load(tmp_path, more).wanted() == wanted


def _bounds(alarms: Bounds) -> Bounds:
    return Bounds(**{field.name: getattr(alarms, field.name) for field in fields(Bounds)})
