"""Ends a process with its own exit code, even while daemon threads are busy. Pure.

At exit Python ends a daemon thread when the thread next needs the interpreter. If the thread then returns
from torch or other native code, the process aborts. The caller would see exit code 134 instead of the
training's own.
"""

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn


def run(main: Callable[[], int]) -> NoReturn:
    """Ends the process with the code that ``main`` returns, after all other exit handlers have run."""
    code = 1  # of an exception, which Python has printed by then

    def end() -> None:
        for stream in (sys.stdout, sys.stderr):
            # The reader of a pipe may have ended before.
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)

    # Handlers run in reverse order: the first one registered runs last.
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
