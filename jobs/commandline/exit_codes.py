"""Defines the exit codes of all commands, and how an error becomes printed lines and a code. Pure."""

import sys
from collections.abc import Callable, Mapping

from checkpointing.stores.contract import StoreError, Unavailable
from jobs.commandline.output import is_reader_gone, output_problem, say

EXIT_OK = 0
# The answer is no, or the command failed: a cell is slower, a checkpoint is damaged, a run did not finish.
EXIT_FAILED = 1
# The user must change something: a flag, a spec, a name.
EXIT_USAGE = 2
# The question can't be decided, or the answer is yes with warnings.
EXIT_UNDECIDED = 3
EXIT_INTERRUPTED = 130
# The code that a shell shows for a command whose output is cut off, as in ``longhaul ... | head -1``.
EXIT_READER_GONE = 141
# The code that a shell returns for an unknown command.
EXIT_NO_COMMAND = 127

# A ``StoreError`` is the user's to fix; an unavailable store may come back by itself.
OF_STORES: Mapping[type[Exception], int] = {StoreError: EXIT_USAGE, Unavailable: EXIT_FAILED}


def run_command(
    name: str, story: Callable[[], int], codes: Mapping[type[Exception], int], *, is_main_process: bool = True
) -> int:
    """Returns the exit code of ``story``, and turns its expected errors into messages.

    An error whose class, or a base class, is in ``codes`` is printed on standard error and returns the code
    of the nearest such class. Other processes than the main one print nothing, since that one does.
    Ctrl-C returns 130. Other errors propagate, also that nobody reads the output any more.
    """
    try:
        code = story()
        sys.stdout.flush()  # a reader that is gone is noticed here at the latest
        return code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except tuple(codes) as error:
        if is_reader_gone(error) or (isinstance(error, OSError) and output_problem(is_failing=True)):
            raise
        code = next(codes[kind] for kind in type(error).__mro__ if kind in codes)
        return complain(name, error, code) if is_main_process else code


def complain(name: str, problem: object, code: int) -> int:
    """Prints ``problem`` line by line on standard error, as from the command ``name``. Returns ``code``."""
    for line in str(problem).splitlines():
        say(f"longhaul {name}: {line}", to=sys.stderr)
    return code
