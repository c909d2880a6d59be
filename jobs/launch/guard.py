"""Ends a ``parent`` with its driver's job. In a file of its own: an actor loads all that its file imports."""

import subprocess
import sys

import ray

from jobs.training.job import Strategy


class Guard:
    """An actor on the parent's node. The parent ends with this process, however it ends."""

    def __init__(self, key: str, load: tuple[Strategy, ...]) -> None:
        raylet = ray._private.worker._global_node.raylet_socket_name
        self._command = [sys.executable, "-m", "jobs.launch.parent", f"{raylet}.{key}", *load]
        self._process: subprocess.Popen[bytes] | None = None

    def executable(self) -> str:
        """Python's path on this node. Starts the parent if it is not there."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE)
        return sys.executable
