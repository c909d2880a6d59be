"""Writes the versions that are installed to constraints.txt: `make lock`, in an environment that was tested.

What torch alone brings has no line there: it belongs to the build of torch, which an image may have.

The same versions with the digests of their files go to ``locked/``, for `cluster/set_up.py --locked`: what
users need with ``fp8`` (as images do), and what developers need. torch has no line there either.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path

from cluster.set_up import ROOT, SetUpError, as_uv_obeys, locked_file, settings_of_pip

FILE = ROOT / "constraints.txt"
_LOCKED_HEAD = (
    "# {name}: exactly these files (`make lock`). torch is none of them: its build belongs to the machine.\n"
)
_TIMEOUT_S = 300
_HEAD = "# Exactly what was tested together (`make lock`). What torch alone brings belongs to its build.\n"
# They make environments, and are no part of one.
_NOT_OURS = {"longhaul", "pip", "wheel"}


def main() -> None:
    installed = {normal(one.metadata["Name"]): one.version for one in distributions()}
    needs = {normal(one.metadata["Name"]): list(one.requires or ()) for one in distributions()}
    FILE.write_text(lock(installed, needs), encoding="utf-8")
    print(f"{FILE.name}: {len(installed)} packages are installed", file=sys.stderr)
    for extras in ("fp8", "check,fp8,test"):
        path = locked_file(ROOT, extras)
        path.write_text(digests(extras, path.name), encoding="utf-8")


def digests(extras: str, name: str) -> str:
    """The text of a file in ``locked/``, which uv makes of what the index says."""
    told = as_uv_obeys(settings_of_pip(Path(sys.executable)))
    if told is None:
        raise SetUpError("uv does not know pip's configuration here, and pip makes no list of digests")
    command = [
        str(Path(sys.executable).parent / "uv"), "pip", "compile", "pyproject.toml", "--quiet",
        *(f"--extra={extra}" for extra in extras.split(",")), "-c", FILE.name, "--generate-hashes",
        "--no-emit-package", "torch", "--no-header", "--no-annotate", "--no-emit-index-url",
        "--no-emit-find-links",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, env={**told, **os.environ}, capture_output=True, text=True, encoding="utf-8",
        timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SetUpError(f"uv could not list the digests:\n{done.stderr[-2000:]}")
    return _LOCKED_HEAD.format(name=name) + done.stdout


def lock(installed: Mapping[str, str], needs: Mapping[str, list[str]]) -> str:
    """The text of constraints.txt. A local build (2.13.0+cpu) is written as its version."""
    kept = set(installed) - _NOT_OURS - _of_torch_alone(installed, needs)
    return _HEAD + "".join(f"{name}=={installed[name].partition('+')[0]}\n" for name in sorted(kept))


def _of_torch_alone(installed: Mapping[str, str], needs: Mapping[str, list[str]]) -> set[str]:
    """The packages that nothing but torch, or another of them, asks for."""
    alone: set[str] = set()
    while more := {
        name
        for name in set(installed) - alone
        if (by := set(_who_asks(name, needs))) and by <= alone | {"torch"}
    }:
        alone |= more
    return alone


def _who_asks(name: str, needs: Mapping[str, list[str]]) -> Iterator[str]:
    for asking, requirements in needs.items():
        if any("extra ==" not in one and _name(one) == name for one in requirements):
            yield asking


def _name(requirement: str) -> str:
    return normal(re.split(r"[^A-Za-z0-9._-]", requirement.strip(), maxsplit=1)[0])


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
