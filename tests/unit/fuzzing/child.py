"""Runs parsers on mutated files: ``python -m tests.unit.fuzzing.child SEED EXAMPLES FOLDER NAME...``.

The process may take ``MEMORY_BYTES`` of addresses beyond what it has when all is loaded, an example
``DEADLINE_S``, and nothing may be opened for writing outside of the folder. The exit code is the number of
parsers that broke a rule; of each the first file that made it do so is printed.
"""

import inspect
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.unit.fuzzing.mutations import mutated

MEMORY_BYTES = 1 << 30
DEADLINE_S = 10
# A draw takes half a millisecond, most files less.
FROM_ONE_DRAW = 10
# A refusal may repeat what it refuses, as escapes and in several lines, but not blow it up.
MOST_CHARS, TIMES_REPEATED = 10_000, 50
USUAL_DEPTH = 1000
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True, slots=True, kw_only=True)
class Parser:
    """``read`` is given the bytes, and a folder to put them in. ``refusals`` are errors that it may raise.

    ``nasty`` is put into its files beside what has broken other parsers.
    """

    read: Callable[[bytes, Path], object]
    refusals: tuple[type[Exception], ...]
    samples: tuple[bytes, ...]
    nasty: tuple[bytes, ...] = ()


class TooLong(BaseException):
    """No parser's error: nothing catches it."""


class WroteOutside(BaseException):
    pass


def main(first_seed: int, num_examples: int, folder: Path, names: list[str]) -> int:
    from tests.unit.fuzzing.parsers import PARSERS  # Some seconds, which the rules' own test does without.

    for name in names:
        (folder / name).mkdir()
        for sample in PARSERS[name].samples:
            PARSERS[name].read(sample, folder / name)  # It is good; and what is imported late is loaded.
    bound_memory(MEMORY_BYTES)
    sys.addaudithook(watch)
    num_bad = 0
    for name in names:
        problem = tried(PARSERS[name], folder / name, first_seed, num_examples)
        num_bad += problem is not None
        print(f"{name}: {problem or 'well'}", flush=True)
    return num_bad


def tried(parser: Parser, folder: Path, first_seed: int, num_examples: int) -> str | None:
    """Returns the traceback of the first problem and its file; None if there was none."""
    last: list[bytes] = []

    @seed(first_seed)
    @settings(
        max_examples=num_examples // FROM_ONE_DRAW,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=True))
    def try_some(by: Random) -> None:
        for _ in range(FROM_ONE_DRAW):
            last[:] = [mutated(by, parser.samples, parser.nasty)]
            with within(DEADLINE_S), only_below(folder):
                read(parser, last[0], folder)

    try:
        try_some()
    except BaseException:
        return f"{traceback.format_exc(limit=-6)}\n{last[0][:3000] if last else b''!r}"
    return None


def read(parser: Parser, data: bytes, folder: Path) -> None:
    try:
        parser.read(data, folder)
    except parser.refusals as error:
        text = str(error)
        # What steers a terminal is taken out where it is printed.
        most = MOST_CHARS + TIMES_REPEATED * len(data)
        assert len(text) <= most, f"a refusal of {len(text)} characters for {len(data)} bytes"


def bound_memory(more_bytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Of computing: how long that takes on a busy machine says nothing. And no deeper than usual: the library
    that makes the files lets calls go deeper.
    """
    signal.signal(signal.SIGPROF, _too_long)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(_depth() + USUAL_DEPTH)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.setrecursionlimit(before)


def _depth() -> int:
    frame, depth = inspect.currentframe(), 0
    while frame:
        frame, depth = frame.f_back, depth + 1
    return depth


def _too_long(_: int, __: FrameType | None) -> None:
    raise TooLong


_allowed: list[str] = []


@contextmanager
def only_below(folder: Path) -> Iterator[None]:
    """In the block nothing is opened for writing outside of the folder, and no program started."""
    _allowed[:] = [f"{folder.resolve()}{os.sep}"]
    try:
        yield
    finally:
        _allowed.clear()


def watch(event: str, arguments: tuple[object, ...]) -> None:
    if not _allowed:
        return
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES:
        path = arguments[0]
        if isinstance(path, str | bytes) and not os.path.realpath(os.fsdecode(path)).startswith(_allowed[0]):
            raise WroteOutside(os.fsdecode(path))
    if event in ("os.system", "subprocess.Popen", "os.exec", "socket.connect"):
        raise WroteOutside(event)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]))
