"""What the reaper ends and removes, and what it leaves alone. Plain processes, no Ray."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.local_ray import reaper
from cluster.local_ray.marked_directory import marked_directory
from tests.hosts import ROOT, wait_until

SHARED_MEMORY = Path("/dev/shm")
GONE_TIMEOUT_S = 20

# Maps its arguments and then stays, deaf to everything but SIGKILL.
MEMBER = """
import mmap, signal, sys
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
files = [open(path, "r+b") for path in sys.argv[1:]]
kept = [mmap.mmap(file.fileno(), 0) for file in files]
print("up", flush=True)
signal.pause()
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait(GONE_TIMEOUT_S)


@pytest.fixture
def segments() -> Iterator[list[Path]]:
    """One with a name that NCCL gives, one that a user may have put there."""
    paths = [SHARED_MEMORY / f"{name}{uuid.uuid4().hex[:6]}" for name in ("nccl-", "dataset-")]
    for path in paths:
        path.write_bytes(b"x" * 4096)
    yield paths
    for path in paths:
        path.unlink(missing_ok=True)


# Somebody's driver with a session of its own, as in a shell of `longhaul cluster local`.
DRIVER = """
import time
from cluster.local_ray.marked_directory import marked_directory
with marked_directory() as root:
    print(root, flush=True)
    time.sleep(1000)
"""


def our_directory(folder: Path, name: str = "lh-ours") -> Path:
    root = folder / name
    (root / "session").mkdir(parents=True)
    (root / "session" / "log").write_text("")
    (root / reaper.MARKER).touch()
    return root


def start(root: Path, *paths: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", MEMBER, *map(str, paths)],
        env=os.environ | {reaper.MARK: str(root)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def test_it_ends_the_members_of_its_session_alone(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    ours, theirs = our_directory(tmp_path), our_directory(tmp_path, "lh-theirs")
    for root in (ours, theirs):
        started.append(start(root))
    assert reaper.clear(str(ours))
    assert started[0].wait(GONE_TIMEOUT_S) < 0
    assert started[1].poll() is None
    assert [path.name for path in tmp_path.iterdir()] == ["lh-theirs"]


def test_a_session_that_was_begun_within_another_one_ends_with_it(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    outer = our_directory(tmp_path)
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        cwd=ROOT,
        env=os.environ | {reaper.MARK: str(outer)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    started.append(driver)
    assert driver.stdout is not None
    inner = Path(driver.stdout.readline().strip())
    started.append(start(inner))
    assert reaper.clear(str(outer))
    assert driver.wait(GONE_TIMEOUT_S) < 0
    assert started[1].wait(GONE_TIMEOUT_S) < 0
    wait_until(lambda: not inner.exists(), GONE_TIMEOUT_S, f"the end of {inner}")


def test_it_removes_the_shared_memory_of_libraries_and_no_data(
    tmp_path: Path, started: list[subprocess.Popen[str]], segments: list[Path]
) -> None:
    root = our_directory(tmp_path)
    started.append(start(root, *segments))
    assert reaper.clear(str(root))
    assert [path.exists() for path in segments] == [False, True]


def test_it_acts_when_its_input_closes_and_not_before(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    root = our_directory(tmp_path)
    started.append(start(root))
    command = [sys.executable, "-S", "-E", reaper.__file__, str(root)]
    watch = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)
    started.append(watch)
    with pytest.raises(subprocess.TimeoutExpired):
        watch.wait(0.5)
    assert started[0].poll() is None
    assert watch.stdin is not None
    watch.stdin.close()
    assert watch.wait(GONE_TIMEOUT_S) == 0
    assert not root.exists()


@pytest.mark.parametrize("wrong", ["its name", "no marker", "a link", "a link's marker"])
def test_it_removes_no_directory_that_is_not_marked_as_ours(tmp_path: Path, wrong: str) -> None:
    root = our_directory(tmp_path, "results" if wrong == "its name" else "lh-ours")
    match wrong:
        case "no marker":
            (root / reaper.MARKER).unlink()
        case "a link":
            root.rename(tmp_path / "lh-moved")
            root.symlink_to(tmp_path / "lh-moved")
        case "a link's marker":
            root.rename(tmp_path / "moved")
            root.symlink_to("moved")
    assert not reaper.clear(str(root))
    assert (root / "session" / "log").exists()


def test_a_directory_of_which_something_stays_is_still_ours_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = our_directory(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda path, ignore_errors: None)
        assert not reaper.clear(str(root))
    assert reaper.clear(str(root))


def test_it_removes_links_and_not_what_they_lead_to(tmp_path: Path) -> None:
    root, elsewhere = our_directory(tmp_path), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("precious")
    (root / "session_latest").symlink_to(elsewhere)
    (root / "session" / "link").symlink_to(elsewhere)
    assert reaper.clear(str(root))
    assert (elsewhere / "file").read_text() == "precious"


def test_a_marked_directory_is_for_this_user_alone_and_goes_with_its_block() -> None:
    with marked_directory() as root:
        assert Path(root).stat().st_mode & 0o777 == 0o700
        (Path(root) / "file").write_text("")
    assert not Path(root).exists()
