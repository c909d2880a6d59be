"""What a person types, what comes out where, and with which exit code. Nothing here is ever started."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from jobs.cli.__main__ import main
from tests.conftest import Golden
from tests.unit.printed import checked

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 60
HEAVY = {"torch", "ray", "deepspeed"}
# What a help text must not wait for.
SLOW = HEAVY | {"pydantic", "yaml", "rich", "psutil", "numpy"}

CLUSTER = """
max_workers: 4
available_node_types:
  cores: {max_workers: 1, resources: {CPU: 2}}
  nvidia:
    max_workers: 2
    resources: {CPU: 96, GPU: 8}
    labels: {longhaul.group: nvidia, longhaul.vendor: nvidia, longhaul.device: H100-SXM}
"""
IMPOSSIBLE = (
    "name: trial\nmodels: [llama-tiny]\naxes: {strategy: [ddp, fsdp], world_size: [1000]}\nrepeats: 1\n"
)
CELL_KEYS = {
    "cell_id", "model", "strategy", "world_size", "seq_len", "group", "repeats", "parameters",
    "flops_per_token", "predicted_memory_bytes", "predicted_host_memory_bytes",
}  # fmt: skip


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory, no cluster, no torchrun."""
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_ADDRESS", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "RAY_JOB_CONFIG_JSON_ENV_VAR"):
        monkeypatch.delenv(name, raising=False)


def sweep(text: str, *flags: str) -> int:
    Path("sweep.yaml").write_text(text)
    return main(["sweep", "sweep.yaml", *flags])


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"PYTHONPATH": path, "COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


def loaded(importtime: str) -> set[str]:
    """The top-level packages in what ``python -X importtime`` wrote."""
    lines = (line.rpartition("|")[2].strip() for line in importtime.splitlines() if "import time:" in line)
    return {name.partition(".")[0] for name in lines}


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("longhaul", ("-m", "jobs.cli", "--help")),
        ("longhaul_sweep", ("-m", "jobs.cli", "sweep", "--help")),
        ("longhaul_train", ("-m", "jobs.cli", "train", "--help")),
        ("longhaul_status", ("-m", "jobs.cli", "status", "--help")),
        ("longhaul_watch", ("-m", "jobs.cli", "watch", "--help")),
        ("longhaul_pack", ("-m", "jobs.cli", "pack", "--help")),
        ("longhaul_data", ("-m", "jobs.cli", "data", "--help")),
        ("longhaul_init", ("-m", "jobs.cli", "init", "--help")),
        ("longhaul_explain", ("-m", "jobs.cli", "explain", "--help")),
        ("longhaul_runs", ("-m", "jobs.cli", "runs", "--help")),
        ("longhaul_completion", ("-m", "jobs.cli", "completion", "--help")),
        ("longhaul_stop", ("-m", "jobs.cli", "stop", "--help")),
        ("longhaul_import", ("-m", "jobs.cli", "import", "--help")),
        ("longhaul_compare", ("-m", "jobs.cli", "compare", "--help")),
        ("longhaul_checkpoints", ("-m", "jobs.cli", "checkpoints", "--help")),
        ("longhaul_checkpoints_verify", ("-m", "jobs.cli", "checkpoints", "verify", "--help")),
        ("longhaul_checkpoints_export", ("-m", "jobs.cli", "checkpoints", "export", "--help")),
        ("longhaul_doctor", ("-m", "jobs.cli", "doctor", "--help")),
        ("longhaul_slurm", ("-m", "jobs.cli", "slurm", "--help")),
        ("longhaul_cluster", ("-m", "jobs.cli", "cluster", "--help")),
        ("longhaul_cluster_local", ("-m", "jobs.cli", "cluster", "local", "--help")),
        ("longhaul_cluster_show", ("-m", "jobs.cli", "cluster", "show", "--help")),
        ("sweep_py", (str(ROOT / "jobs" / "sweep.py"), "--help")),
        ("train_py", (str(ROOT / "jobs" / "train.py"), "--help")),
    ],
)
def test_help_is_instant_and_says_what_was_reviewed(
    name: str, command: tuple[str, ...], golden: Golden
) -> None:
    done = run(sys.executable, "-X", "importtime", *command)
    assert done.returncode == 0
    assert "argparse" in loaded(done.stderr)
    assert loaded(done.stderr) & SLOW == set()
    golden(f"help_{name}.txt", done.stdout)


