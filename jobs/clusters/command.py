"""``longhaul cluster`` shows a running cluster, or runs one command on a cluster on this machine."""

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
from cluster.nodes import ClusterView, query_cluster
from cluster.promised_vs_live import NodeFinding, differences
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
from jobs.commandline.output import printable

# An interrupted sweep needs this time to end its worker groups.
_PATIENCE_S = 45.0
_LAST_PATIENCE_S = 5.0


def cluster(args: argparse.Namespace) -> int:
    story = show if args.verb == "show" else local
    return run_command(f"cluster {args.verb}", lambda: story(args), {ClusterError: EXIT_USAGE})


def local(args: argparse.Namespace) -> int:
    """Runs a command on a local cluster and returns the command's exit code.

    The cluster and the command have ended when the function returns.
    """
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
    """Turns SIGTERM and SIGHUP into an exception, so that the cluster and the command are ended first."""
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
    """Runs ``command`` and returns its exit code as a shell reports it: 128 plus the number for a signal.

    A signal that stops this process is passed on to the command first, unless the terminal has sent it there.
    """
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
    """Ends ``process`` and returns its exit code. SIGKILL follows after at most 50 s."""
    if number is not None:
        process.send_signal(number)
    for patience_s, last_word in ((_PATIENCE_S, process.terminate), (_LAST_PATIENCE_S, process.kill)):
        try:
            return process.wait(patience_s)
        except subprocess.TimeoutExpired:
            last_word()
    return process.wait()


def _terminal_has_told_it() -> bool:
    """Says whether the terminal already sent SIGINT to the command.

    Ctrl-C reaches the whole foreground process group of the terminal. ``kill -INT`` reaches this process
    alone.
    """
    try:
        with Path("/dev/tty").open(encoding="utf-8") as terminal:
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
    view = query_cluster(address)
    findings = _held_against(promised, view) if promised else ()
    data, text = as_data(address, view.nodes, findings), as_lines(address, view.nodes, findings)
    print(json.dumps(data, indent=1) if args.json else printable(text))
    levels = {finding.level for finding in findings}
    return EXIT_FAILED if "failed" in levels else EXIT_UNDECIDED if "warning" in levels else EXIT_OK


def _held_against(promised: Inventory, view: ClusterView) -> tuple[NodeFinding, ...]:
    from cluster.live import inventory_of

    return differences(
        promised, inventory_of(view.table, view.draining, f"the Ray cluster at {view.address}")
    )
