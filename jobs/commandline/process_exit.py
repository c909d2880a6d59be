"""Ends a process with its own exit code, even while daemon threads are busy. Pure.

At exit Python ends a daemon thread when the thread next needs the interpreter. If the thread then returns
from torch or other native code, the process aborts. The caller would see exit code 134 instead of the
training's own.
"""

import atexit
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from os.path import expanduser
from typing import NoReturn

from jobs.commandline.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_READER_GONE, EXIT_USAGE
from jobs.commandline.interrupts import INTERRUPTING, heeded
from jobs.commandline.output import (
    is_reader_gone,
    let_outputs_say_anything,
    open_closed_outputs,
    output_problem,
    say,
)
from jobs.commandline.store_location import is_working_directory_gone


def run(main: Callable[[], int]) -> NoReturn:
    """Ends the process with the code that ``main`` returns, after all other exit handlers have run.

    A command whose output nobody reads any more ends without a word. One whose output can't be written, as on
    a full disk, ends with one line and has failed. In a working directory that was deleted ``main`` is not
    called, and one line says so. Ctrl-C is no error of the program, so it leaves no traceback. Once ``main``
    has returned, a stop signal ends the process at once, with that code too.
    """
    code = 1  # of an exception, which Python has printed by then

    def end(*_: object) -> None:
        for stream in (sys.stdout, sys.stderr):
            # The reader of a pipe may have ended before; a signal may have come while this was at work.
            with suppress(OSError, ValueError, RuntimeError):
                stream.flush()
        os._exit(code)

    # Handlers run in reverse order: the first one registered runs last.
    atexit.register(end)
    open_closed_outputs()
    let_outputs_say_anything()
    _have_a_home()
    try:
        code = _code(main)
        # Whoever stops a service asks again and again; by now all is saved.
        for number in heeded(INTERRUPTING):
            signal.signal(number, end)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if code == 0 and (problem := output_problem()):
            code = _lost(problem)
        raise
    except KeyboardInterrupt:
        # No traceback: somebody who ends a command knows where.
        code = EXIT_INTERRUPTED
        say("longhaul: interrupted", to=sys.stderr)
    except BrokenPipeError as error:
        if not is_reader_gone(error):
            raise
        code = EXIT_READER_GONE
    except OSError:
        if not (problem := output_problem(is_failing=True)):
            raise
        code = _lost(problem)
    sys.exit(code)


def _have_a_home() -> None:
    """Ray does not load where there is none: HOME is unset, and the user has no name. Containers take the
    root, and so do we.
    """
    if expanduser("~") == "~":  # noqa: PTH111 - that of a Path raises where there is no home
        os.environ["HOME"] = "/"


def _lost(problem: str) -> int:
    say(f"longhaul: the output can't be written ({problem}); nothing else was lost", to=sys.stderr)
    return EXIT_FAILED


def _code(main: Callable[[], int]) -> int:
    if not is_working_directory_gone():
        return main()
    say("longhaul: the working directory was deleted; change to one that exists (`cd DIR`)", to=sys.stderr)
    return EXIT_USAGE
