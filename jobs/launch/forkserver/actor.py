"""Starts a node's forkserver and ends it with its driver's job.

In a file of its own: an actor loads all that its file imports.
"""

import os
import shlex
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from cluster.environment import without_device_lists
from cluster.ray_internals import raylet_socket
from jobs.launch.forkserver import client
from jobs.training.task.job import Strategy

_PATIENCE_S = 120.0
_LOOK_EVERY_S = 0.1


class ForkserverActor:
    """An actor on the forkserver's node. The forkserver ends with this process, however the process ends.

    The forkserver gets ``environment``, which may hold secrets.
    """

    def __init__(self, key: str, load: tuple[Strategy, ...], environment: Mapping[str, str]) -> None:
        self._key = key
        self._socket = Path(f"{raylet_socket()}.{key}")
        flags = [*["-s"] * sys.flags.no_user_site, *["-S"] * sys.flags.no_site]
        self._command = [
            sys.executable,
            *flags,
            "-m",
            "jobs.launch.forkserver.server",
            str(self._socket),
            *load,
        ]
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None

    def executable(self) -> str:
        """The command that forks on this node, in place of Python. Starts the forkserver if needed, and waits
        for it.

        Raises ``RuntimeError`` if the forkserver ends by itself or does not answer in time.
        """
        if self._process is None or self._process.poll() is not None:
            remove_socket(self._socket)
            # Ray has told this process where modules are; the forkserver would not know.
            told = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            environment = {**without_device_lists(os.environ), **self._environment, **told}
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, env=environment)
        deadline = time.monotonic() + _PATIENCE_S
        while not self._socket.is_socket():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                raise RuntimeError(f"{shlex.join(self._command)}: {self._process.returncode}")
            time.sleep(_LOOK_EVERY_S)
        return f"{shlex.quote(sys.executable)} {shlex.quote(str(client.__file__))} {self._key}"


def remove_socket(path: Path) -> None:
    """Removes the socket of a forkserver that has ended. Anything else of that name is not ours and stays, so
    the next forkserver cannot start.
    """
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
