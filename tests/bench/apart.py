"""A measurement in a process of its own, as a rank on a CPU is: one thread, and no memory used before."""

import json
import os
import subprocess
import sys
from typing import Any

_PATIENCE_S = 900


def apart(module: str, *arguments: object) -> Any:
    """What ``python -m module arguments`` prints last, read as JSON. Raises if it fails."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False, env=environment
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
