"""Where relative places start. Pure."""

import os
from pathlib import Path


def store_base() -> Path:
    """Where a relative store starts: here; in a Ray job, whose directory vanishes, ``LONGHAUL_HOME``."""
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
        return Path(os.environ.get("LONGHAUL_HOME", "~/longhaul")).expanduser()
    return Path.cwd()
