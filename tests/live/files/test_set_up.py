"""Environments that are really made: by pip and uv, beside a torch that an image brought, with no network."""

import marshal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
_BACKEND = """
import shutil
def _wheel(folder, *_):
    shutil.copy("demo-1.0-py3-none-any.whl", folder)
    return "demo-1.0-py3-none-any.whl"
build_wheel = build_editable = _wheel
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project that needs torch and another package; a folder has two versions of each."""
    folder = tmp_path / "a project"
    folder.mkdir()
    (folder / "backend.py").write_text(_BACKEND, encoding="utf-8")
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "demo"\nversion = "1.0"\ndependencies = ["torch>=2.13,<2.14", "other"]\n',
        encoding="utf-8",
    )
    (folder / "constraints.txt").write_text("torch==2.13.0\nother==1.0\n", encoding="utf-8")
    _wheel(folder, "demo", "1.0", "torch", "other")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name, version in (("torch", "2.13.0"), ("torch", "2.14.0"), ("other", "1.0"), ("other", "2.0")):
        _wheel(wheels, name, version)
    return folder


def _wheel(folder: Path, name: str, version: str, *needs: str) -> Path:
    file = folder / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    metadata = [
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}",
        *(f"Requires-Dist: {n}" for n in needs),
    ]
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}.py", f"__version__ = '{version}'\n")
        archive.writestr(f"{about}/METADATA", "\n".join(metadata) + "\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(
            f"{about}/RECORD", f"{name}.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n"
        )
    return file


def _with_an_images_torch(target: Path, torch: str, folder: Path) -> None:
    """Makes an environment that sees a vendor's torch outside of it, as one with an image's packages does."""
    packages = folder / "image"
    with zipfile.ZipFile(_wheel(folder, "torch", torch)) as wheel:
        wheel.extractall(packages)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", target], check=True, timeout=300)
    (own,) = (target / "lib").glob("python*/site-packages")
    (own / "image.pth").write_text(f"{packages}\n", encoding="utf-8")


def _set_up(project: Path, target: Path, installer: str) -> str:
    """What setting up says, all of it; the exit code is its last word."""
    variables = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(project.parent),
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(project.parent / "wheels"),
    }
    command = [sys.executable, ROOT / "cluster/set_up.py", target, "--project", project, "--with", installer]
    ended = subprocess.run(
        command, env=variables, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, encoding="utf-8", timeout=300,
    )  # fmt: skip
    return f"{ended.stdout}\nexit {ended.returncode}"


def _versions(target: Path) -> str:
    asks = "import importlib.metadata as m; print(*(m.version(n) for n in ('torch', 'other', 'demo')))"
    return subprocess.check_output([target / "bin/python", "-c", asks], text=True, timeout=60).strip()


def test_uv_obeys_pips_settings_and_takes_what_was_tested(project: Path, tmp_path: Path) -> None:
    target = tmp_path / "with a space" / "env"
    said = _set_up(project, target, "uv")
    assert said.endswith("exit 0"), said
    assert "with uv" in said
    # Else each process would compile what it loads, where it may not write.
    [compiled] = target.glob("lib/*/site-packages/__pycache__/other.*.pyc")
    code = marshal.loads(compiled.read_bytes()[16:])
    assert Path(code.co_filename) == compiled.parents[1] / "other.py"
    assert _versions(target) == "2.13.0 1.0 1.0"


@pytest.mark.parametrize(
    ("installer", "torch", "told"),
    [
        ("uv", "2.13.0+rocm10.0", "which stays\n"),
        ("pip", "2.13.1+rocm10.1", "which stays (2.13.0 was tested)\n"),
    ],
)
def test_a_vendors_torch_in_an_image_stays(
    installer: str, torch: str, told: str, project: Path, tmp_path: Path
) -> None:
    target = tmp_path / "env"
    _with_an_images_torch(target, torch, tmp_path)
    said = _set_up(project, target, installer)
    assert said.endswith("exit 0"), said
    assert f"with {installer}, beside torch {torch}, {told}" in said
    assert _versions(target) == f"{torch} 1.0 1.0"


def test_an_images_torch_outside_of_the_range_ends_the_set_up_in_one_line(
    project: Path, tmp_path: Path
) -> None:
    _with_an_images_torch(tmp_path / "env", "2.12.1+rocm7.2", tmp_path)
    said = _set_up(project, tmp_path / "env", "pip")
    assert said.endswith("exit 1"), said
    assert "torch 2.12.1+rocm7.2 is there, and stays; Longhaul works with torch >=2.13,<2.14, and was" in said
    assert "Traceback" not in said


def test_a_failed_installation_shows_what_the_installer_said_last(project: Path, tmp_path: Path) -> None:
    (tmp_path / "wheels" / "other-1.0-py3-none-any.whl").unlink()
    said = _set_up(project, tmp_path / "env", "uv")
    assert said.endswith("exit 1")
    assert "other==1.0" in said
    assert "Traceback" not in said
