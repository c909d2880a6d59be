"""The model of a spec: a preset, or the shape in a folder, which a stored spec keeps."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from jobs.commandline.usage_error import SpecError
from jobs.spec_schema.compatibility import refusals
from jobs.spec_schema.run_spec import RunSpec
from jobs.spec_schema.stored_spec import stored_model
from jobs.spec_schema.sweep_spec import SweepSpec
from jobs.sweeps.grid import expand
from jobs.training.models.hugging_face import config_json
from jobs.training.task.presets import PRESETS, ModelShape
from tests.conftest import Golden

TINY = PRESETS["llama-tiny"].shape
OTHER = replace(TINY, num_layers=2, init_std=0.1)
SHAPE = asdict(TINY)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders with models in the current directory, so that messages are the same everywhere."""
    monkeypatch.chdir(tmp_path)
    write("tiny", TINY)
    write("a model", OTHER)
    Path("mixtral").mkdir()
    Path("mixtral/config.json").write_text('{"model_type": "mixtral"}')


def write(folder: str, shape: ModelShape) -> None:
    Path(folder).mkdir(exist_ok=True)
    Path(folder, "config.json").write_text(json.dumps(config_json(shape, "float32")))


def run_of(model: object, *settings: str) -> RunSpec:
    Path("run.yaml").write_text(json.dumps({"name": "trial", "model": model, "steps": 4}))
    return RunSpec.load(Path("run.yaml"), settings)


def sweep_of(models: list[object], **more: Any) -> SweepSpec:
    Path("sweep.yaml").write_text(json.dumps({"name": "trial", "models": models, **more}))
    return SweepSpec.load(Path("sweep.yaml"))


def described(model: object, *settings: str) -> dict[str, Any]:
    return run_of(model, *settings).model_dump(mode="json")


def changes(before: object, now: object) -> list[str]:
    usual = described("llama-tiny")
    return refusals({**usual, "model": before}, described(now), usual, place="results/runs/trial")


def test_a_folder_gives_a_run_its_model_under_a_name_of_its_own() -> None:
    config = run_of({"path": "a model"}).recipe().model
    assert (config.shape, config.name) == (OTHER, "a-model-" + config.name[-8:])
    assert (
        run_of({"path": "./tiny/../a model/", "name": "mine"}).recipe().model.name
        == f"mine-{config.name[-8:]}"
    )
    assert run_of("llama-tiny", "model={path: a model}").recipe().model == config


def test_the_shape_of_a_preset_is_that_preset_unless_it_is_called_otherwise() -> None:
    assert run_of({"path": "tiny"}).recipe().model is PRESETS["llama-tiny"]
    assert run_of({"path": "tiny", "name": "mine"}).recipe().model.name.startswith("mine-")
    cells = [expand(sweep_of([model]), ["local"])[0].cell_id for model in ("llama-tiny", {"path": "tiny"})]
    assert cells[0] == cells[1]


@pytest.mark.parametrize("model", ["llama-tiny", {"path": "tiny"}, {"path": "a model", "name": "x"}])
def test_a_stored_spec_is_the_same_spec_where_nobody_has_the_folder(model: object) -> None:
    spec = run_of(model)
    for folder in ("tiny", "a model"):
        Path(folder, "config.json").unlink()
    stored = spec.model_dump(mode="json")
    assert stored_model(stored) == spec.recipe().model
    again = RunSpec.model_validate_json(json.dumps(stored))
    assert (again.recipe(), again.model_dump(mode="json")) == (spec.recipe(), stored)


@pytest.mark.parametrize(
    "model",
    [
        None,
        "gpt-9",
        {"name": "x", "shape": {"family": "llama"}},
        {"name": "x", "shape": {**SHAPE, "head_dim": 3}},
        {"name": "x", "shape": None},
    ],
)
def test_a_stored_model_that_can_not_be_read_is_none(model: object) -> None:
    assert stored_model({"model": model}) is None


def test_a_driver_reads_the_folder_and_a_supervisor_elsewhere_needs_none() -> None:
    spec = run_of({"path": "none"})
    assert (spec.model.shape, spec.seq_len) == (None, 64)
    with pytest.raises(SpecError, match=r"^model: none/config.json is not there; expected a folder with"):
        spec.recipe()


