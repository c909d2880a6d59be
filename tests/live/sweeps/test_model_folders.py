"""A sweep over models of folders beside presets, and again from what the store keeps of it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.training.models.hugging_face import config_json
from jobs.training.task.presets import PRESETS
from tests.live.command_line import rows, run, sweep_command, write_spec

SWEEP = """
name: quick
models: [llama-tiny, {{path: {folder}}}, {{path: {folder}, name: mine}}]
axes: {{strategy: [ddp, fsdp], world_size: [1], seq_len: [32], micro_batch: [1]}}
exclude: [{{model: mine, strategy: ddp}}, {{model: llama-tiny, strategy: fsdp}}]
measure: {{steps: 4, warmup: 1}}
repeats: 1
limits: {{schedule_timeout_s: 60, cell_timeout_s: 120}}
"""


@pytest.mark.parametrize("executor", ["inline", pytest.param("ray", marks=pytest.mark.soak)])
def test_folders_and_presets_are_measured_side_by_side_and_need_no_folder_later(
    executor: str, tmp_path: Path
) -> None:
    folder, store = tmp_path / "qwen small", tmp_path / "store"
    folder.mkdir()
    shape = replace(PRESETS["qwen-tiny"], num_layers=2)
    (folder / "config.json").write_text(json.dumps(config_json(shape, "float32")))
    spec = write_spec(tmp_path, SWEEP.format(folder=folder))
    done = run(sweep_command(spec, store, "--executor", executor))
    assert done.returncode == 0, done.stdout + done.stderr
    digest = rows(store)[-1]["model"].rpartition("-")[2]
    found = {(row["model"], row["strategy"], row["training_config"]["parameters"]) for row in rows(store)}
    assert found == {
        ("llama-tiny", "ddp", PRESETS["llama-tiny"].num_parameters),
        *((f"qwen-small-{digest}", strategy, shape.num_parameters) for strategy in ("ddp", "fsdp")),
        (f"mine-{digest}", "fsdp", shape.num_parameters),
    }

    shutil.rmtree(folder)
    gone = run(sweep_command(spec, store, "--dry-run"))
    assert (gone.returncode, gone.stderr.count("\n")) == (2, 1)
    assert f"{folder}/config.json is not there" in gone.stderr
    kept = json.loads((store / "sweeps" / "quick" / "sweep.json").read_text())["spec"]
    again = run(sweep_command(write_spec(tmp_path, json.dumps(kept)), store, "--dry-run", "--json"))
    assert again.returncode == 0, again.stderr
    cells = json.loads(again.stdout)["cells"]
    assert {cell["cell_id"] for cell in cells} == {row["cell_id"] for row in rows(store)}
