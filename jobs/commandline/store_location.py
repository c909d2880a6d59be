"""Where relative places start. Pure."""

import os
from pathlib import Path

from cluster.ray_internals import is_job_driver


def store_base() -> Path:
    """Where a relative store starts: here; in a Ray job, whose directory vanishes, ``LONGHAUL_HOME``."""
    if is_job_driver():
        return Path(os.environ.get("LONGHAUL_HOME", "~/longhaul")).expanduser()
    return Path.cwd()
