"""Standard output and error whose reader may have ended, as in ``longhaul ... | head``. Pure."""

import os
import select
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO

_OUTPUTS = (1, 2)  # the descriptors of standard output and error


def open_closed_outputs() -> None:
    """Discards what goes to an output that the caller closed (``>&-``), for which Python has None."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - it stays open to the end


def say(text: str, *, to: TextIO) -> None:
    """Prints a line, if it can still be printed. A terminal that is gone must not end the work."""
    with suppress(OSError):
        print(text, file=to, flush=True)


def is_reader_gone(error: BaseException) -> bool:
    """Whether nobody reads what the command prints any more. A broken pipe elsewhere is another matter."""
    if not isinstance(error, BrokenPipeError):
        return False
    outputs = select.poll()
    for descriptor in _OUTPUTS:
        outputs.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in outputs.poll(0))