# What a person gets wrong -> the model of a run. The messages are in golden/spec_models.txt.
BAD_MODELS: dict[str, object] = {
    "nothing": None,
    "a number": 7,
    "no path": {},
    "a name alone": {"name": "llama-tiny"},
    "an empty path": {"path": ""},
    "a path that is a number": {"path": 3},
    "an unknown key": {"path": "tiny", "nmae": "x"},
    "no known key": {"pth": "tiny"},
    "a name of nothing": {"path": "tiny", "name": ""},
    "a name that climbs": {"path": "tiny", "name": "../x"},
    "a name that is too long": {"path": "tiny", "name": "x" * 41},
    "experts": {"path": "mixtral"},
    "a file": {"path": "tiny/config.json", "shape": 3},
    "a shape without a name": {"shape": SHAPE},
    "half a shape": {"name": "x", "shape": {"family": "llama"}},
    "a shape of another family": {"name": "x", "shape": {**SHAPE, "family": "gemma"}},
    "a shape without layers": {"name": "x", "shape": {**SHAPE, "num_layers": 0}},
    "a shape with an odd head": {"name": "x", "shape": {**SHAPE, "head_dim": 3}},
    "a shape with biases that its family lacks": {"name": "x", "shape": {**SHAPE, "qkv_bias": True}},
    "a shape without its family's norms": {"name": "x", "shape": {**SHAPE, "family": "qwen3"}},
    "a shape with a window that its family lacks": {"name": "x", "shape": {**SHAPE, "sliding_window": 8}},
    "a sequence longer than the model's": {"name": "x", "shape": {**SHAPE, "max_seq_len": 32}},
}
BAD_SWEEPS: dict[str, dict[str, Any]] = {
    "no such folder": {"models": [{"path": "none"}]},
    "a preset twice": {"models": ["llama-tiny", {"path": "tiny"}]},
    "one of them with experts": {"models": ["llama-tiny", {"path": "mixtral"}]},
    "a part of an unknown model": {"models": [{"path": "a model"}], "include": [{"model": "a-modl"}]},
    "a sequence longer than the model's": {"models": [{"path": "a model"}], "axes": {"seq_len": 4096}},
}


def test_everything_that_can_be_wrong_with_a_model_has_a_line_that_helps(golden: Golden) -> None:
    lines = []
    for mistake, model in BAD_MODELS.items():
        with pytest.raises(SpecError) as refused:
            run_of(model)
        lines += [f"{mistake}:", *(f"  {problem}" for problem in refused.value.problems[:2])]
    for mistake, spec in BAD_SWEEPS.items():
        with pytest.raises(SpecError) as refused:
            expand(sweep_of(**spec), ["local"])
        lines += [f"{mistake} in a sweep:", *(f"  {problem}" for problem in refused.value.problems)]
    golden("spec_models.txt", "\n".join(lines) + "\n")


def test_a_part_of_the_grid_names_a_folders_model_by_its_short_or_full_name() -> None:
    models = ["llama-tiny", {"path": "a model"}, {"path": "a model", "name": "mine"}]
    full = run_of({"path": "a model"}).recipe().model.name
    for name in ("a-model", full):
        spec = sweep_of(models, exclude=[{"model": name}])
        assert [cell.recipe.model.name for cell in expand(spec, ["local"])] == [
            "llama-tiny",
            f"mine-{full[-8:]}",
        ]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("llama-tiny", {"path": "tiny"}),
        ("llama-tiny", {"path": "tiny", "name": "mine"}),
        ({"path": "/gone", "name": "old", "shape": SHAPE}, {"path": "tiny"}),
        ({"path": "/gone", "name": "old", "shape": SHAPE}, "llama-tiny"),
        ({"name": "unreadable", "shape": {"family": "gpt"}}, "llama-tiny"),
    ],
)
def test_a_model_may_get_another_name_and_folder_between_two_starts(before: object, now: object) -> None:
    assert changes(before, now) == []


def test_another_shape_is_refused_with_each_field_in_the_words_of_its_file(golden: Golden) -> None:
    other = described({"path": "a model"})["model"]
    scaled = {"path": "b", "name": "b", "shape": {**SHAPE, "rope_scaling": None}}
    lines = [
        *changes(other, {"path": "tiny"}),
        *changes(scaled, {"path": "tiny"}),
        *changes("qwen-tiny", {"path": "tiny"}),
        *changes("gpt-9", {"path": "a model"}),
        *changes(other, "qwen-tiny")[:1],
    ]
    golden("model_changes.txt", "\n".join(lines) + "\n")
