"""Runs our command line in a process that begins with everything imported.

For tests of what a command does, not of how it starts: a command that trains on one device imports for longer
than it trains a small model. ``command_line.run`` starts Python itself.
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
    """As ``run`` of ``python -m jobs.cli ...``: a process of its own, with its exit code."""
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
