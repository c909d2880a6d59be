"""A process that asks a forkserver to run a script: ``python client.py KEY SCRIPT ARGUMENTS``.

The forkserver is its node's with that key; a key that is an absolute path is the forkserver's own socket.

Ray starts workers with this file in place of Python. If no forkserver answers, this process runs the script
itself. Otherwise it stays, for Ray to see, until the script has ended. The file needs nothing but Python,
since it runs before Ray has told where modules are. It is small, since each worker loads it.
"""

import json
import os
import socket
import struct
import sys
from itertools import dropwhile
from pathlib import Path

HERE, GO = b"h", b"g"
MOST_BYTES = 1 << 20
# Forking takes a thousandth of this time.
_PATIENCE_S = 10.0
_RAYLET = "--raylet-name="
# Ray passes these flags on to workers if it has them itself; the forkserver was started with them too.
_FLAGS = ("-s", "-S")


def main(key: str, words: list[str]) -> None:
    try:
        connection = _ask(key, words)
    except OSError:
        os.execv(sys.executable, [sys.executable, *words])
    connection.settimeout(None)
    # Nothing is ever sent: the call returns when the other side ends.
    connection.recv(1)


def script_of(words: list[str]) -> list[str]:
    """The script and its arguments, without Python's flags."""
    return list(dropwhile(lambda word: word in _FLAGS, words))


def _ask(key: str, words: list[str]) -> socket.socket:
    """The connection to the forkserver. Raises ``OSError`` if none answers, or if this is no worker as we
    know it.
    """
    raylets = [word.removeprefix(_RAYLET) for word in words if word.startswith(_RAYLET)]
    if len(raylets) != 1 or not Path(script_of(words)[0]).is_file():
        raise OSError(f"not a worker of Ray: {words}")
    told = json.dumps({"words": words, "environment": dict(os.environ), "folder": str(Path.cwd())}).encode()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(_PATIENCE_S)
    connection.connect(key if key.startswith("/") else f"{raylets[0]}.{key}")
    if user_of(connection) != os.getuid():
        raise OSError("somebody else's")
    socket.send_fds(connection, [told], [0, 1, 2])
    if connection.recv(1) != HERE:
        raise OSError("it has ended")
    connection.send(GO)
    return connection


def user_of(connection: socket.socket) -> int:
    """The user at the other end, as the kernel knows it."""
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(user)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
