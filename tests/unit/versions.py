"""Runs the quick tests with the oldest and the newest versions that pyproject.toml allows:
``make test-versions``. `make test-oldest` runs those of them with the oldest versions that touch a library.

Each set of versions gets an environment of its own in ``build/``. torch and DeepSpeed are not installed: they
bring gigabytes, and no quick test imports them. Ray is, and what we rely on of its private names is held
against it. What only tests need has the version of constraints.txt.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.set_up import ROOT, as_uv_obeys, pinned, settings_of_pip

RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}
_LEFT_OUT = {"torch", "deepspeed"}
_FOR_TESTS = (
    "pytest", "pytest-xdist", "hypothesis", "moto[server]", "jsonschema", "pandas", "polars", "duckdb",
)  # fmt: skip
_TESTS = ("tests/unit", "tests/live/machines/test_ray_internals.py")


# What touches each library: it opens files, draws, validates, asks for settings, looks at a process. Of the
# newest versions most are those of constraints.txt, with which all tests run.
SURFACES: Mapping[str, tuple[str, ...]] = {
    "ray": ("tests/live/machines/test_ray_internals.py", "tests/unit/machines/test_ray_timeouts.py"),
    "pydantic": ("tests/unit/runs/test_run_file.py", "tests/unit/sweeps/test_sweep_spec.py"),
    "pyyaml": ("tests/unit/machines/test_yaml_file.py", "tests/unit/files/test_annotated_specs.py"),
    "rich": ("tests/unit/watching/test_page.py",),
    "numpy": ("tests/unit/reports/test_statistics.py",),
    "psutil": ("tests/unit/machines/test_reaper.py", "tests/unit/commands/test_init_command.py"),
    "nvidia-ml-py": ("tests/unit/machines/test_telemetry.py",),
    "obstore": ("tests/unit/stores/test_settings.py",),
    "boto3": ("tests/unit/stores/test_settings.py", "tests/unit/stores/test_refusals.py"),
    "xxhash": ("tests/unit/generations/test_pieces.py", "tests/unit/saves/test_writer.py"),
    "pyarrow": (
        "tests/unit/results/test_parts.py", "tests/unit/results/test_metrics_tables.py",
        "tests/unit/tokens/test_formats.py", "tests/unit/tokens/test_mds.py",
    ),
    "matplotlib": ("tests/unit/reports/test_charts.py",),
    "openpyxl": ("tests/unit/results/test_importers.py",),
    "tensorboardX": ("tests/unit/results/test_import_formats.py",),
    "orjson": ("tests/unit/results/test_rows.py", "tests/unit/results/test_hostile_json.py"),
    "tokenizers": ("tests/unit/tokens/test_packing.py",),
    "jinja2": ("tests/unit/tokens/test_chat_packing.py",),
    "sentencepiece": ("tests/unit/tokens/test_other_tokenizers.py",),
    "tiktoken": ("tests/unit/tokens/test_other_tokenizers.py",),
}  # fmt: skip
_OLDEST_ALONE = "--oldest"


def main(asked: Sequence[str]) -> int:
    """Both sets are tried, whatever the first one finds; ``asked`` replaces the tests.

    With ``--oldest`` the oldest versions alone meet what touches them. Where they can't be had, one line says
    so, and nothing is wrong.
    """
    if [*asked] != [_OLDEST_ALONE]:
        return max([_try(which, asked or _TESTS) for which in RESOLUTIONS])
    try:
        return _try("oldest", sorted({test for tests in SURFACES.values() for test in tests}))
    except subprocess.CalledProcessError as error:
        print(f"the oldest versions could not be installed, so nothing ran with them: {error}", flush=True)
        return 0


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
