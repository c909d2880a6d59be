"""What a command says before it starts if a library is older than the oldest version that works."""

from cluster.probe.host import version_of
from cluster.probe.versions import too_old
from jobs.commandline.exit_codes import EXIT_OK, EXIT_USAGE, complain

# They look and explain, and need none of what may be too old; doctor names it itself.
_NEED_NONE = frozenset({"doctor", "explain", "completion"})


def refuse_old_libraries(command: str) -> int:
    """0 if ``command`` may start; else one line for each library on standard error, and the exit code."""
    if command in _NEED_NONE or not (problems := list(too_old(version_of))):
        return EXIT_OK
    return complain(command, "\n".join(problems), EXIT_USAGE)
