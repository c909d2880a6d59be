"""``longhaul --version``: the version of the code that runs. A copied tree may have no package."""

import argparse
import tomllib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


class ShowVersion(argparse.Action):
    """The flag that prints the version and ends the command. It is looked up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **kwargs)

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        print(f"longhaul {own_version()}")
        parser.exit()


def own_version() -> str:
    """The tree's own version where there is a tree: another one may be installed beside it."""
    try:
        told = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]
        if told["name"] == "longhaul":
            return str(told["version"])
    except (OSError, ValueError, LookupError, TypeError):
        pass
    try:
        return version("longhaul")
    except PackageNotFoundError:
        return "of unknown version"
