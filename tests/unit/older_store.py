"""The store that an older version left (``tests/fixtures/store_v1``), and today's command line over it."""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import jobs

ROOT = Path(jobs.__path__[0]).parent
ARCHIVE = ROOT / "tests" / "fixtures" / "store_v1" / "store.tar.xz"
DEADLINE_S = 300
# They depend on when, and where, somebody asks; what a finding says is a sentence for people.
_OF_THE_MOMENT = frozenset({"told_age_s", "newest_durable_age_s", "age_s", "store", "says"})


def unpack(folder: Path) -> Path:
    """The folder in which a user has ``results``; what is stored names all else relative to it."""
    extract(ARCHIVE, folder)
    return folder


def extract(path: Path, folder: Path) -> None:
    """Also with a Python before 3.11.4, such as Debian 12's, whose ``extractall`` takes no filter."""
    with tarfile.open(path) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)


def longhaul(folder: Path, *words: str, expected: int = 0) -> str:
    """What today's command line says there. By its name only: modules may move."""
    done = subprocess.run(
        [sys.executable, "-m", "jobs.cli", *words],
        cwd=folder,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout


def answers(folder: Path) -> dict[str, Any]:
    """What the older version answered, by the question's name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((folder / "answers").glob("*.json"))}


def differences(older: Any, newer: Any, place: str = "") -> list[str]:
    """What ``newer`` no longer says, or says otherwise. It may say more: a field that is new is none."""
    match older, newer:
        case Mapping(), Mapping():
            lost = [f"{place}.{name}: is gone" for name in older if name not in newer]
            both = [name for name in older if name in newer and name not in _OF_THE_MOMENT]
            return lost + [
                one for name in both for one in differences(older[name], newer[name], f"{place}.{name}")
            ]
        case list(), list() if len(older) == len(newer):
            pairs = enumerate(zip(older, newer, strict=True))
            return [one for at, (old, new) in pairs for one in differences(old, new, f"{place}[{at}]")]
        case float(), float() if older == pytest.approx(newer, rel=1e-9):
            return []
        case _:
            return [] if older == newer else [f"{place}: was {older!r}, is {newer!r}"]


def files(folder: Path) -> dict[str, bytes]:
    """All that is stored but payload, whose sizes are enough."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): str(path.stat().st_size).encode()
        if path.suffix == ".safetensors"
        else path.read_bytes()
        for path in paths
    }


def _environment() -> dict[str, str]:
    """One thread to a rank, as under Ray, and nobody's cluster."""
    unwanted = ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR", "LONGHAUL_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
