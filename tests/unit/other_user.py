"""Another user of the same machine, who can do what the system lets anybody do."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as another user")

# What is imported in ``script`` before it calls ``become`` is read as root.
_BECOME = f"""
import os, sys
def become():
    os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
"""


def as_nobody(script: str, *arguments: object) -> str:
    """What ``script`` prints, which must end well; it is root until it calls ``become()``."""
    done = subprocess.run(
        [sys.executable, "-c", _BECOME + script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def common_folder() -> Iterator[Path]:
    """As ``/tmp`` is: everybody may write to it, and each only removes what is theirs."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)
