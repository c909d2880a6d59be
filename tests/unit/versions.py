"""Runs the quick tests with the oldest and the newest versions that pyproject.toml allows:
``make test-versions``.

Each set of versions gets an environment of its own in ``build/``. torch and DeepSpeed are not installed: they
bring gigabytes, and no quick test imports them. Ray is, and what we rely on of its private names is held
against it. What only tests need has the version of constraints.txt.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from cluster.set_up import ROOT, as_uv_obeys, pinned, settings_of_pip

RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}
_LEFT_OUT = {"torch", "deepspeed"}
_FOR_TESTS = (
    "pytest", "pytest-xdist", "hypothesis", "moto[server]", "jsonschema", "pandas", "polars", "duckdb",
)  # fmt: skip
_TESTS = ("tests/unit", "tests/live/machines/test_ray_internals.py")


def main(asked: Sequence[str]) -> int:
    """Both sets are tried, whatever the first one finds; ``asked`` replaces the tests."""
    return max([_try(which, asked or _TESTS) for which in RESOLUTIONS])


def requirements() -> list[str]:
    """The project's own needs with their ranges, and the tests' tools as tested."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tested = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    own = [one for one in project["dependencies"] if name_of(one) not in _LEFT_OUT]
    tools = [f"{tool}=={pinned(tested, name_of(tool))}" for tool in _FOR_TESTS]
    return [*own, *project["optional-dependencies"]["pack"], *tools]


def name_of(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def _try(which: str, tests: Sequence[str]) -> int:
    python = ROOT / "build" / f"unit-{which}" / "bin" / "python"
    uv = Path(sys.executable).with_name("uv")
    into = ("pip", "install", "--quiet", "--python", python)
    _call(uv, "venv", "--quiet", "--clear", "--python", sys.executable, python.parent.parent)
    _call(uv, *into, "--resolution", RESOLUTIONS[which], *requirements())
    _call(uv, *into, "--no-deps", "-e", ROOT)
    print(f"{which}: {', '.join(_installed(python))}", flush=True)
    command = [str(python), "-m", "pytest", "-q", "-n2", "--dist=loadfile", *tests]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _installed(python: Path) -> list[str]:
    ask = "import importlib.metadata as m, sys\nfor name in sys.argv[1:]: print(name, m.version(name))"
    names = [name_of(one) for one in requirements()]
    done = subprocess.run([python, "-c", ask, *names], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def _call(*command: object) -> None:
    """uv looks where pip is told to look."""
    told = as_uv_obeys(settings_of_pip(Path(sys.executable))) or {}
    subprocess.run([str(word) for word in command], cwd=ROOT, env={**told, **os.environ}, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
