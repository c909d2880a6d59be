"""Commands whose output nobody reads any more, as in ``longhaul ... | head -1``, or was closed before; and
commands without a working directory.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.commandline.output import is_reader_gone, printable, say
from tests.unit.older_store import unpack

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 60
READER_GONE = 141


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("older"))


def run(*command: str, cwd: Path, out: int, unbuffered: str = "") -> "subprocess.CompletedProcess[str]":
    environment = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    return subprocess.run(
        command, cwd=cwd, env=os.environ | environment, stdout=out, stderr=subprocess.PIPE, text=True,
        timeout=DEADLINE_S, check=False,
    )  # fmt: skip


def unread(*words: str, cwd: Path, unbuffered: str = "") -> "subprocess.CompletedProcess[str]":
    """Runs a command whose standard output is a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return run(sys.executable, "-m", "jobs.cli", *words, cwd=cwd, out=writer, unbuffered=unbuffered)
    finally:
        os.close(writer)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "command",
    [
        "status whole --json --store results",
        "status whole --store results",
        "stop whole --store results",
        "checkpoints list --run whole --store results",
        "checkpoints verify latest --run whole --store results",
        "compare results#sweep=finished results#sweep=interrupted",
        "import older/result.json --store results",
        "pull results copies",
        "sweep finished.yaml --dry-run",
        "sweep finished.yaml --store results --json",
        "watch whole --terminal --store results",
        "watch whole --json --store results",
    ],
)
def test_a_command_whose_reader_is_gone_ends_without_a_word_as_shells_expect(
    older: Path, command: str, unbuffered: str
) -> None:
    done = unread(*command.split(), cwd=older, unbuffered=unbuffered)
    assert (done.returncode, done.stderr) == (READER_GONE, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["status whole --store results", "sweep finished.yaml --dry-run"])
def test_output_that_can_not_be_written_is_one_line_and_a_failure(
    older: Path, command: str, unbuffered: str
) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        command_line = (sys.executable, "-m", "jobs.cli", *command.split())
        done = run(*command_line, cwd=older, out=full, unbuffered=unbuffered)
    finally:
        os.close(full)
    assert done.returncode == 1
    assert done.stderr == (
        "longhaul: the output can't be written (No space left on device); nothing else was lost\n"
    )


def test_what_ends_a_command_before_is_said_and_keeps_its_code(older: Path) -> None:
    done = unread("status", "nobody", "--store", "results", cwd=older)
    assert done.returncode == 2
    assert "there is no run 'nobody'" in done.stderr


def test_a_help_that_nobody_reads_to_its_end_is_none_of_it(tmp_path: Path) -> None:
    done = unread("sweep", "--help", cwd=tmp_path, unbuffered="1")
    # argparse of Python 3.11.7 passes over what it can't print, that of 3.11.2 does not.
    assert (done.returncode in (0, READER_GONE), done.stderr) == (True, "")


