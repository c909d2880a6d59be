"""A process's way out, with its exit code, whatever its threads are in the middle of. Pure.

Python ends a daemon thread where it next wants to run. If it comes back from torch then, or from other code
that is not Python's, this aborts the process: whoever waits for it reads 134 instead of how a training ended.
"""

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn


def run(main: Callable[[], int]) -> NoReturn:
    """Ends the process with what ``main`` says, after all that others have to do at its exit."""
    code = 1  # of an exception, which Python has printed by then

    def end() -> None:
        for stream in (sys.stdout, sys.stderr):
            # Who read it may have ended before.
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)

    # Who is the first here is called last.
    atexit.register(end)
    try:
        code = main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        raise
    except KeyboardInterrupt:
        code = 130
        raise
    sys.exit(code)
