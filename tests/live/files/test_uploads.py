"""What is beside our code in a working directory and must not leave this machine: by Ray's own packaging."""

import subprocess
from pathlib import Path
from shutil import copy
from zipfile import ZipFile

import pytest
from ray._private.runtime_env.packaging import create_package, get_excludes_from_ignore_files

ROOT = Path(__file__).resolve().parents[3]
SECRETS = (
    ".env", ".env.local", "store.env", "deep/worker.env", ".netrc", ".aws/credentials", ".ssh/id_rsa",
    "ca.pem", "server.key", "gcp-credentials.json", "auth_token", ".git/config", "results/runs/r/spec.json",
)  # fmt: skip
OURS = ("jobs/sweep.py", "jobs/specs/sweeps/smoke.yaml", "cluster/mixed.yaml", "my-spec.yaml")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "tree"
    for name in (*SECRETS, *OURS):
        path = found / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    copy(ROOT / ".rayignore", found)
    copy(ROOT / ".gitignore", found)
    return found


def test_a_submitted_job_takes_our_code_along_and_no_secret(folder: Path, tmp_path: Path) -> None:
    package = tmp_path / "package.zip"
    create_package(str(folder), package, include_gitignore=True)
    with ZipFile(package) as archive:
        sent = {name for name in archive.namelist() if not name.endswith("/")}
    assert sent == {*OURS, ".rayignore", ".gitignore"}


def test_nothing_that_is_ours_is_left_behind() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (is_ignored,) = get_excludes_from_ignore_files(ROOT, include_gitignore=False)
    assert [name for name in listed.splitlines() if is_ignored(ROOT / name)] == []
    assert is_ignored(ROOT / "results/runs"), "it ignores something"


def test_an_image_takes_along_no_more() -> None:
    assert (ROOT / ".dockerignore").read_bytes() == (ROOT / ".rayignore").read_bytes()
