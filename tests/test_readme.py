"""The README tells the truth: its commands run, its files exist, its spec is what ships."""

import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import yaml

from checkpointing.stores.local import LocalStore
from jobs.report import main as report
from tests.unit.builders import put_results

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
DEADLINE_S = 900


def blocks(info: str) -> list[str]:
    return re.findall(rf"^```{info}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_the_spec_that_it_shows_is_the_smoke_sweep() -> None:
    (shown,) = blocks("yaml")
    smoke = yaml.safe_load((ROOT / "jobs/specs/sweeps/smoke.yaml").read_text())

    assert yaml.safe_load(shown).items() <= smoke.items()


@pytest.mark.parametrize("block", blocks("sh test"))
def test_its_commands_run(block: str, tmp_path: Path) -> None:
    """In order, in one shell, from the root, with a store and a copy of the report of their own."""
    lines = block.replace("my-report", str(tmp_path / "my-report")).splitlines()
    commands = [f"{line} --store {tmp_path}" for line in lines]

    done = _run("\n".join(["set -e", *commands]))

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("block", blocks("python test"))
def test_its_queries_answer(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the report of a small sweep."""
    store = LocalStore(tmp_path / "store")
    put_results(store)
    assert report(["--store", store.url, "--pull", str(tmp_path / "my-report")]) == 0
    monkeypatch.chdir(tmp_path)

    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(block, "README.md", "exec"), {})

    assert "ddp" in printed.getvalue()


def test_make_sweep_prints_the_table_and_writes_the_report(tmp_path: Path) -> None:
    done = _run(f"make sweep VENV={_environment_folder()} STORE={tmp_path}")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "16/16 runs" in done.stdout
    for strategy in ("ddp", "fsdp", "zero2", "zero3"):
        assert len(re.findall(rf"^{strategy} .* ok$", done.stdout, flags=re.MULTILINE)) == 2
    assert f"report: {tmp_path}/reports/smoke" in done.stdout
    assert (tmp_path / "reports/smoke/index.html").stat().st_size < 5e6


def test_make_alone_lists_its_verbs() -> None:
    done = _run("make")

    assert all(
        f"make {verb} " in done.stdout
        for verb in ("setup", "sweep", "mixed", "test", "check", "bench", "soak")
    )


def test_the_files_that_it_links_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)

    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def _environment_folder() -> Path:
    """The environment that runs this test, so that `make sweep` need not make another."""
    folder = Path(sys.prefix)
    assert (folder / ".longhaul-ready").exists(), f"{folder} was not made by `make setup`"
    return folder


def _run(script: str) -> "subprocess.CompletedProcess[str]":
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
