"""Reads YAML that people wrote: specs, cluster files, prices.

It is as safe as a stranger's file needs it to be: plain values alone, at most a megabyte, at most
``MOST_VALUES`` values, also after aliases have grown, and no more than ``MOST_BRACKETS`` in each other.
``YamlError`` says in one line what is wrong. ``read_named`` reads the bytes, also of other files that a user
names.
"""

import os
import re
import stat
from errno import EINVAL, EISDIR
from pathlib import Path
from typing import Any

import yaml
from yaml.error import MarkedYAMLError

MOST_BYTES = 1_000_000
MOST_VALUES = 100_000
MOST_BRACKETS = 50
# YAML allows more than Python can build: a 99th of May, a number of 5,000 digits, a thousand brackets.
_NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)


class YamlError(Exception):
    """A file can't be read, or a text is not the YAML that is taken here.

    ``line`` counts from 1; it is None if no line is known.
    """

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.line = line


class _Loader(yaml.SafeLoader):
    """A YAML loader that reads ``1e-4`` as a number and rejects repeated keys.

    YAML 1.1 reads ``1e-4`` as text because the number has no point. What takes long is bounded while it is
    read: the library looks at all open brackets again for each of the next thousand characters.
    """

    _num_values = 0

    def fetch_flow_collection_start(self, token: type[yaml.Token]) -> None:
        if self.flow_level == MOST_BRACKETS:
            problem = f"it has more than {MOST_BRACKETS} brackets in each other"
            raise MarkedYAMLError(problem=problem, problem_mark=self.get_mark())
        super().fetch_flow_collection_start(token)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._num_values += 1
        if self._num_values > MOST_VALUES:
            problem = f"it has more than {MOST_VALUES:,} values"
            raise MarkedYAMLError(problem=problem, problem_mark=self.get_mark())
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                problem = f"the key {key.value!r} is there twice"
                raise MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def read_yaml(path: Path, wanted: str) -> Any:
    """Returns what the file holds. The message of ``YamlError`` begins with the path, and says what is
    ``wanted`` there.
    """
    try:
        data = read_named(path, MOST_BYTES)
        if len(data) > MOST_BYTES:
            raise YamlError(f"it has more than the {MOST_BYTES:,} bytes that are read")
        return parse_yaml(data.decode())
    except OSError as error:
        raise YamlError(f"{path}: can't be read ({error.strerror}); give the path of {wanted}") from None
    except UnicodeDecodeError:
        raise YamlError(f"{path}: is not text; expected {wanted}") from None
    except YamlError as error:
        where = f"{path}:{error.line}" if error.line else str(path)
        raise YamlError(f"{where}: is not YAML: {error}", error.line) from None


def read_named(path: Path, most_bytes: int) -> bytes:
    """Returns at most ``most_bytes`` of a file and one, so that the caller sees what is too large.

    It does not wait: a pipe that nobody writes to would never let go. Raises ``OSError``, whose
    ``strerror`` says what is wrong, also of what is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(EINVAL, "is a pipe, a socket or a device, and no file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(most_bytes + 1)
    finally:
        os.close(descriptor)


def parse_yaml(text: str) -> Any:
    """Returns what ``text`` holds. An empty text holds None."""
    try:
        return _built(text)
    except _NOT_YAML as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise YamlError(what, mark.line + 1 if mark else None) from None


def _built(text: str) -> Any:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        num_values = _num_values(node, {})
        if num_values > MOST_VALUES:
            raise ValueError(f"its aliases grow to more than {MOST_VALUES:,} values; write them out")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _num_values(node: yaml.Node, known: dict[int, int]) -> int:
    """Counts values as often as aliases repeat them, looking at each only once. A value that holds itself
    counts as too many.
    """
    if id(node) not in known:
        known[id(node)] = MOST_VALUES + 1
        match node:
            case yaml.MappingNode():
                below = [each for pair in node.value for each in pair]
            case yaml.SequenceNode():
                below = node.value
            case _:
                below = []
        known[id(node)] = 1 + sum(_num_values(each, known) for each in below)
    return known[id(node)]
