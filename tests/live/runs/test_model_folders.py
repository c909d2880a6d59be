"""A run whose model comes from a folder: begun, gone on with when the folder is gone, and exported."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from checkpointing.stores.local import LocalStore
from jobs.cli.__main__ import main
from reporting.long_runs.summarising import long_runs
from tests.live.attempts import digests_of, newest_manifest
from tests.live.command_line import write_spec

transformers = pytest.importorskip("transformers", reason="a test extra: pip install longhaul[test]")

RUN = """
name: r
model: {{path: {folder}}}
weights: {folder}
seq_len: 16
steps: 6
data: {{samples: 64}}
checkpoint: {{every_steps: 3, on_busy: wait}}
"""


def write_model(folder: Path, **changes: Any) -> torch.nn.Module:
    torch.manual_seed(1)
    config = transformers.Qwen3Config(
        vocab_size=70,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        **changes,
    )
    model = transformers.Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    return model


def train(folder: Path, store: Path, *flags: str, run: str = "r") -> int:
    spec = write_spec(folder.parent, RUN.format(folder=folder))
    place = ["--executor", "inline", "--store", str(store), "--run", run]
    return main(["train", str(spec), *place, *flags])


def test_a_run_goes_on_without_the_folder_of_its_model_and_exports_it_to_the_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, store, out = tmp_path / "My model", tmp_path / "store", tmp_path / "out"
    begun_with = write_model(folder)
    assert train(folder, store, run="alone") == 0
    assert train(folder, store, "--set", "steps=3") == 0
    shutil.move(folder, tmp_path / "elsewhere")
    assert train(folder, store) == 0
    assert f"{folder} is gone; the model is that of the run's last start" in capsys.readouterr().out
    assert digests_of(newest_manifest(store, "r")) == digests_of(newest_manifest(store, "alone"))
    found, _ = long_runs(LocalStore(store))
    assert {run.model.rpartition("-")[0] for run in found} == {"My-model"}

    assert main(["checkpoints", "export", "--store", str(store), "--run", "r", "--to", str(out)]) == 0
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    stored = load_file(out / "model.safetensors")
    loaded = theirs.state_dict()
    assert all(torch.equal(value, loaded[key]) for key, value in stored.items())
    assert not torch.equal(loaded["model.norm.weight"], begun_with.state_dict()["model.norm.weight"])

    # What was exported is a model to begin with in turn: a step of next to nothing leaves it as it was.
    assert (
        train(
            out,
            store,
            "--set",
            "steps=1",
            "--set",
            "optimizer.lr=1e-30",
            "--set",
            "optimizer.weight_decay=0",
            run="next",
        )
        == 0
    )
    assert (
        main(
            ["checkpoints", "export", "--store", str(store), "--run", "next", "--to", str(tmp_path / "same")]
        )
        == 0
    )
    again = load_file(tmp_path / "same" / "model.safetensors")
    assert again.keys() == stored.keys()
    assert all(torch.equal(again[key], stored[key]) for key in stored)


def test_another_shape_in_the_folder_is_refused_by_its_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, store = tmp_path / "model", tmp_path / "store"
    write_model(folder)
    assert train(folder, store, "--set", "steps=3") == 0
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5, "num_hidden_layers": 3}))
    assert train(folder, store) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": the run")[0] for line in lines[-3:-1]] == [
        "longhaul train: model.num_hidden_layers",
        "longhaul train: model.rms_norm_eps",
    ]
    (folder / "config.json").write_text(json.dumps(config))
    assert train(folder.rename(tmp_path / "moved"), store, "--set", f"weights={folder}") == 0


def test_a_folder_that_never_was_there_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    assert train(folder, tmp_path / "store") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"longhaul train: model: {folder}/config.json is not there; expected a folder")
    assert not (tmp_path / "store").exists()