def test_a_dry_run_plans_in_json_without_torch_or_ray() -> None:
    Path("sweep.yaml").write_text("name: trial\nmodels: [llama-tiny]\naxes: {world_size: [1, 1000]}\n")
    done = run(
        sys.executable, "-X", "importtime", "-m", "jobs.cli", "sweep", "sweep.yaml", "--dry-run", "--json"
    )
    assert done.returncode == 0
    assert "pydantic" in loaded(done.stderr)
    assert loaded(done.stderr) & HEAVY == set()
    placed, refused = checked("sweep_dry_run", done.stdout)["cells"]
    assert placed.keys() >= CELL_KEYS | {"placement"}
    assert refused.keys() >= CELL_KEYS | {"refused"}
    assert (refused["world_size"], "placement" in refused) == (1000, False)
    assert "1000 were asked for" in refused["refused"]


def test_a_dry_run_on_a_cluster_file_is_the_same_everywhere(
    capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    Path("cluster.yaml").write_text(CLUSTER)
    spec = "name: trial\nmodels: [llama-tiny]\naxes: {strategy: [ddp, zero3], world_size: [2, 64]}\n"
    assert sweep(spec, "--dry-run", "--cluster", "cluster.yaml") == 0
    golden("dry_run.txt", capsys.readouterr().out)


def test_a_dry_run_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep(IMPOSSIBLE, "--dry-run") == 0
    assert capsys.readouterr().err == ""
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.yaml"]


def test_a_bad_spec_ends_with_2_and_one_line() -> None:
    Path("sweep.yaml").write_text("name: trial\nmodels: [llama-tiny]\naxes: {strategy: [zero4]}\n")
    done = run(sys.executable, "-m", "jobs.cli", "sweep", "sweep.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "longhaul sweep: sweep.yaml: axes.strategy: 'zero4' is not a strategy "
        "(ddp, fsdp, zero1, zero2, zero3); did you mean 'zero3'?\n"
    )


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--set", "measure.steps"), "--set measure.steps: expected key=value"),
        (("--set", "axes.seq_len=100000"), "axes.seq_len: 100000 is longer than llama-tiny's 512 positions"),
        (
            ("--store", "sweep.yaml"),
            r"store: .*/sweep.yaml can't be written \(Not a directory: .*/sweep.yaml\).*--store",
        ),
        (
            ("--store", "sweep.yaml/below"),
            r"store: .*/sweep.yaml/below can't be written \(Not a directory: .*/sweep.yaml\).*--store",
        ),
        (("--store", "ftp://bucket"), "store: ftp:// is no kind of store"),
        (("--cluster", "missing.yaml"), "missing.yaml: can't be read"),
        (("--cluster", "sweep.yaml"), "sweep.yaml: has no 'available_node_types'"),
    ],
)
def test_wrong_usage_ends_with_2_and_one_line(
    flags: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(IMPOSSIBLE, *flags) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.fullmatch(f"longhaul sweep: {says}.*\n", printed.err)


@pytest.mark.parametrize(
    "arguments",
    [["swep"], ["completion", "tcsh"], ["sweep", "--executor", "slurm"], ["sweep", "--nodes", "3"]],
)
def test_a_command_line_that_is_none_ends_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_longhaul_alone_says_what_to_do_first_with_commands_that_there_are(golden: Golden) -> None:
    done = run(sys.executable, "-X", "importtime", "-m", "jobs.cli")
    assert done.returncode == 0
    assert loaded(done.stderr) & SLOW == set()
    commands = re.findall(r"^  longhaul (\w+)", done.stdout, flags=re.MULTILINE)
    assert commands[0] == "init"
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0
    golden("first_steps.txt", done.stdout)


def test_the_version_is_that_of_the_tree_which_runs() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    done = run(sys.executable, "-m", "jobs.cli", "--version")
    assert (done.returncode, done.stdout) == (0, f"longhaul {told['project']['version']}\n")


def test_two_mistakes_are_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep("name: a/b\nmodels: [llama-tiny]\nrepeats: 0\n") == 2
    assert capsys.readouterr().err.count("longhaul sweep: sweep.yaml: ") == 2


@pytest.mark.parametrize(
    ("kind", "takes", "given_to", "text"),
    [
        ("run", "train", "sweep", "name: a\nmodel: llama-tiny\nsteps: 3\nworld_size: 2\n"),
        ("sweep", "sweep", "train", "name: a\nmodels: [llama-tiny]\naxes: {world_size: 1}\n"),
    ],
)
def test_a_spec_that_another_command_takes_is_one_line_that_names_it(
    kind: str, takes: str, given_to: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("spec.yaml").write_text(text)
    assert main([given_to, "spec.yaml"]) == 2
    line = f"longhaul {given_to}: spec.yaml: is a {kind}'s spec; `longhaul {takes} spec.yaml` takes it\n"
    assert capsys.readouterr().err == line


def test_a_single_key_that_belongs_to_the_other_spec_may_be_a_misspelt_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert sweep("name: a\nmodel: llama-tiny\n") == 2
    assert "model: is not a key here" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--dry-run"], ["--best"], ["--retry-failed", "--json"]])
def test_a_group_that_is_not_there_is_one_line_and_nothing_is_written(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(IMPOSSIBLE, "--set", "groups=[locla]", *options) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "there is no group 'locla'" in printed.err
    assert "did you mean 'local'?" in printed.err
    assert not (tmp_path / "results").exists()


def test_impossible_cells_leave_a_row_each_and_the_sweep_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(IMPOSSIBLE) == 1
    assert "2 unschedulable: local has " in capsys.readouterr().out
    rows = _rows(tmp_path / "results")
    assert [row["status"] for row in rows] == ["unschedulable", "unschedulable"]
    assert all("1000 were asked for" in row["error"]["reason"] for row in rows)


def test_a_sweep_is_not_measured_twice_unless_it_is_told_to(tmp_path: Path) -> None:
    attempts = []
    for flags in ((), (), ("--retry-failed",)):
        assert sweep(IMPOSSIBLE, *flags) == 1
        attempts.append([row["attempt"] for row in _rows(tmp_path / "results")])
    assert attempts == [[1, 1], [1, 1], [2, 2]]


def test_json_on_standard_output_is_nothing_but_the_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(IMPOSSIBLE, "--json", "--store", "elsewhere") == 1
    printed = capsys.readouterr()
    found = checked("sweep", printed.out)["runs"]
    stored = _rows(tmp_path / "elsewhere")
    assert len(found) == len(stored) == 2
    assert all(row in found for row in stored)
    assert "unschedulable" in printed.err


def test_benchmark_mode_leaves_the_description_and_one_small_result_per_run(tmp_path: Path) -> None:
    sweep(IMPOSSIBLE)
    files = sorted(path.relative_to(tmp_path / "results") for path in (tmp_path / "results").rglob("*.*"))
    assert [path.parts[:2] + path.parts[-1:] for path in files] == [
        ("sweeps", "trial", "result.json"),
        ("sweeps", "trial", "result.json"),
        ("sweeps", "trial", "sweep.json"),
    ]
    assert all((tmp_path / "results" / path).stat().st_size <= 10_000 for path in files)


def test_an_unreadable_result_is_named_and_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep(IMPOSSIBLE)
    broken = sorted((tmp_path / "results").rglob("result.json"))[0]
    broken.write_bytes(broken.read_bytes()[:50])
    capsys.readouterr()
    assert sweep(IMPOSSIBLE) == 1
    assert f"{broken.parent.name}: result.json is not JSON" in capsys.readouterr().out
    assert json.loads(broken.read_bytes())["attempt"] == 2


def _rows(store: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted(store.rglob("result.json"))]
