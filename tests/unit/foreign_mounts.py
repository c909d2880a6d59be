"""What Linux would list if somebody else had mounted the file system that a folder lies on."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from checkpointing.stores import folders


@contextmanager
def mounted(folder: Path, system: str | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``system`` is the end of its line: type, source and options. If it is None there is no such line."""
    descriptor = os.open(folder, os.O_RDONLY)
    told = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii").split()
    os.close(descriptor)
    number = told[told.index("mnt_id:") + 1].encode()
    lines = Path("/proc/self/mountinfo").read_bytes().splitlines(keepends=True)
    others = [line for line in lines if line.split()[0] != number]
    assert len(others) == len(lines) - 1
    # The number of another mount, which root made, begins with the same digits.
    others.insert(0, number + b"0 1 0:98 / /other rw - fuse any rw,user_id=0\n")
    if system is not None:
        others.append(number + f" 1 0:99 / /any rw,nosuid shared:7 - {system}\n".encode())
    with monkeypatch.context() as patch:
        listed = folder / "mountinfo"
        listed.write_bytes(b"".join(others))
        patch.setattr(folders, "_MOUNTS", listed)
        yield
        listed.unlink()
