"""Attack 1: another user gets the token of a private Ray, or has a private file of its owner's emptied.

She puts something into Ray's folder that is believed by its name.
"""

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.security.attack import GotIn, NotTried, as_stranger, product
from tests.security.ray_run import rays_folders, training, wait_for_saves

_PATIENCE_S = 40
_MINE = "mine alone"
# Numbers of processes that are yet to start.
_NUM_LINKS = 10_000


def attack(tree: Path) -> str:
    with product(tree) as its:
        common, private = its.home.parent / "tmp", its.home / "authorized_keys"
        private.write_text(_MINE, encoding="utf-8")
        private.chmod(0o666)
        with training(its) as process:
            did = as_stranger(lambda: _plant(common, private))
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
    did: dict[str, str] = {}
    heard: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as hers:
        threading.Thread(target=_listen, args=(hers, heard), daemon=True).start()
        end_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end_s and not heard:
            for session in rays_folders(common):
                with suppress(OSError):
                    did |= _plant_into(session, private, hers.getsockname()[1], did)
            time.sleep(0.002)
    return [*did.values(), *heard]


def _plant_into(session: Path, private: Path, port: int, did: dict[str, str]) -> dict[str, str]:
    found = {}
    logs = session / "logs"
    if "links" not in did and logs.is_dir():
        last = int(Path("/proc/loadavg").read_text(encoding="utf-8").split()[-1])
        for number in range(last, last + _NUM_LINKS):
            with suppress(FileExistsError):
                (logs / f"longhaul-stacks-{number}.txt").symlink_to(private)
        found["links"] = "she plants links among the logs"
    for path in session.glob("runtime_env_agent_port_*"):
        if "port" not in did:
            new = session / "hers"
            new.write_text(str(port), encoding="utf-8")
            new.rename(path)
            found["port"] = f"she replaces {path.name.rpartition('_')[0]}"
    return found


def _listen(hers: socket.socket, heard: list[str]) -> None:
    with suppress(OSError):
        while True:
            connection, _ = hers.accept()
            with connection:
                connection.settimeout(5)
                if b"authorization: bearer" in connection.recv(65536).lower():
                    heard.append("the raylet sends her its token")
