"""Keeps Ray's processes alive when Slurm sends SIGTERM to all processes of a job. Pure."""

import os
import signal
from collections.abc import Sequence


def become(command: Sequence[str]) -> None:
    """Becomes ``command``, with SIGTERM blocked in it and in all that it starts.

    ``scancel``, a preemption and the end of the wall time send SIGTERM to everything at once. The
    driver hears it, stops at a step and saves, and needs its workers for that. Ray sets a handler of its own,
    which a blocked signal never reaches. The job's script ends Ray with SIGKILL.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
    os.execvp(command[0], list(command))
