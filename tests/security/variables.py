"""Attack 5: a secret among a spec's variables is read in Ray's logs, or in the list of processes."""

from contextlib import suppress
from pathlib import Path

import psutil

from tests.security.attack import GotIn, NotTried, product
from tests.security.ray_run import family, rays_folders, training, wait_for_saves

_SECRET = "key-0123456789-of-its-owner"


def attack(tree: Path) -> str:
    with product(tree) as its, training(its, f"environment: {{API_KEY: {_SECRET}}}\n") as process:
        wait_for_saves(its, process)
        sessions = rays_folders(its.home.parent / "tmp")
        files = [path for session in sessions for path in session.rglob("*") if path.is_file()]
        logs = [path for path in files if path.parent.name == "logs"]
        if not logs:
            raise NotTried("Ray has written no log")
        told, lines = [path for path in files if _tells(path)], []
        for one in family(process):
            with suppress(psutil.Error):
                lines.append(" ".join(one.cmdline()))
        if told:
            raise GotIn(f"{len(told)} files of Ray's have the secret, such as {told[0].name}")
        if any(_SECRET in line for line in lines):
            raise GotIn("the list of processes has the secret")
        return f"none of {len(files)} files of Ray's and {len(lines)} command lines has the secret"


def _tells(path: Path) -> bool:
    with suppress(OSError):
        return _SECRET.encode() in path.read_bytes()
    return False
