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

from jobs.commandline.exit_codes import EXIT_INTERRUPTED, EXIT_READER_GONE
from jobs.commandline.output import is_reader_gone, open_closed_outputs


def run(main: Callable[[], int]) -> NoReturn:
    """Ends the process with the code that ``main`` returns, after all other exit handlers have run.

    A command whose output nobody reads any more ends without a word.
    """
    code = 1  # of an exception, which Python has printed by then

    def end() -> None:
        for stream in (sys.stdout, sys.stderr):
            # The reader of a pipe may have ended before.
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)

    # Handlers run in reverse order: the first one registered runs last.
    atexit.register(end)
    open_closed_outputs()
    try:
        code = main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        raise
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
        raise
    except BrokenPipeError as error:
        if not is_reader_gone(error):
            raise
        code = EXIT_READER_GONE
    sys.exit(code)
