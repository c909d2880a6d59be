"""Imports of matplotlib see no settings but its own.

Matplotlib looks for settings while it is imported: first in the working directory, where another user may
have put a file or a pipe of that name. It also writes log lines about a home without room for its caches.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path


@contextmanager
def undisturbed() -> Iterator[None]:
    """Import the modules that draw inside this block; at its end directory and variables are as before.

    The process's working directory changes for the time of the import, so that no other thread may need it.
    """
    spec = find_spec("matplotlib")
    if spec is None or spec.origin is None:
        yield
        return
    own = Path(spec.origin).parent
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with _directory("/"), _variables(MPLBACKEND="agg", MATPLOTLIBRC=str(own / "mpl-data" / "matplotlibrc")):
        yield


@contextmanager
def _directory(path: str) -> Iterator[None]:
    try:
        before = os.open(".", getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY)
    except OSError:  # It is gone or closed, so that nothing can be read there either.
        yield
        return
    try:
        os.chdir(path)
        yield
    finally:
        os.fchdir(before)
        os.close(before)


@contextmanager
def _variables(**wanted: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            with suppress(KeyError):
                del os.environ[name]
            if value is not None:
                os.environ[name] = value
