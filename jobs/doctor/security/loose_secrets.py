"""Finds secrets that other users can read: in environment files, specs and command lines. Keeps no value."""

import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cluster.yaml_file import YamlError, read_named, read_yaml
from jobs.doctor.security.exposure import LooseSecret
from jobs.doctor.security.listening import PROC, command_of, own_processes
from reporting.results.redaction import is_secret, without_credentials

_MOST_BYTES = 256 * 1024
_MOST_FILES = 100
_ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.+)$", re.MULTILINE)
_ON_COMMAND_LINE = re.compile(
    r"^(?:--?[A-Za-z-]+=)?(?:[A-Za-z_]+\.)*([A-Za-z_][A-Za-z0-9_]*)=(.+)$", re.DOTALL
)
# A name of a file or a number is none, whatever the variable is called.
_NO_SECRET = re.compile(r"[0-9.,]*|[~/.][^\s]*|\$\{?\w+\}?|token|true|false|none", re.IGNORECASE)
_CLOSE = "chmod 600 it, and change the secret: others may have read it"
_HIDE = "give it through `environment:` of a spec, or the environment; change it: others may have read it"


def in_environment_files(folders: Iterable[Path]) -> Iterator[LooseSecret]:
    """Looks at ``.env``, ``.env.*`` and ``*.env`` of the folders, not below them."""
    for folder in folders:
        for path in sorted({*folder.glob("*.env"), *folder.glob(".env.*"), *folder.glob(".env")})[
            :_MOST_FILES
        ]:
            if _is_readable_by_others(path):
                for name, value in _ASSIGNMENT.findall(_text(path)):
                    if _is_loose(name, value):
                        yield LooseSecret(place=str(path), name=name, remedy=_CLOSE)


def in_spec(path: Path) -> Iterator[LooseSecret]:
    """Looks at a spec that others can read; one that is no YAML holds nothing."""
    if not _is_readable_by_others(path):
        return
    try:
        found = read_yaml(path, "a spec")
    except YamlError:
        return
    for name in _names(found):
        yield LooseSecret(place=str(path), name=name, remedy=_CLOSE)


def on_command_lines(proc: Path = PROC) -> Iterator[LooseSecret]:
    """Looks at this user's processes, whose command lines everybody can read."""
    for process in own_processes(proc):
        for word in command_of(process):
            found = _ON_COMMAND_LINE.match(word)
            if found and _is_loose(found[1], found[2]):
                yield LooseSecret(place=f"process {process.name}", name=found[1], remedy=_HIDE)


def _names(value: Any, name: str = "") -> Iterator[str]:
    """The keys whose texts are secrets, also below lists and mappings."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _names(below, str(key))
    elif isinstance(value, list):
        for below in value:
            yield from _names(below, name)
    elif isinstance(value, str) and _is_loose(name, value):
        yield name


def _is_loose(name: str, value: str) -> bool:
    text = value.strip().strip("\"'")
    if is_secret(name):
        return _NO_SECRET.fullmatch(text) is None
    # A query of a URL is cut there too, which says nothing of secrets.
    return "?" not in text and len(text) < 4096 and without_credentials(text) != text


def _is_readable_by_others(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
        return stat.S_ISREG(mode) and bool(mode & (stat.S_IRGRP | stat.S_IROTH))
    except OSError:
        return False


def _text(path: Path) -> str:
    try:
        return read_named(path, _MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
