"""What a process that workers are forked from may hold open."""

from pathlib import Path

import pytest

from jobs.training.preload import touched_device


def held(folder: Path, *paths: str) -> Path:
    """A folder as Linux shows a process's open files."""
    for number, path in enumerate(paths):
        (folder / str(number)).symlink_to(path)
    return folder


def test_what_holds_no_device_open_may_be_forked(tmp_path: Path) -> None:
    assert (
        touched_device(held(tmp_path, "/dev/null", "socket:[12]", "/home/dev/nvidia0", "/dev/urandom"))
        is None
    )


@pytest.mark.parametrize(
    "path", ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm", "/dev/kfd", "/dev/dri/renderD128"]
)
def test_a_device_that_is_held_open_is_named(path: str, tmp_path: Path) -> None:
    assert touched_device(held(tmp_path, "/dev/null", path, path)) == f"it holds {path} open"


def test_this_process_holds_none() -> None:
    assert touched_device() is None
