"""Opens folders one path component at a time, so that no foreign link leads elsewhere.

A path that the user names may pass through links. Below it Longhaul makes none. A link there was made by
someone else, so it is never followed, and the error names it.
"""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from errno import ELOOP, ENAMETOOLONG, ENXIO
from io import FileIO
from pathlib import Path
from typing import Protocol

# With ``O_PATH``, where the system has it, a folder that is only passed through need not be readable.
_PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY
OURS_ALONE = 0o700
_ROOT = Path("/")
_MOUNTS = Path("/proc/self/mountinfo")
_OPEN_FILES = Path("/proc/self/fdinfo")
_MOUNTED_BY = re.compile(rb"\buser_id=(\d+)")
# Each takes two descriptors of a thousand, and a place on Python's stack.
MOST_DEEP = 64
_MOST_TOLD_CHARS = 100


class LinkFound(OSError):
    """``filename`` is a link below a folder in which there must be none."""


class NotPlain(OSError):
    """``filename`` is a pipe, a socket or a device, where only a file can be."""


class TooDeep(OSError):
    """Below ``filename`` are more folders in one another than anything of ours has."""


class NotOurs(OSError):
    """A folder that must belong to this user alone does not; the message says what was found."""


class Look(Protocol):
    """Is called with each open folder, and its name from where the descent began. It raises to refuse one."""

    def __call__(self, folder: int, name: str, *, make: bool) -> None: ...


@contextmanager
def folder_at(
    path: Path, names: Sequence[str] = (), *, make: bool = False, mode: int = 0o777, look: Look | None = None
) -> Iterator[int]:
    """Opens a folder like ``open_folder`` and closes it at the end of the block."""
    descriptor = open_folder(path, names, make=make, mode=mode, look=look)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_folder(
    path: Path, names: Sequence[str] = (), *, make: bool = False, mode: int = 0o777, look: Look | None = None
) -> int:
    """Returns a descriptor of the folder that ``names`` lead to from ``path``. The caller closes it.

    Links in ``path`` are followed; ``LinkFound`` is raised if one of ``names`` is a link. ``make`` creates
    the missing folders, each durable in its parent and with ``mode`` from the start, less what the umask
    takes away. ``look`` is called with each of ``names``.
    """
    return _descend(os.open(path, _PASS), names, make=make, mode=mode, look=look)


@contextmanager
def private_folder(path: Path, *, make: bool = False) -> Iterator[int]:
    """Opens the folder ``path``, which only this user can read or change. Others may know its name.

    Raises ``NotOurs`` if ``path`` is a link, is no folder, has another owner or mode, or is what another
    user mounted. ``make`` creates it and its parents where they are missing.
    """
    if make:
        path.parent.mkdir(parents=True, exist_ok=True)
    with folder_at(path.parent) as above:
        if make:
            with suppress(FileExistsError):
                os.mkdir(path.name, OURS_ALONE, dir_fd=above)
        # The checks run on the open descriptor, because the name may mean another file a moment later.
        try:
            descriptor = os.open(path.name, _PASS | os.O_NOFOLLOW, dir_fd=above)
        except NotADirectoryError:
            found = os.stat(path.name, dir_fd=above, follow_symlinks=False)
            raise _not_ours(path, _what_is_wrong(found)) from None
        try:
            found = os.fstat(descriptor)
            if found.st_uid != os.geteuid() or found.st_mode & 0o777 != OURS_ALONE:
                raise _not_ours(path, _what_is_wrong(found))
            if what := foreign_mount(descriptor):
                raise _not_ours(path, what)
            yield descriptor
        finally:
            os.close(descriptor)


def _what_is_wrong(found: os.stat_result) -> str:
    if stat.S_ISLNK(found.st_mode):
        return "is a link"
    if not stat.S_ISDIR(found.st_mode):
        return "is no folder"
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}"
    return f"has mode {found.st_mode & 0o777:04o}"


def _not_ours(path: Path, what: str) -> NotOurs:
    return NotOurs(f"{path} {what}; expected a folder of user {os.geteuid()} alone, of mode 0700")


def foreign_mount(folder: int) -> str | None:
    """Says which other user mounted what ``folder`` lies on; None if only this user or root can have done so.

    By FUSE any user can mount a program of theirs, which answers with any owner, mode and bytes.
    """
    number = _mount_of(folder)
    if number is None:
        return None
    # Bytes, since who mounts chooses names: a line ends at no character of theirs, and spaces are escaped.
    for line in _MOUNTS.read_bytes().split(b"\n"):
        place, _, system = line.partition(b" - ")
        if place.split(b" ", 1)[0] == number:
            kind, *_, options = system.split(b" ")
            user = _MOUNTED_BY.search(options)
            if not kind.startswith(b"fuse") or (user and int(user[1]) in (0, os.geteuid())):
                return None
            return f"is mounted by a program of user {int(user[1]) if user else 'unknown'}"
    # The list lacks the root's own mount after ``chroot``, and what was unmounted after it was opened.
    return None if os.fstat(folder).st_dev == _ROOT.stat().st_dev else "lies on a mount that is gone"


