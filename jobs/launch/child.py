"""A process that asks its node's ``parent`` to run it: ``python -m jobs.launch.child KEY SCRIPT ARGUMENTS``.

Ray starts workers with it in place of Python. Without a parent that answers, it runs the script itself. Else
it stays, for Ray to see, until the script has ended. Small, since each worker loads it.
"""

import json
import os
import socket
import sys
from pathlib import Path

HERE, GO = b"h", b"g"
MOST_BYTES = 1 << 20
# A parent that is still loading is worth waiting for: whoever starts anew would begin with it only now.
_PATIENCE_S = 10.0
_RAYLET = "--raylet-name="


def main(key: str, words: list[str]) -> None:
    try:
        connection = _ask(key, words)
    except OSError:
        connection = None
    if connection is None:
        os.execv(sys.executable, [sys.executable, *words])
    connection.settimeout(None)
    # Nothing comes: it ends with the other side.
    connection.recv(1)


def _ask(key: str, words: list[str]) -> "socket.socket | None":
    (raylet,) = (word.removeprefix(_RAYLET) for word in words if word.startswith(_RAYLET))
    told = json.dumps({"words": words, "environment": dict(os.environ), "folder": str(Path.cwd())}).encode()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(_PATIENCE_S)
    connection.connect(f"{raylet}.{key}")
    socket.send_fds(connection, [told], [0, 1, 2])
    if connection.recv(1) != HERE:
        connection.close()
        return None
    connection.send(GO)
    return connection


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