def test_a_training_that_is_done_says_so_with_its_code_whoever_reads(older: Path) -> None:
    done = unread(
        "train", "whole.yaml", "--store", "results", "--executor", "inline", cwd=older, unbuffered="1"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_answer_to_an_output_that_is_closed_is_lost_and_a_failure(older: Path) -> None:
    command = f"{sys.executable} -m jobs.cli checkpoints verify latest --run whole --store results >&-"
    done = run("bash", "-c", command, cwd=older, out=subprocess.DEVNULL)
    assert done.returncode == 1
    assert (
        done.stderr == "longhaul: the output can't be written (Bad file descriptor); nothing else was lost\n"
    )


@pytest.mark.parametrize("outputs", [">&-", ">&- 2>&-", ">/dev/full"])
def test_a_training_whose_output_is_lost_keeps_its_own_code(older: Path, outputs: str) -> None:
    words = "train whole.yaml --store results --executor inline"
    done = run(
        "bash", "-c", f"{sys.executable} -m jobs.cli {words} {outputs}", cwd=older, out=subprocess.DEVNULL
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "words",
    [
        *("", "--version", "--help", "runs", "explain oom", "completion bash"),
        *("checkpoints list --run whole", "watch whole --terminal", "watch whole --json"),
    ],
)
@pytest.mark.parametrize("output", [">/dev/full", ">&-"])
def test_no_command_calls_lost_output_a_success(older: Path, words: str, output: str) -> None:
    done = run(
        "bash", "-c", f"{sys.executable} -m jobs.cli {words} {output}", cwd=older, out=subprocess.DEVNULL
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "the output can't be written" in done.stderr


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [("latin-1", "a - b, 4 \xd7 8, \\u6f22, c d, e..."), ("ascii", "a - b, 4 x 8, \\u6f22, c d, e...")],
)
def test_what_a_character_set_lacks_is_replaced_and_ends_no_command(
    tmp_path: Path, encoding: str, expected: str
) -> None:
    script = """
from jobs.commandline.process_exit import run

def main():
    print("a \u2013 b, 4 \u00d7 8, \u6f22, c\u202fd, e\u2026")
    return 0

run(main)
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": f"{encoding}:strict"}
    command = (sys.executable, "-c", script)
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode(encoding) == f"{expected}\n"


def test_an_interrupt_before_a_command_has_begun_is_one_line(tmp_path: Path) -> None:
    script = """
import os, signal
from jobs.commandline.process_exit import run

def main():
    os.kill(os.getpid(), signal.SIGINT)
    import this_never_loads

signal.signal(signal.SIGINT, signal.default_int_handler)
run(main)
"""
    done = run(sys.executable, "-c", script, cwd=tmp_path, out=subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (130, "longhaul: interrupted\n")


def test_the_command_line_is_built_where_an_interrupt_is_caught() -> None:
    """It takes the longest of what every command loads."""
    script = "import sys, jobs.cli.__main__; print(int('jobs.cli.arguments' in sys.modules))"
    done = run(sys.executable, "-c", script, cwd=ROOT, out=subprocess.PIPE)
    assert done.stdout == "0\n"


def test_a_sweep_whose_reader_goes_is_no_failure_of_a_cell(tmp_path: Path) -> None:
    script = """
from jobs.commandline.process_exit import run
from jobs.sweeps.live_view import open_display

def main():
    with open_display([], {}, quiet=False) as display:
        try:
            display.note("said")
        except Exception:
            return 1

run(main)
"""
    reader, writer = os.pipe()
    os.close(reader)
    done = run(sys.executable, "-c", script, cwd=tmp_path, out=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (READER_GONE, "")


@pytest.mark.parametrize("command", ["train {specs}/runs/smoke.yaml", "status whole", "report"])
def test_a_command_in_a_deleted_directory_is_one_line(tmp_path: Path, command: str) -> None:
    words = command.format(specs=ROOT / "jobs" / "specs")
    place = tmp_path / "gone"
    place.mkdir()
    done = run(
        "bash", "-c", f"rmdir {place} && exec {sys.executable} -P -m jobs.cli {words}",
        cwd=place, out=subprocess.DEVNULL,
    )  # fmt: skip
    line = "longhaul: the working directory was deleted; change to one that exists (`cd DIR`)\n"
    assert (done.returncode, done.stderr) == (2, line)


@pytest.mark.parametrize(("home", "expected"), [(None, "/"), ("/elsewhere", "/elsewhere")])
def test_a_user_without_a_name_and_a_home_has_the_root_as_in_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str | None, expected: str
) -> None:
    """Ray loads nowhere without a home."""
    script = """
import pwd
from pathlib import Path
from jobs.commandline.process_exit import run

def main():
    print(Path("~").expanduser())
    return 0

pwd.getpwuid = {}.__getitem__
run(main)
"""
    monkeypatch.delenv("HOME")
    if home:
        monkeypatch.setenv("HOME", home)
    done = run(sys.executable, "-c", script, cwd=tmp_path, out=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (0, f"{expected}\n"), done.stderr


def test_a_broken_pipe_of_something_else_is_an_error(tmp_path: Path) -> None:
    assert not is_reader_gone(BrokenPipeError())
    script = """
from jobs.commandline.process_exit import run

def main():
    raise BrokenPipeError("socket")

run(main)
"""
    done = run(sys.executable, "-c", script, cwd=tmp_path, out=subprocess.DEVNULL)
    assert done.returncode == 1
    assert "BrokenPipeError: socket" in done.stderr


def test_what_can_not_be_said_costs_nothing() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    out = os.fdopen(writer, "w")
    say("anybody?", to=out)
    with pytest.raises(BrokenPipeError):
        out.close()


def test_what_could_steer_a_terminal_is_not_printed_and_lines_and_tabs_stay() -> None:
    assert printable("a\x1b]0;title\x07b\u202ec") == "a\ufffd]0;title\ufffdb\ufffdc"
    assert printable("one\ttwo\nthree é 漢 ⇒\n") == "one\ttwo\nthree é 漢 ⇒\n"