def _mount_of(folder: int) -> bytes | None:
    """Its number. A device's would not do: on Btrfs a folder has another one than its mount in the list."""
    try:
        lines = (_OPEN_FILES / str(folder)).read_bytes().split(b"\n")
    except FileNotFoundError:  # No Linux.
        return None
    return next((line.split()[1] for line in lines if line.startswith(b"mnt_id:")), None)


@contextmanager
def below(folder: int, names: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """Opens a folder like ``folder_at``, but starting from an open folder."""
    descriptor = _descend(os.dup(folder), names, make=make)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _descend(
    folder: int, names: Sequence[str], *, make: bool, mode: int = 0o777, look: Look | None = None
) -> int:
    """Returns the folder below ``folder``, and closes ``folder`` even if it raises."""
    for number, name in enumerate(names, start=1):
        above = folder
        try:
            folder = _step(above, name, make=make, mode=mode)
        except NotADirectoryError:
            refuse_link(above, name, "/".join(names[:number]))
            raise
        finally:
            os.close(above)
        if look is not None:
            try:
                look(folder, "/".join(names[:number]), make=make)
            except BaseException:
                os.close(folder)
                raise
    return folder


def _step(folder: int, name: str, *, make: bool, mode: int) -> int:
    try:
        return os.open(name, _PASS | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=folder)
        sync(folder)
    return os.open(name, _PASS | os.O_NOFOLLOW, dir_fd=folder)


def refuse_link(folder: int, name: str, full_name: str) -> None:
    """Raises ``LinkFound`` with ``full_name`` if ``name`` is a link; does nothing otherwise."""
    with suppress(FileNotFoundError):
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise LinkFound(ELOOP, "is a link", full_name)


def file_in(folder: int, name: str, mode: str = "r") -> FileIO:
    """Opens a file like ``open(name, mode)`` within ``folder``. Raises ``LinkFound`` if ``name`` is a link,
    and ``NotPlain`` if it is neither a file nor a folder: whoever put a pipe there would never let go.
    """

    def opened(name: str, flags: int) -> int:
        return _plain(os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666, dir_fd=folder), name)

    try:
        return FileIO(name, mode, opener=opened)
    except OSError as error:
        if error.errno == ELOOP:
            raise LinkFound(ELOOP, "is a link", name) from None
        if error.errno == ENXIO:  # A pipe without a reader, or a socket.
            raise NotPlain(ENXIO, "is no file", name) from None
        raise


def regular_file(path: str) -> int:
    """Returns a descriptor for reading the file at ``path``, which the caller closes. Raises ``OSError`` of
    anything but a file, also of a link to one.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise NotPlain(ENXIO, "is no file", path)


def _plain(descriptor: int, name: str) -> int:
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # Of a folder the caller's error is the usual one.
        return descriptor
    os.close(descriptor)
    raise NotPlain(ENXIO, "is no file", name)


def files_below(
    folder: int, within: str, *, most_deep: int = MOST_DEEP
) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    """Yields all files below ``folder``, whose own name is ``within``. Links to folders are left out.

    A folder that cannot be read raises, and so do more than ``most_deep`` in one another. A folder that
    vanishes meanwhile counts as empty.
    """
    if most_deep < 0:
        raise TooDeep(ENAMETOOLONG, "is too deep", f"{within[:_MOST_TOLD_CHARS]}...")
    with _readable(folder) as here:
        folders = []
        with os.scandir(here) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif not entry.is_dir():
                    yield f"{within}/{entry.name}", entry
        for name in folders:
            with suppress(FileNotFoundError, NotADirectoryError), below(here, [name]) as next_one:
                yield from files_below(next_one, f"{within}/{name}", most_deep=most_deep - 1)


def names_in(folder: int) -> list[str]:
    with _readable(folder) as here:
        return os.listdir(here)  # noqa: PTH208 - a descriptor is no path


def sync(folder: int) -> None:
    """Makes every creation, rename and deletion in ``folder`` survive a power cut."""
    with suppress(FileNotFoundError), _readable(folder) as here:  # The folder was emptied and deleted.
        os.fsync(here)


def read_into(file: FileIO, into: memoryview) -> int:
    """Reads until ``into`` is full or the file ends, because one call may return less than asked for."""
    done = 0
    while done < len(into) and (count := file.readinto(into[done:])):
        done += count
    return done


def write_all(file: FileIO, data: memoryview) -> None:
    """Writes all of ``data``, because one call writes at most 2 GiB."""
    while data:
        data = data[file.write(data) :]


@contextmanager
def _readable(folder: int) -> Iterator[int]:
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
