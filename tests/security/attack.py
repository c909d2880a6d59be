"""What the attacks share: two made users, a place to work in, and the product's command line, bounded."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

# Of no account: whoever runs this as root can be anybody.
OWNER, STRANGER = 61001, 61002
PATIENCE_S = 300
# What a command may take for a file of a stranger, whatever else the machine does.
MOST_BYTES, MOST_CPU_S = 2 << 30, 40
_IS_ROOT = os.geteuid() == 0
# Neither a cluster nor a key nor a token of whoever runs this.
_KEPT = ("PATH", "LANG", "LD_LIBRARY_PATH")


class GotIn(Exception):
    """The attack succeeded; its text says how."""


class NotTried(Exception):
    """It can't be tried here; its text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """``code`` is None for a process that had to be ended."""

    code: int | None
    said: str

    @property
    def last_line(self) -> str:
        return next((line.strip() for line in reversed(self.said.splitlines()) if line.strip()), "nothing")

    @property
    def is_traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.said


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """The product of ``tree`` in the hands of its owner, who is a made user where root runs this and she may
    read the tree and Python.
    """

    tree: Path
    home: Path
    python: str
    user: int

    @property
    def identity(self) -> dict[str, Any]:
        """For ``Popen``."""
        return _as(self.user)

    def run(self, *words: object, is_bounded: bool = False, **more: str) -> Done:
        with self.running(*words, is_bounded=is_bounded, **more) as process:
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_S)
            return Done(code=process.returncode, said=self.said())

    def said(self) -> str:
        return (self.home / "said").read_text(encoding="utf-8", errors="replace")

    @contextmanager
    def running(
        self,
        *words: object,
        program: Sequence[str] = ("-m", "jobs.cli"),
        is_bounded: bool = False,
        **more: str,
    ) -> Iterator["subprocess.Popen[bytes]"]:
        """A command under way. After the block it and all that it started have ended."""
        command = [self.python, *program, *map(str, words)]
        if is_bounded:
            bound = f'ulimit -v {MOST_BYTES >> 10}; ulimit -t {MOST_CPU_S}; exec "$@"'
            command = ["sh", "-c", bound, "sh", *command]
        with (self.home / "said").open("wb") as said:
            process = subprocess.Popen(
                command,
                cwd=self.tree,
                env=self.environment(**more),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                **self.identity,
            )
        try:
            yield process
        finally:
            end(process)

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        path = [str(self.tree), *(one for one in sys.path if one.endswith("-packages"))]
        return {
            **kept,
            "HOME": str(self.home),
            "TMPDIR": str(self.home.parent / "tmp"),
            "USER": "owner",
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONDONTWRITEBYTECODE": "1",
            # Each of their threads takes addresses, which are bounded.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MALLOC_ARENA_MAX": "2",
            **more,
        }


@contextmanager
def product(tree: Path) -> Iterator[Product]:
    """Beside its home lies ``tmp``, a common folder as ``/tmp`` is. Both are gone after the block."""
    folder = Path(tempfile.mkdtemp(prefix="lhs-", dir="/tmp"))
    try:
        python, user = _python_and_user(tree)
        for path, mode in ((folder, 0o755), (folder / "tmp", 0o1777), (folder / "home", 0o755)):
            path.mkdir(exist_ok=True)
            path.chmod(mode)
        os.chown(folder / "home", user, -1)
        yield Product(tree=tree, home=folder / "home", python=python, user=user)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def in_strangers_hands(its: Product) -> Product:
    """The same product, run by another user where root runs this."""
    home = its.home.parent / "hers"
    home.mkdir()
    user = STRANGER if its.user == OWNER else its.user
    os.chown(home, user, -1)
    return replace(its, home=home, user=user)


def as_stranger(act: Callable[[], Sequence[str]]) -> list[str]:
    """What another user than the product's says that she did."""
    if not _IS_ROOT:
        raise NotTried("needs root, to act as another user")
    ours, hers = os.pipe()
    if (child := os.fork()) == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            os.write(hers, json.dumps(list(act())).encode())
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(hers)
    with os.fdopen(ours, encoding="utf-8") as answer:
        said = answer.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError("the stranger's own script failed")
    found: list[str] = json.loads(said)
    return found


def wait_until(is_so: Callable[[], object], process: "subprocess.Popen[bytes]") -> bool:
    """Whether it came to be so before the process ended, or within the patience."""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        if is_so():
            return True
        if process.poll() is not None:
            return bool(is_so())
        time.sleep(0.05)
    return False


def end(process: "subprocess.Popen[bytes]") -> None:
    """It, and what it started, in whatever session."""
    if process.poll() is not None:
        return
    started = psutil.Process(process.pid).children(recursive=True)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for child in started:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    process.wait()


def own(path: Path, user: int) -> None:
    """Gives a file or folder to ``user``, with all that is in it."""
    for one in (path, *path.rglob("*")):
        os.chown(one, user, -1, follow_symlinks=False)


def _as(user: int) -> dict[str, Any]:
    return {} if user == os.geteuid() else {"user": user, "group": user, "extra_groups": []}


def _python_and_user(tree: Path) -> tuple[str, int]:
    """Whoever runs this is its owner without root, or where a made user may not read the tree or a Python."""
    if not _IS_ROOT:
        return sys.executable, os.geteuid()
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        look = [python, "-c", "import jobs.cli, importlib.util as u; assert u.find_spec('ray')"]
        path = os.pathsep.join([str(tree), *(one for one in sys.path if one.endswith("-packages"))])
        with suppress(OSError):
            done = subprocess.run(
                look, cwd="/", env={"PYTHONPATH": path}, capture_output=True, check=False, **_as(OWNER)
            )
            if done.returncode == 0:
                return python, OWNER
    return sys.executable, os.geteuid()
