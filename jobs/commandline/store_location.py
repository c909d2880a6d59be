"""Says where a relative store path starts, and whether there is such a place. Pure."""

import os
from pathlib import Path

from cluster.ray_internals import is_job_driver


def store_base() -> Path:
    """The folder where a relative store path starts.

    In a Ray job the folder is ``LONGHAUL_HOME`` (default ``~/longhaul``), because the job's own directory is
    deleted. Elsewhere it is the working directory.
    """
    if is_job_driver():
        return Path(os.environ.get("LONGHAUL_HOME", "~/longhaul")).expanduser()
    return Path.cwd()


def is_working_directory_gone() -> bool:
    """Whether somebody deleted the working directory, so that no relative path leads anywhere."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False
