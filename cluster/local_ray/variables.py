"""Environment variables of this process, set for a while. Pure."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Inside, ``values`` are set, for this process and what it starts; afterwards all is as before."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
