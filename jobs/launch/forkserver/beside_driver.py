"""The forkserver on a driver's machine, loaded while a private Ray starts: for cells or attempts on CPUs.

Each worker is forked from a process that has loaded the libraries and has done nothing else. So every cell
and every attempt finds the same fresh state, and none has to load it. Work on devices has none.
"""

import json
import os
import shlex
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from cluster.environment import without_device_lists
from cluster.signals import deaf_children
from jobs.execution.messages import Upcoming
from jobs.launch.forkserver import client
from jobs.launch.forkserver.actor import remove_socket

# How long the first worker group waits for what each of its workers would else load itself. A busy machine
# needs all of it; what hangs is ended.
_LOADING_S = 90.0
# As Ray tells each worker that has one CPU, unless the variable is set.
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}
_ON_CPUS = {"DS_ACCELERATOR": "cpu"}
# Forking and answering takes a hundredth of this time.
_ANSWER_S = 2.0


class DriverForkserver:
    """The forkserver for what is ``upcoming``. It ends with this process, however this one ends.

    ``is_loading`` is asked until it is False; then ``executable`` is the command that forks, or None. A
    forkserver that did not load in time, has died, or does not answer is ended and never used again.
    """

    def __init__(
        self,
        upcoming: Upcoming,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._upcoming = upcoming
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: Path | None = None
        self._deadline_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self) -> None:
        """Starts to load all but Ray. Call it with the variables set that Ray's processes have."""
        self.end()
        theirs = self._upcoming.environment
        path = os.pathsep.join(filter(None, [theirs.get("PYTHONPATH"), *sys.path]))
        inherited = without_device_lists(os.environ)
        told = {**_ONE_THREAD, **inherited, **_ON_CPUS, **theirs, "PYTHONPATH": path}
        work = (self._upcoming.work, *self._upcoming.strategies)
        # Without -P it would load what lies in the folder that this process was started in.
        command = [sys.executable, "-P", "-m", "jobs.launch.forkserver.server", "-", *work]
        # Its driver ends it, and no signal does: what is forked from it saves when everything is to stop.
        with deaf_children():
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=told,
                start_new_session=True,
            )

    def listen_beside(self, raylet: str, variables: Mapping[str, str]) -> None:
        """Lets it load Ray with the ``variables`` of that raylet's workers, and answer at a socket beside the
        raylet's. From now on it has to be loaded in time.
        """
        self._socket = Path(f"{raylet}.{uuid.uuid4().hex[:8]}")
        self._deadline_s = self._clock() + _LOADING_S
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # It has died, which the next look will see.
                line = json.dumps({"socket": str(self._socket), "variables": dict(variables)})
                self._process.stdin.write(f"{line}\n".encode())
                self._process.stdin.flush()

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Whether workers with this environment may be forked from it."""
        return self._process is not None and environment == self._upcoming.environment

    def is_loading(self) -> bool:
        if self._process is None or self._socket is None or self._socket.is_socket():
            return False
        if self._process.poll() is None and self._clock() < self._deadline_s:
            return True
        self.end()
        return False

    def executable(self) -> str | None:
        """What Ray is to start instead of Python."""
        if self._process is None or self._socket is None:
            return None
        if self._process.poll() is not None or not _answers(self._socket):
            self.end()
            return None
        return shlex.join([sys.executable, str(client.__file__), str(self._socket)])

    def end(self) -> None:
        """Ends it; what was forked from it goes on."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        if self._socket is not None:
            remove_socket(self._socket)


def _answers(path: Path) -> bool:
    """Whether a child is forked for somebody who then asks for nothing."""
    deadline = time.monotonic() + _ANSWER_S
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(_ANSWER_S)
            try:
                connection.connect(str(path))
                connection.send(b"?")
                return connection.recv(1) == client.HERE
            except ConnectionRefusedError:
                # The socket has its name a moment before it listens.
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.01)
            except OSError:
                return False
