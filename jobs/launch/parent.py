"""A process that has loaded all that a worker loads, and forks: that takes milliseconds, and loading seconds.

``python -m jobs.launch.parent SOCKET [STRATEGY]`` answers ``jobs.launch.child`` until its input ends.
It never connects to Ray and starts no thread that lasts, so a child is as a process that was started anew.
"""

import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import get_args

from jobs.launch.child import GO, HERE, MOST_BYTES
from jobs.training.job import Strategy

_LOWEST_PRIORITY = 19
_PATIENCE_S = 10.0


def main(path: str, strategy: Strategy | None) -> None:
    connection = _serve(path, strategy)
    if connection is not None and _become(connection):
        runpy.run_path(sys.argv[0], run_name="__main__")


def _serve(path: str, strategy: Strategy | None) -> socket.socket | None:
    """Returns in each child, with who has asked for it, and in the end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        # For this user alone: who may connect may run anything.
        Path(path).unlink(missing_ok=True)
        before = os.umask(0o177)
        listener.bind(path)
        os.umask(before)
        listener.listen(64)
        _load_aside(strategy)
        # Nobody waits for children.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                return connection
            connection.close()
    Path(path).unlink(missing_ok=True)
    return None


def _load_aside(strategy: Strategy | None) -> None:
    """Whoever trains on its node comes first."""

    def load_at_low_priority() -> None:
        # Linux counts it by thread; a process that has lowered its own can't raise it again.
        os.nice(_LOWEST_PRIORITY)
        # A controller needs no more.
        import_module("jobs.launch.train_v2")
        if strategy:
            from jobs.training.worker import load

            load(strategy)

    # Looking for garbage takes a quarter of the time, and what is loaded is none.
    gc.disable()
    thread = Thread(target=load_at_low_priority)
    thread.start()
    thread.join()
    gc.freeze()
    gc.enable()


def _become(connection: socket.socket) -> bool:
    """Gives this process, just forked, what the one was given that asks for it; whether that still does."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Ray ends a worker with its whole process group.
    os.setpgid(0, 0)
    connection.settimeout(_PATIENCE_S)
    try:
        told, streams, _, _ = socket.recv_fds(connection, MOST_BYTES, 3)
        connection.send(HERE)
        is_asked = connection.recv(1) == GO
    except OSError:
        is_asked = False
    if not is_asked:
        # Who has waited for too long has started it another way.
        return False
    # The other side ends when this one is closed, so with this process.
    connection.detach()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    asked = json.loads(told)
    os.environ.clear()
    # Ray lowers each worker's priority by so much, and this one has its parent's.
    os.environ.update(asked["environment"], RAY_worker_niceness="0")
    os.chdir(asked["folder"])
    sys.argv[:] = asked["words"]
    return True


if __name__ == "__main__":
    main(sys.argv[1], next((known for known in get_args(Strategy) if known in sys.argv[2:]), None))
