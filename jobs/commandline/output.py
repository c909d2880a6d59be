"""Standard output and error whose reader may have ended, as in ``longhaul ... | head``. Pure."""

import codecs
import errno
import os
import select
import sys
from contextlib import suppress
from io import BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path
from typing import TextIO

_OUTPUTS = (1, 2)  # the descriptors of standard output and error


# What people read, where the terminal's character set lacks it.
_INSTEAD = {"–": "-", "×": "x", "…": "...", "·": "-", "µ": "u", "°": " ", "≥": ">=", "≤": "<=", "→": "->"}


class _Closed(FileIO):
    """An output that the caller closed: what is written there is lost, and the writer learns it."""

    def write(self, _data: object) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def open_closed_outputs() -> None:
    """Opens what the caller closed (``>&-``), for which Python has None.

    Answers that go to standard output are lost then, which is an error as on a full disk. What goes to
    standard error is discarded.
    """
    if sys.stdout is None:
        sys.stdout = TextIOWrapper(BufferedWriter(_Closed(os.devnull, "w")), encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - it stays open to the end


def let_outputs_say_anything() -> None:
    """Replaces what the character set of an output lacks, as Latin-1 and ASCII do, instead of failing."""
    codecs.register_error("longhaul", _instead)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="longhaul")


def _instead(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    plain = (
        " " if one.isspace() else _INSTEAD.get(one) or one.encode("ascii", "backslashreplace").decode()
        for one in lacking
    )
    return "".join(plain), error.end


def printable(text: str) -> str:
    """Returns ``text`` without what could steer a terminal, in names that somebody else chose. Lines and tabs
    stay.
    """
    if all(line.isprintable() for line in text.replace("\t", " ").split("\n")):
        return text
    # The import loads what a plain line does not need.
    from reporting.analysis.formatting import clean

    return clean(text)


def one_line(text: str) -> str:
    """Returns ``text`` as a single line, so that a name that somebody else chose forges no further one."""
    return " ".join(text.splitlines())


def say(text: str, *, to: TextIO) -> None:
    """Prints a line, if it can still be printed. A terminal that is gone must not end the work."""
    with suppress(OSError):
        print(printable(text), file=to, flush=True)


def output_problem(*, is_failing: bool = False) -> str | None:
    """Why what was printed can't be written, such as on a full disk; None if it was written.

    A command that is failing anyway prints one more line's end to see it: without a buffer nothing is left of
    what was lost.
    """
    try:
        sys.stdout.write("\n" if is_failing else "")
        sys.stdout.flush()
    except OSError as error:
        return error.strerror or str(error)
    return None


def is_reader_gone(error: BaseException) -> bool:
    """Whether nobody reads what the command prints any more. A broken pipe elsewhere is another matter."""
    if not isinstance(error, BrokenPipeError):
        return False
    outputs = select.poll()
    for descriptor in _OUTPUTS:
        outputs.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in outputs.poll(0))
