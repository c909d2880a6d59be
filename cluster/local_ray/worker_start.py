"""Starts a worker as its runtime environment says, as Ray's ``setup_worker.py`` does, but loads no Ray.

The raylet starts ``python worker_start.py SCRIPT ARGUMENTS`` for each worker. That process then becomes the
worker, which loads Ray itself or is forked from a process that has loaded it. Ray's own script loads Ray
before that, which costs each worker about a second.

It uses only the standard library. Only workers in Python are started.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence

_CONTEXT, _LANGUAGE = "--serialized-runtime-env-context", "--language"
_UNSET = re.compile(r"\$\{[A-Z0-9_]+\}")


def main(words: Sequence[str]) -> None:
    options, script = _split(words)
    if options.get(_LANGUAGE, "PYTHON") != "PYTHON":
        sys.exit(f"a worker in {options[_LANGUAGE]}: expected one in Python")
    context = json.loads(options.get(_CONTEXT) or "{}")
    os.environ.update(expanded(context.get("env_vars") or {}, os.environ))
    os.execvp("bash", ["bash", "-c", line(context, script)])


def line(context: Mapping[str, object], script: Sequence[str]) -> str:
    """What the shell runs. As with Ray, only the script and its arguments are quoted."""
    prefix = context.get("command_prefix") or []
    assert isinstance(prefix, list)
    python = context.get("py_executable") or sys.executable
    first = context.get("override_worker_entrypoint") or script[0]
    return " ".join([*prefix, "exec", str(python), *map(shlex.quote, [str(first), *script[1:]])])


def expanded(values: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """``values``, in which variables stand for what they are in ``environment`` or in earlier values.

    Those in braces that are not set stand for nothing.
    """
    known = dict(environment)
    for name, value in values.items():
        known[name] = _UNSET.sub("", _expand(value, known))
    return {name: known[name] for name in values}


def _expand(value: str, known: Mapping[str, str]) -> str:
    found = re.compile(r"\$(?:(\w+)|\{([^}]*)\})", re.ASCII)
    return found.sub(lambda match: known.get(match[1] or match[2], match[0]), value)


def _split(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The options that the raylet adds for this script, and the rest."""
    options, rest = dict[str, str](), list[str]()
    left = iter(words)
    for word in left:
        name, has_value, value = word.partition("=")
        if name in (_CONTEXT, _LANGUAGE):
            options[name] = value if has_value else next(left)
        else:
            rest.append(word)
    return options, rest


if __name__ == "__main__":
    main(sys.argv[1:])
