"""A sweep and its report in environments that are odd, each as a user meets it: real Ray, real training."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.live.command_line import QUICK, ROOT, rows, run, sweep_command, write_spec
from tests.live.heads import ray_head

NOBODY = "65534"
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env", "-u", "HOME")
HOMELESS = ("env", "-u", "HOME")
# Not even root writes there.
NO_HOME_TO_WRITE = ("env", "HOME=/proc")
PLAIN_C = ("env", "-u", "LANG", "LC_ALL=C", "PYTHONUTF8=0", "PYTHONCOERCECLOCALE=0")
FEW_FILES = ("bash", "-c", 'ulimit -n 256 && exec "$@"', "few-files")
DEAD_PROXY = ("env", *(f"{name}=http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY")))
# Of a kilobyte or so that is left in it, nothing can be made.
FULL_TMP = ("unshare", "--mount", "bash", "-c", 'mount -t tmpfs -o size=4k none "$TMPDIR" && exec "$@"', "x")
SPEC = QUICK.replace("[ddp, fsdp]", "[ddp]")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Open to every user, which pytest's own folders are not."""
    with tempfile.TemporaryDirectory(prefix="lht-", dir="/tmp") as path:
        Path(path).chmod(stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO)
        yield Path(path)


def german(folder: Path) -> Sequence[str]:
    """A locale whose texts are in Latin-1."""
    name = "de_DE.ISO-8859-1"
    if shutil.which("localedef") is None or not Path("/usr/share/i18n/locales/de_DE").exists():
        pytest.skip("no localedef, or no definition of de_DE: no locale in Latin-1 can be made")
    subprocess.run(
        ["localedef", "-i", "de_DE", "-f", "ISO-8859-1", "--no-archive", folder / name],
        check=True,
        timeout=60,
    )
    return ("env", "-u", "LANG", f"LOCPATH={folder}", f"LC_ALL={name}", "PYTHONUTF8=0")


def measured_and_reported(environment: Sequence[str], folder: Path, *flags: str) -> None:
    store = folder / "store"
    command = sweep_command(write_spec(folder, SPEC), store, *flags)

    measured = run([*environment, *command])
    assert measured.returncode == 0, measured.stdout + measured.stderr
    assert measured.stderr == ""
    assert [row["status"] for row in rows(store)] == ["ok"]

    reported = run([*environment, sys.executable, "-m", "jobs.cli", "report", "--store", str(store)])
    assert (reported.returncode, reported.stderr) == (0, "")
    (page,) = store.glob("reports/*/index.html")
    # A dash is in no locale's encoding but UTF-8's.
    assert "\N{EN DASH}" in page.read_text(encoding="utf-8")


def test_all_that_can_be_odd_at_once_damages_nothing(folder: Path) -> None:
    environment = [*german(folder), *HOMELESS, *DEAD_PROXY, *FEW_FILES]
    measured_and_reported(environment, folder, "--executor", "inline")


@pytest.mark.soak
@pytest.mark.parametrize(
    "environment",
    [
        pytest.param(HOMELESS, id="HOME is unset"),
        pytest.param(NO_HOME_TO_WRITE, id="HOME can't be written"),
        pytest.param(PLAIN_C, id="LC_ALL=C"),
        pytest.param(FEW_FILES, id="256 files"),
        pytest.param(DEAD_PROXY, id="dead proxy"),
    ],
)
def test_over_ray_it_is_measured_and_reported(environment: Sequence[str], folder: Path) -> None:
    measured_and_reported(environment, folder)


@pytest.mark.soak
def test_over_ray_it_is_measured_and_reported_in_a_latin_1_locale(folder: Path) -> None:
    measured_and_reported(german(folder), folder)


@pytest.mark.soak
def test_a_user_who_is_not_root_and_has_no_home_needs_nothing_more(folder: Path) -> None:
    nobody = (*python_in_an_open_folder(), *AS_NOBODY)
    trial = [*nobody, sys.executable, "-c", "import jobs"]
    if os.geteuid() != 0 or subprocess.run(trial, cwd=ROOT, check=False, timeout=60).returncode != 0:
        pytest.skip(f"only root can become another user, who must be able to read {ROOT}")
    measured_and_reported(nobody, folder)
    assert {path.owner() for path in (folder / "store").rglob("*")} == {"nobody"}


def python_in_an_open_folder() -> Sequence[str]:
    """Python itself may lie in root's home, which is closed: the command sees it in a folder that is open."""
    python = Path(sys.base_prefix).resolve()
    closed = [parent for parent in python.parents if not parent.stat().st_mode & stat.S_IXOTH]
    if not closed:
        return ()
    words = 'mount --bind "$0" /mnt && mount -t tmpfs -o mode=755 none "$1" && mkdir -p "$0" && '
    words += 'mount --bind /mnt "$0" && shift && exec "$@"'
    return ("unshare", "--mount", "bash", "-c", words, str(python), str(closed[-1]))


@pytest.mark.soak
def test_somebodys_ray_on_this_machine_is_neither_joined_nor_disturbed(folder: Path) -> None:
    # Who joined it would find no core.
    with ray_head("--num-cpus=0") as head:
        measured_and_reported((), folder)
        show = [sys.executable, "-m", "jobs.cli", "cluster", "show"]
        shown = run(show, RAY_ADDRESS=head.address, RAY_AUTH_MODE="disabled")
    assert shown.returncode == 0, shown.stderr
    assert "alive" in shown.stdout


@pytest.mark.soak
def test_where_nothing_more_fits_into_tmp_that_is_one_line_and_no_row(folder: Path) -> None:
    if subprocess.run(["unshare", "--mount", "true"], check=False, timeout=60).returncode != 0:
        pytest.skip("only root can mount a folder that is full")
    store, tmp = folder / "store", folder / "tmp"
    tmp.mkdir()
    done = run([*FULL_TMP, *sweep_command(write_spec(folder, SPEC), store)], TMPDIR=str(tmp))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"longhaul sweep: {tmp} has 0.0 MB free, and Ray's files")
    assert rows(store) == []


@pytest.mark.soak
def test_a_cluster_that_asks_for_a_token_says_so_to_who_has_none(folder: Path) -> None:
    with ray_head("--num-cpus=1", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0123456789abcdef" * 4) as head:
        command = sweep_command(write_spec(folder, SPEC), folder / "store")
        done = run(command, RAY_ADDRESS=head.address, RAY_AUTH_MODE="disabled")
    assert done.returncode == 2
    # Ray's core writes the first one.
    rays, line = done.stderr.splitlines()
    assert "InvalidAuthToken" in rays
    assert line.startswith(f"longhaul sweep: RAY_ADDRESS: {head.address}: ")
    assert "and RAY_AUTH_MODE=token if it asks for a token" in line
