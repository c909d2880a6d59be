"""The forkserver: a process that has loaded all that a worker loads. Forking takes milliseconds, loading
seconds.

``python -m jobs.launch.forkserver.server SOCKET [cells] [STRATEGY ...]`` answers ``client`` once the socket
exists, until its standard input ends. The process never connects to Ray, so a child is like a newly started
process.

With ``-`` as SOCKET somebody waits: all but Ray is loaded at once. The first line of standard input then
gives the socket and the variables that Ray's core reads as it is loaded, and in no child again.
"""

import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import get_args

from cluster.ray_internals import ids_from_the_kernel, keep_priority
from jobs.launch.forkserver.client import GO, HERE, MOST_BYTES, script_of
from jobs.training.preload import Work, in_a_child, load, why_cut_off
from jobs.training.task.job import Strategy

_LOWEST_PRIORITY = 19
# Beside a Ray that starts, which gives its own processes 30 s.
_LOW_PRIORITY = 10
_ASKS_FOR_SOCKET = "-"
_PATIENCE_S = 10.0


def main(path: str, work: Work, strategies: Sequence[Strategy]) -> None:
    if path == _ASKS_FOR_SOCKET:
        _load_aside(partial(_load_training, work, strategies), niceness=_LOW_PRIORITY)
        path = _asked_socket()
        if not path:
            return
        _load_aside(_load_ray, niceness=0)
    else:
        _load_aside(partial(_load_all, work, strategies), niceness=_LOWEST_PRIORITY)
    if in_a_child(_first_id) == in_a_child(_first_id):
        sys.exit("what is loaded makes Ray's ids the same in each child")
    if why := why_cut_off():
        sys.exit(why)
    connection = _serve(path)
    if connection is not None:
        _become(connection)
        runpy.run_path(sys.argv[0], run_name="__main__")


def _serve(path: str) -> socket.socket | None:
    """Returns in each child the connection of the client that asked; returns None in the forkserver when
    input ends.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        # Only this user may connect: a client may run anything.
        before = os.umask(0o177)
        listener.bind(path)
        os.umask(before)
        listener.listen(64)
        # No code waits for the children, so the kernel must reap them.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                return connection
            connection.close()
    # The socket's name may belong to another forkserver by now.
    return None


def _asked_socket() -> str:
    """Waits for the first line and sets its variables. Empty if input ends before."""
    line = sys.stdin.readline()
    if not line:
        return ""
    asked = json.loads(line)
    os.environ.update(asked["variables"])
    return str(asked["socket"])


def _load_all(work: Work, strategies: Sequence[Strategy]) -> None:
    _load_ray()
    _load_training(work, strategies)


def _load_ray() -> None:
    with ids_from_the_kernel():
        # A controller needs no more.
        import_module("jobs.launch.ray_train.trainer")


def _load_training(work: Work, strategies: Sequence[Strategy]) -> None:
    for strategy in strategies:
        load(strategy, work)


def _load_aside(load_all: Callable[[], None], niceness: int) -> None:
    """Loads in a thread of that niceness: a training on this node, or a Ray that starts, comes first."""

    def load_at_priority() -> None:
        # Linux keeps the priority per thread. A process that has lowered its own cannot raise it again.
        os.nice(niceness)
        load_all()

    # Garbage collection takes a quarter of the loading time, and what is loaded is no garbage.
    gc.disable()
    thread = Thread(target=load_at_priority)
    thread.start()
    thread.join()
    gc.freeze()
    gc.enable()


def _first_id() -> bytes:
    """The first id that Ray draws in this process."""
    import ray

    return bytes(ray.ObjectID.from_random().binary())


def _become(connection: socket.socket) -> None:
    """Turns this forked process into the worker that the client stands for, with its environment, arguments
    and streams.

    Ends this process if the client has not waited: the client runs the script itself then.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Ray ends a worker with its whole process group, so each child needs its own.
    os.setpgid(0, 0)
    connection.settimeout(_PATIENCE_S)
    try:
        told, streams, _, _ = socket.recv_fds(connection, MOST_BYTES, 3)
        connection.send(HERE)
        is_asked = connection.recv(1) == GO
    except OSError:
        is_asked = False
    if not is_asked:
        os._exit(0)
    # The client ends when this end is closed, that is, with this process.
    connection.detach()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    asked = json.loads(told)
    os.environ.clear()
    os.environ.update(asked["environment"] | keep_priority())
    os.chdir(asked["folder"])
    sys.argv[:] = script_of(asked["words"])
    # Where a script's folder stands, if this process has one of its own: not with -P.
    sys.path[: not sys.flags.safe_path] = [str(Path(sys.argv[0]).parent)]
    # Python's own generator reseeds itself after a fork; NumPy's does not.
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()


if __name__ == "__main__":
    socket_path, *told = sys.argv[1:]
    main(
        socket_path,
        "cells" if "cells" in told else "attempt",
        [known for known in get_args(Strategy) if known in told],
    )
