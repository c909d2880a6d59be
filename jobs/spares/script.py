"""The user's script: what it imports of installed packages, and running it in this process."""

import ast
import runpy
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

# torch itself imports the second one, but only when the first optimizer is made.
_LOADED_BY_ALL = ("jobs.durable", "torch._dynamo")


def load(words: Sequence[str]) -> None:
    """Imports what a rank imports before its first step, as far as that is known."""
    for name in (*_LOADED_BY_ALL, *installed_imports(words)):
        # What can't be imported is the script's to tell.
        with suppress(Exception):
            import_module(name)


def installed_imports(words: Sequence[str]) -> list[str]:
    """What the script imports at its top of installed packages.

    Modules of the user's own stay out: they may open files, start threads or draw random numbers as they are
    imported, which belongs to a rank.
    """
    return [name for name in _imported(_source(words)) if _is_installed(name)]


def run(words: Sequence[str]) -> None:
    """As ``python WORDS`` does."""
    if words[0] == "-m":
        sys.argv[:] = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv[:] = list(words)
    # Where a script's folder stands, if this process has one of its own: not with -P.
    sys.path[: not sys.flags.safe_path] = [str(Path(words[0]).resolve().parent)]
    runpy.run_path(words[0], run_name="__main__")


def _source(words: Sequence[str]) -> str:
    with suppress(OSError, ValueError, ImportError):
        if words[0] != "-m":
            return Path(words[0]).read_text(encoding="utf-8")
        spec = find_spec(words[1])
        if spec and spec.origin:
            return Path(spec.origin).read_text(encoding="utf-8")
    return ""


def _imported(source: str) -> Iterator[str]:
    """The modules that a script imports at its top, in its order."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in tree.body:
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module


def _is_installed(name: str) -> bool:
    places = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    places += [*site.getsitepackages(), site.getusersitepackages()]
    with suppress(ImportError, ValueError):
        spec = find_spec(name.partition(".")[0])
        if spec and spec.origin:
            return any(Path(spec.origin).is_relative_to(place) for place in places)
    return False
