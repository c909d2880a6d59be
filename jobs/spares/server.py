"""The process that waits with everything loaded: ``python -m jobs.spares.server TORCHRUN NAME SCRIPT``.

It forks a rank for each client that asks under ``NAME``, and ends with the torchrun whose process number it
was given. A rank ends if its client does, or if this process dies. Nobody of another user is answered.
"""

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from jobs.launch.forkserver.client import HERE, MOST_BYTES, user_of
from jobs.spares import script
from jobs.training.preload import why_cut_off

# A client sends what it wants as soon as it is connected.
_PATIENCE_S = 10.0
_MOST_RANKS = 1024
_PR_SET_PDEATHSIG = 1


@dataclass(slots=True, kw_only=True, eq=False)
class _Rank:
    """``end`` can be read once the process ``pid`` has ended."""

    pid: int
    end: int
    client: socket.socket

    def close(self) -> None:
        os.close(self.end)
        self.client.close()


def main(torchrun: int, name: str, words: Sequence[str]) -> None:
    server = os.getpid()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            torchruns_end = os.pidfd_open(torchrun)
            listener.bind(f"\0{name}")
        except OSError:  # Another rank's process has the name, or torchrun has ended.
            return
        listener.listen(_MOST_RANKS)
        gc.disable()
        script.load(words)
        gc.freeze()
        gc.enable()
        if why := why_cut_off():
            sys.exit(f"jobs.spares: nothing waits with everything loaded, since {why}")
        asked = _serve(listener, torchruns_end)
    if asked is not None:
        _become(asked, server)
        script.run(asked["words"])


def _serve(listener: socket.socket, torchruns_end: int) -> dict[str, Any] | None:
    """Returns in each rank what was asked for; None in this process, after torchrun and the last rank."""
    ranks: list[_Rank] = []
    is_wanted = True
    while is_wanted or ranks:
        asking: list[socket.socket | int] = [listener, torchruns_end] if is_wanted else []
        watched = [*asking, *(rank.client for rank in ranks), *(rank.end for rank in ranks)]
        ready = select.select(watched, [], [])[0]
        for rank in tuple(ranks):
            if rank.client in ready:
                _pass_on(rank)
            if rank.end in ready:
                ranks.remove(rank)
                _tell_end(rank)
        if torchruns_end in ready:
            is_wanted = False
        elif listener in ready:
            client, _ = listener.accept()
            if (asked := _asked(client)) is None:
                client.close()
            elif (pid := os.fork()) == 0:
                for rank in ranks:
                    rank.close()
                client.close()
                return asked
            else:
                ranks.append(_began(pid, client, asked))
    return None


def _asked(client: socket.socket) -> dict[str, Any] | None:
    """What a client wants; None if it is another user's, or has gone."""
    client.settimeout(_PATIENCE_S)
    with suppress(OSError, ValueError):
        if user_of(client) == os.getuid():
            told, streams, _, _ = socket.recv_fds(client, MOST_BYTES, 3)
            asked: dict[str, Any] = json.loads(told)
            return {**asked, "streams": list(streams)}
    return None


def _began(pid: int, client: socket.socket, asked: dict[str, Any]) -> _Rank:
    for stream in asked["streams"]:
        os.close(stream)
    # Its signals go to its group: to what it has started, too. The rank does the same, whoever comes first.
    with suppress(OSError):
        os.setpgid(pid, pid)
    with suppress(OSError):
        client.send(HERE)
    return _Rank(pid=pid, end=os.pidfd_open(pid), client=client)


def _pass_on(rank: _Rank) -> None:
    """A client's signal reaches its rank. A client that has ended takes its rank along."""
    try:
        number = rank.client.recv(1)
    except OSError:
        number = b""
    # Nobody else has its number before this process has asked for its end.
    with suppress(ProcessLookupError):
        os.killpg(rank.pid, number[0] if number else signal.SIGKILL)


def _tell_end(rank: _Rank) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(rank.pid, 0)[1])
    with suppress(OSError):
        rank.client.send(str(code).encode())
    rank.close()


def _become(asked: dict[str, Any], server: int) -> None:
    """Turns this forked process into the rank, with the client's environment, folder, cores and streams."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)
    with suppress(OSError):
        os.setpgid(0, 0)
    for number, stream in enumerate(asked["streams"]):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    os.sched_setaffinity(0, asked["cores"])
    # Python's own generator reseeds itself after a fork; NumPy's does not.
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
