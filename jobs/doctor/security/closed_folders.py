"""Who else may write to, or read, the folders that Ray and Longhaul believe by their names."""

import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from jobs.doctor.security.exposure import Folder
from jobs.doctor.security.listening import PROC, command_of, own_processes

_TEMP_FLAGS = ("--temp-dir=", "--temp_dir=")
_TOKENS = "longhaul-tokens-*"


def usual_places(store: Path | None, saves: Iterable[Path]) -> Iterator[tuple[Path, str, bool]]:
    """Yields the places to look at, with what each is, and whether it is a secret."""
    home = Path.home()
    for folder in rays_folders():
        yield folder, "Ray's folder, which holds sockets, ports and the code of jobs", False
    yield Path(tempfile.gettempdir()) / "ray", "Ray's default folder", False
    yield home / ".longhaul", "the folder of Ray's files", False
    for cache in sorted(Path(tempfile.gettempdir()).glob(_TOKENS)):
        yield cache, "a cache of tokens, which are trained on", False
    for folder in saves:
        yield folder, "a folder of the spec", False
    if store:
        yield store, "the store", False
    yield Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or home / ".ray/auth_token"), "Ray's token", True
    if key := os.environ.get("LONGHAUL_STORE_KEY_FILE"):
        yield Path(key), "the store's key", True


def rays_folders(proc: Path = PROC) -> list[Path]:
    """Returns the folders that this user's Ray processes were started with."""
    found = set()
    for process in own_processes(proc):
        for word in command_of(process):
            if word.startswith(_TEMP_FLAGS):
                found.add(Path(word.partition("=")[2]))
    return sorted(found)


def looked_at(places: Iterable[tuple[Path, str, bool]]) -> tuple[Folder, ...]:
    """Returns those of the places that there are, each once."""
    seen = {path.absolute(): (what, is_secret) for path, what, is_secret in places if os.path.lexists(path)}
    return tuple(_folder(path, what, is_secret=is_secret) for path, (what, is_secret) in seen.items())


def _folder(path: Path, what: str, *, is_secret: bool) -> Folder:
    found = path.lstat()
    # A stranger's link may lead elsewhere tomorrow; one of ours that leads nowhere is nobody's to write to.
    mode = found.st_mode
    if found.st_uid in (os.geteuid(), 0) and path.is_symlink():
        found, mode = (path.stat(), path.stat().st_mode) if path.exists() else (found, 0)
    reached = _reached_by(path)
    return Folder(
        path=str(path),
        what=what,
        owner=found.st_uid,
        is_ours=found.st_uid in (os.geteuid(), 0),
        writers=_who(mode, stat.S_IWGRP, stat.S_IWOTH, reached) or _movers(path),
        readers=_who(mode, stat.S_IRGRP, stat.S_IROTH, reached),
        is_secret=is_secret,
    )


def _who(mode: int, group: int, others: int, reached: int) -> str:
    """Who has the right and comes that far. A group may be let in where others are not."""
    if mode & others and reached & stat.S_IXOTH:
        return "everybody"
    return "the group" if mode & group and reached & stat.S_IXGRP else ""


def _movers(path: Path) -> str:
    """Who may put a folder of theirs in its place: some folder above lets them rename what it holds."""
    for folder in path.absolute().parents:
        found = folder.stat()
        is_sticky = found.st_mode & stat.S_ISVTX
        if not is_sticky and (who := _who(found.st_mode, stat.S_IWGRP, stat.S_IWOTH, _reached_by(folder))):
            return who
    return ""


def _reached_by(path: Path) -> int:
    """Returns which of ``S_IXGRP`` and ``S_IXOTH`` all folders above have: who comes that far."""
    reached = stat.S_IXGRP | stat.S_IXOTH
    for folder in path.resolve().parents:
        mode = folder.stat().st_mode
        # Others may enter where a group may, for it may be theirs.
        reached &= mode | (stat.S_IXGRP if mode & stat.S_IXOTH else 0)
    return reached
