"""The wheel that is built works outside of its tree: a first table, its report, a training, from it alone."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
_SPEC = """
name: first
models: [llama-tiny]
axes: {strategy: [ddp], world_size: [1], seq_len: [32], micro_batch: [1]}
measure: {steps: 4, warmup: 1}
repeats: 1
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages as the wheel has them, and nothing else of the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source]
    subprocess.run(build, check=True, timeout=300, stdin=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    install = [*pip, "install", "--no-deps", "--no-index", "--target", folder / "packages", wheel]
    subprocess.run(install, check=True, timeout=300, stdin=subprocess.DEVNULL)
    return folder / "packages"


def _longhaul(packages: Path, folder: Path, *arguments: str) -> str:
    """What a command says that has nothing but the wheel's packages, in a folder with none of the tree."""
    script = (
        f"import sys; sys.path.insert(0, {str(packages)!r}); "
        "import jobs.cli.__main__ as cli; assert 'wheel' in cli.__file__; sys.exit(cli.longhaul())"
    )
    ended = subprocess.run(
        [sys.executable, "-P", "-c", script, *arguments],
        cwd=folder, env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(packages)},
        check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, encoding="utf-8", timeout=400,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def test_the_wheel_has_all_files_that_code_reads(packages: Path) -> None:
    listed = subprocess.check_output(["git", "ls-files", "cluster", "reporting", "jobs"], cwd=ROOT, text=True)
    ours = {name for name in listed.splitlines() if (ROOT / name).is_file()}
    there = {str(path.relative_to(packages)) for path in packages.rglob("*") if path.is_file()}
    assert ours - there == set()


def test_a_first_table_and_its_report_come_from_the_wheel_alone(packages: Path, tmp_path: Path) -> None:
    (tmp_path / "first.yaml").write_text(_SPEC, encoding="utf-8")
    table = _longhaul(packages, tmp_path, "sweep", "first.yaml", "--executor", "inline")
    assert "llama-tiny" in table
    _longhaul(packages, tmp_path, "report")
    (page,) = (tmp_path / "results" / "reports").glob("*/index.html")
    assert "llama-tiny" in page.read_text(encoding="utf-8")
