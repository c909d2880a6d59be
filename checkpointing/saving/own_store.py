"""A folder on a node's disk that other users share, of which a run reads, writes and deletes only its own.

A look does not last: who owns a folder above can rename what lies in it a moment later, and in a folder that
all may write to, whoever comes first makes what is not there yet. So each call goes down from the root
through open folders, follows no link, and looks at the owner of each. Nobody but this user, and root, can
have written below a folder that only this user may write to, or have mounted anything there.
"""

import os
import secrets
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from errno import EEXIST, ENOTEMPTY
from io import FileIO
from pathlib import Path
from shutil import rmtree

from checkpointing.stores.contract import Denied
from checkpointing.stores.folders import OURS_ALONE, below, foreign_mount, names_in
from checkpointing.stores.local import LocalStore

_UID_MAP = Path("/proc/self/uid_map")
_SHOWN_FOR_OUTSIDE = Path("/proc/sys/kernel/overflowuid")
_ALL_USERS = 2**32 - 1
_OTHERS_MAY_WRITE = 0o022


class OwnStore(LocalStore):
    """A folder below which all that is used belongs to this user. ``closed`` names the folder in it that
    others can't enter.

    Every method raises ``Denied`` if a folder on its way belongs to another user, is what another user
    mounted or is a link, and if others may write to ``closed``. So it does if another user owns the root or a
    folder above. Only root takes these as they are: in a container its volumes may belong to anybody, and
    what counts is what lies below.
    """

    _mode_of_folders = OURS_ALONE
    _another = "name another checkpoint.local.dir"

    def __init__(self, root: Path, closed: str) -> None:
        super().__init__(root)
        self._closed = closed

    def set_aside_what_was_open(self) -> str | None:
        """Renames ``closed`` if it is this user's and others may write to it, as versions before left it, and
        deletes what was set aside earlier. Returns what was done.

        To close it would not do: what lies there may be theirs. Ranks call this side by side.
        """
        *above, last = self._closed.split("/")
        with self._as_store_errors(self._closed), suppress(FileNotFoundError), self._folder(above) as place:
            with below(place, [last]) as open_one:
                found = os.fstat(open_one)
                if not _is_ours_and_open(found):
                    return None
                self._refuse_without_modes(open_one)
                # A folder that isn't empty keeps its name, so only one rank's rename succeeds: those that
                # come later find the name taken, and leave alone what that rank has begun meanwhile.
                with suppress(FileExistsError):
                    os.mkdir("set-aside", dir_fd=open_one)
            aside = f"{last}.open-{found.st_ino}"
            try:
                os.rename(last, aside, src_dir_fd=place, dst_dir_fd=place)
            except OSError as error:
                if error.errno not in (EEXIST, ENOTEMPTY):
                    raise
                return None
            # Some volumes are opened at each start of a pod. Nothing counts what was set aside.
            with suppress(OSError):
                for earlier in names_in(place):
                    mark, _, number = earlier.rpartition("-")
                    if mark == f"{last}.open" and number.isdecimal() and earlier != aside:
                        _delete_if_open(place, earlier)
            return (
                f"others could write to {self.root / self._closed}, and what lay there may be theirs: it is "
                f"{aside} now, and saves begin anew; look at it and remove it"
            )
        return None

    def _folder(self, names: Sequence[str], *, make: bool = False) -> AbstractContextManager[int]:
        self._look_above()
        return super()._folder(names, make=make)

    def _open(self, name: str) -> FileIO:
        self._look_above()
        return super()._open(name)

    def _look_above(self) -> None:
        if os.geteuid() == 0:
            return
        named, real = self.root.absolute(), Path(os.path.realpath(self.root))
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
                f"{self._another}"
            )
        # Below the closed folder nobody else mounts anything.
        if not name.startswith(f"{self._closed}/") and (what := foreign_mount(folder)):
            raise Denied(f"store: {self.root / name}: {what}, and may hold anything; {self._another}")
        if name == self._closed:
            if found.st_mode & _OTHERS_MAY_WRITE:
                if make:
                    self._refuse_without_modes(folder)
                raise Denied(
                    f"store: {self.root / name}: has mode {found.st_mode & 0o777:04o}: others may write "
                    "to it, and what lies there may be theirs; the next save sets it aside where the file "
                    "system keeps modes"
                )
            if make and found.st_mode & 0o077:
                # What keeps no modes may refuse this. Others can't write there, and that is what counts.
                with suppress(OSError):
                    os.chmod(".", OURS_ALONE, dir_fd=folder)

    def _refuse_without_modes(self, folder: int) -> None:
        """Raises ``Denied`` if others may write even to a new folder: on vfat all have the mount's mode.

        Whatever is set aside there is open again with the next save.
        """
        name = f"modes-{secrets.token_hex(8)}"
        os.mkdir(name, OURS_ALONE, dir_fd=folder)
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        os.rmdir(name, dir_fd=folder)
        if mode & _OTHERS_MAY_WRITE:
            raise Denied(
                f"store: {self.root}: its file system keeps no modes, so others may write to any folder "
                f"there and plant what a run resumes; {self._another}"
            )


def _is_ours_and_open(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and bool(found.st_mode & _OTHERS_MAY_WRITE)


def _delete_if_open(place: int, name: str) -> None:
    """Leaves alone what is closed: who may write to ``place`` can give another run's folder this name, at
    any moment. What can't be deleted keeps no save back.
    """
    with suppress(OSError, RecursionError), below(place, [name]) as folder:
        if _is_ours_and_open(os.fstat(folder)):
            rmtree(".", dir_fd=folder, ignore_errors=True)
            os.rmdir(name, dir_fd=place)


def _is_of_outside(user: int) -> bool:
    """Says whether the kernel shows users so who are outside this container, of whom root may be one.

    A container may have a user of that number as well, who can't be told from those.
    """
    try:
        ranges = [line.split() for line in _UID_MAP.read_text(encoding="utf-8").splitlines()]
        shown = int(_SHOWN_FOR_OUTSIDE.read_text(encoding="utf-8"))
    except OSError:
        return False
    return user == shown and sum(int(length) for _, _, length in ranges) < _ALL_USERS
