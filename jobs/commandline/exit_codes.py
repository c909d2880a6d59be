"""The exit codes of all commands, and the one way from an error to its lines and its code. Pure."""

import sys
from collections.abc import Callable, Mapping

from checkpointing.stores.contract import StoreError, Unavailable

EXIT_OK = 0
# No, or failed: a cell is slower, a checkpoint is damaged, a run did not finish.
EXIT_FAILED = 1
# The user's turn: a flag, a spec, a name.
EXIT_USAGE = 2
# Nobody can say, or yes with warnings.
EXIT_UNDECIDED = 3
EXIT_INTERRUPTED = 130
# As a shell has it for a command that is not there.
EXIT_NO_COMMAND = 127

# What is wrong about a store is the user's turn; one that is away may come back.
OF_STORES: Mapping[type[Exception], int] = {StoreError: EXIT_USAGE, Unavailable: EXIT_FAILED}


def run_command(
    name: str, story: Callable[[], int], codes: Mapping[type[Exception], int], *, speaks: bool = True
) -> int:
    """What ``story`` returns. An error of ``codes``, or of a class below one, becomes its lines on standard
    error, unless another process ``speaks``, and the code of the nearest class; Ctrl-C becomes 130.
    """
    try:
        return story()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except tuple(codes) as error:
        code = next(codes[kind] for kind in type(error).__mro__ if kind in codes)
        return complain(name, error, code) if speaks else code


def complain(name: str, problem: object, code: int) -> int:
    """Says each line of ``problem`` on standard error, as of the command ``name``; returns ``code``."""
    for line in str(problem).splitlines():
        print(f"longhaul {name}: {line}", file=sys.stderr)
    return code
