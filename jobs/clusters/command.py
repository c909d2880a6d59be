"""The stories of ``longhaul cluster``: what is there, and a cluster on this machine for one command."""

import argparse
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from cluster.cluster_file import read_cluster
from cluster.inventory import ClusterError, Inventory
from cluster.nodes import ClusterView, look
from cluster.promised_vs_live import NodeFinding, presence
from jobs.clusters.tables import as_data, as_lines
from jobs.commandline.exit_codes import (
    EXIT_FAILED,
    EXIT_NO_COMMAND,
    EXIT_OK,
    EXIT_UNDECIDED,
    EXIT_USAGE,
    complain,
    run_command,
)

# A sweep that is interrupted ends its worker groups first.
_PATIENCE_S = 45.0
_LAST_PATIENCE_S = 5.0


def cluster(args: argparse.Namespace) -> int:
    story = show if args.verb == "show" else local
    return run_command(f"cluster {args.verb}", lambda: story(args), {ClusterError: EXIT_USAGE})


def local(args: argparse.Namespace) -> int:
    """The command's exit code. Nothing of the cluster or the command is left when it is told."""
    from cluster.local_ray.simulated import NotStarted, mixed_cluster

    command = args.run[1:] if args.run[:1] == ["--"] else args.run
    if not command:
        return complain("cluster local", "there is no command; give one after `--`", EXIT_USAGE)
    inventory = read_cluster(args.file)
    try:
        with _signals_unwind(), mixed_cluster(inventory) as found:
            return _run(command, os.environ | found.environment)
    except NotStarted as error:
        return complain("cluster local", error, EXIT_FAILED)


@contextmanager
def _signals_unwind() -> Iterator[None]:
    """SIGTERM and SIGHUP end this process as an exception does, so that everything is ended on the way."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, _unwind) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _unwind(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    """As a shell tells it: 128 and more for a signal. What ends us is handed to the command first."""
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        return complain("cluster local", f"{command[0]}: {error.strerror}", EXIT_NO_COMMAND)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        code = _end(process, None if _terminal_has_told_it() else signal.SIGINT)
    except SystemExit as ending:
        code = _end(process, signal.Signals(int(str(ending.code)) - 128))
    return code if code >= 0 else 128 - code


def _end(process: "subprocess.Popen[bytes]", number: signal.Signals | None) -> int:
    """Its exit code, after at most 50 s and then SIGKILL."""
    if number is not None:
        process.send_signal(number)
    for patience_s, last_word in ((_PATIENCE_S, process.terminate), (_LAST_PATIENCE_S, process.kill)):
        try:
            return process.wait(patience_s)
        except subprocess.TimeoutExpired:
            last_word()
    return process.wait()


def _terminal_has_told_it() -> bool:
    """Ctrl-C reaches all of the terminal's foreground group; what ``kill -INT`` sends reaches us alone."""
    try:
        with Path("/dev/tty").open() as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def show(args: argparse.Namespace) -> int:
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        raise ClusterError(
            "RAY_ADDRESS names no cluster; run this in a job, on the head with RAY_ADDRESS=auto, or under "
            "`longhaul cluster local FILE -- ...`"
        )
    promised = read_cluster(args.cluster) if args.cluster else None
    view = look(address)
    findings = _held_against(promised, view) if promised else ()
    data, text = as_data(address, view.nodes, findings), as_lines(address, view.nodes, findings)
    print(json.dumps(data, indent=1) if args.json else text)
    levels = {finding.level for finding in findings}
    return EXIT_FAILED if "failed" in levels else EXIT_UNDECIDED if "warning" in levels else EXIT_OK


def _held_against(promised: Inventory, view: ClusterView) -> tuple[NodeFinding, ...]:
    from cluster.live import inventory_of

    return presence(promised, inventory_of(view.table, view.draining, f"the Ray cluster at {view.address}"))
