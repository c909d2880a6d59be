"""What ``--set`` takes from a file, and which of its values nobody else may read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.commandline.set_values import (
    is_secret_setting,
    secrets_in_files,
    seen_from_elsewhere,
    value_text,
    without_secret,
)
from jobs.commandline.usage_error import SpecError
from jobs.runs.driver_process import Child
from jobs.spec_schema.run_spec import RunSpec
from tests.unit.other_user import NOBODY, needs_root

ROOT = Path(__file__).parents[3]

SECRET = "wandb-0123456789-nobody-may-read-this"
SPEC = "name: r\nmodel: llama-tiny\nworld_size: 1\nsteps: 10\n"


@pytest.mark.parametrize(
    "setting",
    [
        f"environment.API_KEY={SECRET}",
        f"environment={{API_KEY: {SECRET}, NCCL_DEBUG: WARN}}",
        f"overrides={{nvidia: {{environment: {{API_KEY: {SECRET}}}}}}}",
        f"overrides.nvidia.environment.API_KEY={SECRET}",
        "environment.PIN_TOKEN=4711",
        "alarms.command=[curl, -H, 'Authorization: Bearer abcdefghijklmnop', https://x]",
        "store=s3://key:hunter2@bucket/x",
        f"environment.API_KEY=[{SECRET}",
    ],
)
def test_a_secret_is_known_by_its_name_or_its_form(setting: str) -> None:
    assert is_secret_setting(setting)
    assert without_secret(setting) == f"{setting.partition('=')[0]}=<redacted>"


@pytest.mark.parametrize(
    "setting",
    [
        "steps=40",
        "environment.NCCL_DEBUG=WARN",
        "environment={NCCL_DEBUG: WARN}",
        "data.tokenizer=/models/llama",
        "data={path: s3://b/tokens, tokenizer: /models/llama}",
        "environment.API_KEY=@key",
        "a=[",
        "nothing",
    ],
)
def test_other_settings_are_shown_as_they_are(setting: str) -> None:
    assert not is_secret_setting(setting)
    assert without_secret(setting) == setting


def test_an_open_file_of_another_process_is_not_shown() -> None:
    assert without_secret("environment.API_KEY=@/dev/fd/7") == "environment.API_KEY=<redacted>"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC, encoding="utf-8")
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.touch(mode=0o600)
    path.write_text(f"{SECRET}\n", encoding="utf-8")
    return path


def test_a_value_is_taken_from_a_file(spec: Path, key: Path) -> None:
    loaded = RunSpec.load(spec, [f"environment.API_KEY=@{key}"])
    assert loaded.environment == {"API_KEY": SECRET}
    assert RunSpec.load(spec, [f"steps=@{number_file(key)}"]).steps == 40


def number_file(key: Path) -> Path:
    path = key.with_name("number")
    path.touch(mode=0o600)
    path.write_text("40", encoding="utf-8")
    return path


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_may_read_or_write_is_refused(mode: int, spec: Path, key: Path) -> None:
    key.chmod(mode)
    with pytest.raises(
        SpecError, match=rf"--set environment.API_KEY: .*key has mode {mode:04o} .* expected 0600"
    ):
        RunSpec.load(spec, [f"environment.API_KEY=@{key}"])


@needs_root
def test_a_file_of_somebody_else_is_refused(key: Path) -> None:
    os.chown(key, NOBODY, NOBODY)
    with pytest.raises(SpecError, match=f"owner {NOBODY}"):
        value_text(f"@{key}", "--set a")


def test_a_pipe_a_folder_and_nothing_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, why in (("pipe", "is no file"), (".", "can't be read|is no file"), ("gone", "No such file")):
        with pytest.raises(SpecError, match=why):
            value_text(f"@{tmp_path / name}", "--set a")


def test_a_file_without_end_or_without_text_is_refused(key: Path) -> None:
    os.truncate(key, 2**40)
    with pytest.raises(SpecError, match="more than the 1,000,000 bytes"):
        value_text(f"@{key}", "--set a")
    key.write_bytes(b"\xff")
    with pytest.raises(SpecError, match="is not text"):
        value_text(f"@{key}", "--set a")


def test_what_is_wrong_with_a_secret_is_said_without_it(spec: Path, key: Path) -> None:
    key.write_text(f"[{SECRET}", encoding="utf-8")
    for setting in (
        f"environment.API_KEY=[{SECRET}",
        f"environment.API_KEY=@{key}",
        f"environment.API_KEY={{x: {SECRET}}}",
        f"steps.environment.API_KEY={SECRET}",
        f"steps.API_KEY={SECRET}",
        f"group.environment.API_KEY={SECRET}",
        f"strategy.environment.API_KEY={SECRET}",
        f"precision={{API_KEY: {SECRET}}}",
        f"model.environment.API_KEY={SECRET}",
    ):
        with pytest.raises(SpecError) as refused:
            RunSpec.load(spec, [setting])
        assert "--set " in str(refused.value)
        assert SECRET not in str(refused.value)


def test_a_file_is_named_from_the_root_for_whoever_works_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert seen_from_elsewhere("environment.A=@key") == f"environment.A=@{tmp_path / 'key'}"
    assert seen_from_elsewhere("steps=4") == "steps=4"


# What a driver does with its words: it reads the setting twice, as with a model's folder that is gone.
READS = """
import sys
from jobs.commandline.set_values import value_text
word = sys.argv[sys.argv.index("--set") + 1]
path, _, text = word.partition("=")
print(" ".join(sys.argv), *[value_text(text, path) for _ in range(2)], sep="\\n", file=open({out!r}, "w"))
"""


def test_a_supervisors_driver_has_the_secret_and_its_command_line_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, program = tmp_path / "out", tmp_path / "python"
    (tmp_path / "reads.py").write_text(READS.format(out=str(out)), encoding="utf-8")
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/reads.py "$@"\n', encoding="utf-8")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    child = Child(["spec.yaml", "--set", f"environment.API_KEY={SECRET}", "--kept"])
    while (end := child.end()) is None:
        pass
    assert end.code == 0
    words, *values = out.read_text(encoding="utf-8").splitlines()
    assert "--set environment.API_KEY=@/dev/fd/" in words
    assert SECRET not in words
    assert values == [SECRET, SECRET]


def test_nothing_stays_of_the_files_of_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    words = ["s.yaml", "--set", f"environment.API_KEY={SECRET}", "--set", "steps=4", "--run", "a=b"]
    with secrets_in_files(words) as (shown, files):
        assert list(tmp_path.iterdir()) == []
        assert shown[3:] == words[3:]
        done = subprocess.run(
            ["cat", shown[2].partition("@")[2]], pass_fds=files, capture_output=True, text=True, check=True
        )
    assert done.stdout == SECRET
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "path"),
    [
        (("train", "jobs/specs/runs/smoke.yaml"), "environment.WANDB_API_KEY"),
        (("sweep", "jobs/specs/sweeps/smoke.yaml"), "overrides.local.environment.WANDB_API_KEY"),
    ],
    ids=["train", "sweep"],
)
def test_a_secret_that_rays_list_of_jobs_shows_is_named_and_not_repeated(
    command: tuple[str, ...], path: str
) -> None:
    settings = ("--set", f"{path}=hunter2", "--set", f"{path.replace('WANDB_API_KEY', 'LEVEL')}=high")
    words = [sys.executable, "-m", "jobs.cli", *command, "--dry-run", *settings]
    said = {}
    for is_job in (False, True):
        # By this variable Ray's job server tells the driver what it is.
        variables = {"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"} if is_job else {}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        said[is_job] = done.stderr
        assert "hunter2" not in done.stdout + done.stderr
    assert "Ray's list of jobs" not in said[False]
    (line,) = [line for line in said[True].splitlines() if "Ray's list of jobs" in line]
    assert line.startswith(f"longhaul: --set {path}: ")
