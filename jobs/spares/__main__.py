"""What torchrun starts in the place of a rank: it asks this node's spare process for that rank.

It stands for the rank: it has the rank's exit code, passes signals on, and takes the rank with it if it is
killed. It loads neither torch nor Longhaul's own loop. Where nothing answers, it becomes the script.
"""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from jobs.commandline.exit_codes import EXIT_FAILED, EXIT_USAGE
from jobs.commandline.owner import owner_name
from jobs.launch.forkserver.client import HERE, user_of
from jobs.launch.torchrun import is_under_torchrun

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# Until the process that waits has a name. It loads afterwards, and a rank waits for as long as that takes.
_PATIENCE_S = 30.0
_LOOK_EVERY_S = 0.02
_USAGE = "usage: torchrun --max-restarts N -m -- jobs.spares (SCRIPT | -m MODULE) [ARGUMENTS]"


def main(words: list[str]) -> int:
    if not words or words == ["-m"] or (words[0].startswith("-") and words[0] != "-m"):
        print(_USAGE, file=sys.stderr)
        return EXIT_USAGE
    connection = _spare(words) if is_under_torchrun() and sys.platform == "linux" else None
    if connection is None or not _begins(connection, words):
        # torchrun starts ranks with -u.
        os.execv(sys.executable, [sys.executable, "-u", *words])
    for number in _PASSED_ON:
        signal.signal(number, lambda number, _: connection.send(bytes([number])))
    code = connection.recv(16)
    if not code:
        print(
            "the process that waited with everything loaded has died, and its ranks with it", file=sys.stderr
        )
        return EXIT_FAILED
    return _as(int(code))


def _spare(words: list[str]) -> socket.socket | None:
    """A connection to the spare process of this torchrun on this node; the first rank to ask starts it."""
    name = name_for(os.getppid(), os.environ["TORCHELASTIC_RUN_ID"])
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server: subprocess.Popen[bytes] | None = None
    deadline = time.monotonic() + _PATIENCE_S
    # Whoever has taken the name and accepts nobody would never let go.
    connection.setblocking(False)
    while time.monotonic() < deadline:
        try:
            connection.connect(f"\0{name}")
        except ConnectionRefusedError:
            # Of several that are started at once, one gets the name; the others end.
            server = server or _start(name, words)
            time.sleep(_LOOK_EVERY_S)
        except BlockingIOError:
            time.sleep(_LOOK_EVERY_S)
        else:
            connection.setblocking(True)
            return connection if user_of(connection) == os.getuid() else None
    return None


def name_for(torchrun: int, run_id: str) -> str:
    """The name of a torchrun's spare process: the same for all its ranks on one node, and no other's."""
    told = f"{os.getuid()} {owner_name(torchrun)} {run_id}"
    return f"longhaul-spares-{hashlib.sha256(told.encode()).hexdigest()[:32]}"


def _start(name: str, words: list[str]) -> "subprocess.Popen[bytes]":
    # In a session of its own: torchrun ends a rank with its process group.
    command = [sys.executable, "-u", "-m", "jobs.spares.server", str(os.getppid()), name, *words]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    )


def _begins(connection: socket.socket, words: list[str]) -> bool:
    """Whether the script runs as this rank by now; it may take as long as loading does."""
    told = {
        "words": words,
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "cores": sorted(os.sched_getaffinity(0)),
    }
    try:
        socket.send_fds(connection, [json.dumps(told).encode()], [0, 1, 2])
        return connection.recv(1) == HERE
    except OSError:
        return False


def _as(code: int) -> int:
    """Ends as the rank did, so that torchrun sees the signal that killed it."""
    if code < 0:
        with suppress(OSError):  # SIGKILL has no other meaning.
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
