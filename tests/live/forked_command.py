"""Runs our command line in a process that begins with everything imported.

For tests of what a command does, not of how it starts: a command that trains on one device imports for longer
than it trains a small model. ``command_line.run`` starts Python itself.

It differs from a command that a user starts in these:

* All has been imported, in one order: an import that is missing, circular or first done by a thread shows in
  no such test. Nor does a variable that is read at an import (``OMP_NUM_THREADS`` is set anew).
* Handlers of ``atexit`` do not run: the end is not that of ``commandline.process_exit.run``, which keeps
  busy daemon threads from aborting the process. The exit code is the one that ``main`` returned.
* ``sys.argv`` is that of the tests, and the hash seed that of all other children: sets have one order.

So training on tokens to the end, and ``--fresh`` and ``--resume NAME`` of a run, start in no other way in
live tests outside the soak. A run that is alone, killed, stopped or resumed from the newest does.
"""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.live.command_line import DEADLINE_S, ROOT, environment_of_commands
from tests.live.ranks import FORKS, ON_CPU

_BEGIN = ["-m", "jobs.cli"]


def run_forked(command: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """As ``run`` of ``python -m jobs.cli ...``, but for what is said above."""
    _, *begin = command[:3]
    assert begin == _BEGIN, f"not ours: {command}"
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / name for name in ("stdout", "stderr")]
        given = (command[3:], environment_of_commands() | environment | ON_CPU, outputs)
        process = FORKS.Process(target=_be_the_command, args=given)
        process.start()
        try:
            process.join(DEADLINE_S)
            assert process.exitcode is not None, f"it hangs: {command}"
        finally:
            process.kill()
            process.join()
        stdout, stderr = (path.read_text() for path in outputs)
    return subprocess.CompletedProcess(command, process.exitcode, stdout, stderr)


def _be_the_command(words: list[str], environment: dict[str, str], outputs: list[Path]) -> None:
    import torch

    from jobs.cli.__main__ import main
    from jobs.commandline.process_exit import run

    os.chdir(ROOT)
    os.environ.clear()
    os.environ |= environment
    for number, path in enumerate(outputs, start=1):
        with path.open("wb") as file:
            os.dup2(file.fileno(), number)
    # What reads the variable has been loaded before.
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    run(lambda: main(words))
