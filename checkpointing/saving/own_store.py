"""A folder on a node's disk that other users share, of which a run reads, writes and deletes only its own.

A look does not last: who owns a folder above can rename what lies in it a moment later, and in a folder that
all may write to, whoever comes first makes what is not there yet. So each call goes down from the root
through open folders, follows no link, and looks at the owner of each. Nobody but this user, and root, can
have written below a folder that only this user may write to.
"""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from io import FileIO
from pathlib import Path

from checkpointing.stores.contract import Denied
from checkpointing.stores.local import LocalStore

_UID_MAP = Path("/proc/self/uid_map")


class OwnStore(LocalStore):
    """A folder below which all that is used belongs to this user. ``closed`` names the folder in it that
    others can't enter.

    Every method raises ``Denied`` if a folder on its way belongs to another user or is a link, and if others
    may write to ``closed``. So it does if another user owns the root or a folder above. Only root takes these
    as they are: in a container its volumes may belong to anybody, and what counts is what lies below.
    """

    def __init__(self, root: Path, closed: str) -> None:
        super().__init__(root)
        self._closed = closed

    def _folder(self, names: Sequence[str], *, make: bool = False) -> AbstractContextManager[int]:
        self._look_above()
        return super()._folder(names, make=make)

    def _open(self, name: str) -> FileIO:
        self._look_above()
        return super()._open(name)

    def _look_above(self) -> None:
        if os.geteuid() == 0:
            return
        named, real = self.root.absolute(), self.root.resolve()
        for folder in dict.fromkeys((named, *named.parents, real, *real.parents)):
            with suppress(FileNotFoundError):
                owner = folder.lstat().st_uid
                if owner not in (os.geteuid(), 0) and not _is_of_outside(owner):
                    raise Denied(
                        f"store: {self.root}: {folder} belongs to user {owner}, who could exchange what lies "
                        "in it; name a folder that is yours, below folders of yours or root's"
                    )

    def _look_at(self, folder: int, name: str, *, make: bool) -> None:
        found = os.fstat(folder)
        if found.st_uid != os.geteuid():
            raise Denied(
                f"store: {self.root / name}: belongs to user {found.st_uid}, and may hold anything; "
                "name another folder"
            )
        if name == self._closed and found.st_mode & 0o077:
            if make:
                os.chmod(".", 0o700, dir_fd=folder)
            elif found.st_mode & 0o022:
                raise Denied(
                    f"store: {self.root / name}: has mode {found.st_mode & 0o777:04o}: others may write "
                    "to it, and what lies there may be theirs; remove it"
                )


def _is_of_outside(user: int) -> bool:
    """Says whether the kernel shows users so who are outside this container, of whom root may be one."""
    try:
        ranges = [line.split() for line in _UID_MAP.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return False
    return not any(int(first) <= user < int(first) + int(length) for first, _, length in ranges)
