"""Ranks that are forked from a process that waits, for whoever stands for them. Nothing heavy is loaded."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from jobs.spares.__main__ import main, name_for
from jobs.spares.script import installed_imports
from tests.house import ROOT

DEADLINE_S = 60
# Of those that this process may use, a rank may use one.
CORES = sorted(os.sched_getaffinity(0))[:1]
# As ``python -m jobs.spares.server``, but for what it loads.
WAITS = """
import sys
from jobs.spares import script, server
# By then it has its name.
script.load = lambda words: print("waits", flush=True)
server.main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
"""
TELLS = """
import json, os, sys
told = {
    "words": sys.argv, "folder": os.getcwd(), "parent": os.getppid(), "name": __name__, "path": sys.path[0],
    "rank": os.environ["RANK"], "left": os.environ.get("OF_THE_FIRST_RANK"),
    "input": sys.stdin.read(), "cores": sorted(os.sched_getaffinity(0)),
}
print(json.dumps(told), flush=True)
print("to stderr", file=sys.stderr, flush=True)
sys.exit(3)
"""
STAYS = """
import os, signal, sys, time
def end(number, _):
    # A print might interrupt the one below before it has ended, which Python refuses.
    os.write(1, f"asked {number}\\n".encode())
    sys.exit(5)
signal.signal(signal.SIGTERM, end)
print(os.getpid(), flush=True)
time.sleep(600)
"""
# Its queue is as full as it gets: who comes to it now and waits, waits for ever.
ACCEPTS_NOBODY = """
import os, socket, sys, time
os.setuid(65534)
def a_socket():
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
listener, waiting = a_socket(), []
listener.bind(f"\\0{sys.argv[1]}")
listener.listen(0)
try:
    while True:
        waiting.append(a_socket())
        waiting[-1].connect(f"\\0{sys.argv[1]}")
except BlockingIOError:
    print("full", flush=True)
time.sleep(600)
"""
IMPATIENT = """
import sys
from jobs.spares import __main__ as spares
spares._PATIENCE_S = 0.5
sys.exit(spares.main(sys.argv[1:]))
"""


class Torchrun:
    """This process, as torchrun would be for its ranks, and the process that waits for them."""

    def __init__(self, folder: Path, script: str, agent: int) -> None:
        self.folder = folder
        self.script = folder / "train.py"
        self.script.write_text(script, encoding="utf-8")
        self.run_id = uuid.uuid4().hex
        name = name_for(agent, self.run_id)
        self.waiting = subprocess.Popen(
            [sys.executable, "-c", WAITS, str(agent), name, str(self.script)],
            env={**self._environment(), "OF_THE_FIRST_RANK": "1"}, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self.waiting.stdout is not None
        assert self.waiting.stdout.readline() == b"waits\n"

    def start(self, *words: str) -> "subprocess.Popen[str]":
        on_one_core = ["taskset", "--cpu-list", str(CORES[0])]
        return subprocess.Popen(
            [*on_one_core, sys.executable, "-m", "jobs.spares", str(self.script), *words],
            env={**self._environment(), "TORCHELASTIC_RUN_ID": self.run_id, "RANK": "7"},
            cwd=self.folder, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT)}


@contextmanager
def torchrun(folder: Path, script: str, agent: int | None = None) -> Iterator[Torchrun]:
    started = Torchrun(folder, script, agent or os.getpid())
    try:
        yield started
    finally:
        started.waiting.kill()
        started.waiting.communicate(timeout=DEADLINE_S)


def pid_told_by(rank: "subprocess.Popen[str]") -> psutil.Process:
    assert rank.stdout is not None
    return psutil.Process(int(rank.stdout.readline()))


def test_a_rank_has_all_that_torchrun_gave_it_and_its_exit_code_is_told(tmp_path: Path) -> None:
    with torchrun(tmp_path, TELLS) as started:
        rank = started.start("one", "--two")
        told, errors = rank.communicate("read", timeout=DEADLINE_S)
    assert (rank.returncode, errors) == (3, "to stderr\n")
    assert json.loads(told) == {
        "words": [str(started.script), "one", "--two"],
        "folder": str(tmp_path),
        "parent": started.waiting.pid,
        "name": "__main__",
        "path": str(tmp_path),
        "rank": "7",
        "left": None,
        "input": "read",
        "cores": CORES,
    }


def test_a_signal_reaches_the_rank(tmp_path: Path) -> None:
    with torchrun(tmp_path, STAYS) as started:
        rank = started.start()
        pid_told_by(rank)
        rank.send_signal(signal.SIGTERM)
        told, _ = rank.communicate(timeout=DEADLINE_S)
    assert (told, rank.returncode) == (f"asked {signal.SIGTERM.value}\n", 5)


def test_a_killed_rank_is_told_as_killed_and_another_one_takes_its_place(tmp_path: Path) -> None:
    with torchrun(tmp_path, STAYS) as started:
        rank = started.start()
        first = pid_told_by(rank)
        first.kill()
        assert rank.wait(DEADLINE_S) == -signal.SIGKILL
        again = started.start()
        second = pid_told_by(again)
        assert (second.ppid(), second.pid != first.pid) == (started.waiting.pid, True)
        again.kill()


def test_who_is_killed_takes_its_rank_along(tmp_path: Path) -> None:
    with torchrun(tmp_path, STAYS) as started:
        rank = started.start()
        process = pid_told_by(rank)
        rank.kill()
        process.wait(DEADLINE_S)


def test_if_the_process_that_waits_dies_its_ranks_end_and_say_so(tmp_path: Path) -> None:
    with torchrun(tmp_path, STAYS) as started:
        rank = started.start()
        process = pid_told_by(rank)
        started.waiting.kill()
        process.wait(DEADLINE_S)
        _, errors = rank.communicate(timeout=DEADLINE_S)
    assert rank.returncode == 1
    assert errors == "the process that waited with everything loaded has died, and its ranks with it\n"


def test_it_ends_with_its_torchrun(tmp_path: Path) -> None:
    agent = subprocess.Popen(["sleep", "600"])
    with torchrun(tmp_path, TELLS, agent.pid) as started:
        assert started.waiting.poll() is None
        agent.kill()
        agent.wait(DEADLINE_S)
        assert started.waiting.wait(DEADLINE_S) == 0


def test_only_one_process_waits_under_a_name(tmp_path: Path) -> None:
    with torchrun(tmp_path, STAYS) as started:
        rank = started.start()
        pid_told_by(rank)
        command = [sys.executable, "-c", WAITS, str(os.getpid()), name_for(os.getpid(), started.run_id), "x"]
        second = subprocess.run(command, cwd=ROOT, check=False, timeout=DEADLINE_S)
        assert second.returncode == 0
        rank.kill()


def test_without_torchrun_the_script_runs_as_it_is(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TELLS, encoding="utf-8")
    without = {key: value for key, value in os.environ.items() if not key.startswith("TORCHELASTIC_")}
    done = subprocess.run(
        [sys.executable, "-m", "jobs.spares", str(script)],
        env={**without, "PYTHONPATH": str(ROOT), "RANK": "7"},
        input="", text=True, capture_output=True, check=False, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 3
    assert json.loads(done.stdout)["parent"] == os.getpid()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_who_has_taken_the_name_gets_nothing(tmp_path: Path) -> None:
    run_id = uuid.uuid4().hex
    takes = (
        "import os, socket, sys, time\nos.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "s.bind(chr(0) + sys.argv[1])\ns.listen()\nprint('taken', flush=True)\ntime.sleep(600)"
    )
    command = [sys.executable, "-c", takes, name_for(os.getpid(), run_id)]
    script = tmp_path / "train.py"
    script.write_text(TELLS, encoding="utf-8")
    stranger = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == b"taken\n"
        done = subprocess.run(
            [sys.executable, "-m", "jobs.spares", str(script)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TORCHELASTIC_RUN_ID": run_id, "RANK": "7"},
            input="", text=True, capture_output=True, check=False, timeout=DEADLINE_S,
        )  # fmt: skip
    finally:
        stranger.kill()
        stranger.communicate(timeout=DEADLINE_S)
    assert json.loads(done.stdout)["parent"] == os.getpid()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_who_has_taken_the_name_and_accepts_nobody_holds_no_rank_up(tmp_path: Path) -> None:
    run_id = uuid.uuid4().hex
    script = tmp_path / "train.py"
    script.write_text("print('alone', flush=True)", encoding="utf-8")
    squatter = subprocess.Popen(
        [sys.executable, "-c", ACCEPTS_NOBODY, name_for(os.getpid(), run_id)], stdout=subprocess.PIPE
    )
    try:
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == b"full\n"
        done = subprocess.run(
            [sys.executable, "-c", IMPATIENT, str(script)], cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TORCHELASTIC_RUN_ID": run_id},
            timeout=DEADLINE_S, check=False,
        )  # fmt: skip
    finally:
        squatter.kill()
        squatter.communicate(timeout=DEADLINE_S)
    assert (done.returncode, done.stdout) == (0, "alone\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_who_asks_for_a_rank_gets_none(tmp_path: Path) -> None:
    asks = (
        "import json, os, socket, sys\nos.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\ns.connect(chr(0) + sys.argv[1])\n"
        "told = {'words': [sys.argv[2]], 'environment': {'RANK': '7'}, 'folder': '/', 'cores': [0]}\n"
        "socket.send_fds(s, [json.dumps(told).encode()], [0, 1, 2])\nprint(s.recv(1))"
    )
    with torchrun(tmp_path, TELLS) as started:
        name = name_for(os.getpid(), started.run_id)
        command = [sys.executable, "-c", asks, name, str(started.script)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
        # Its connection is closed, perhaps before it has asked.
        assert done.stdout in ("b''\n", "")
        assert psutil.Process(started.waiting.pid).children() == []


@pytest.mark.parametrize("words", [[], ["-m"], ["--help"]])
def test_wrong_usage_ends_with_2_and_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("usage: torchrun ")


def test_of_what_a_script_imports_only_installed_packages_are_loaded_before(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("raise AssertionError", encoding="utf-8")
    script = tmp_path / "train.py"
    lines = ["import psutil, model", "import pytest.mark as m", "from _pytest import fixtures", "import os"]
    script.write_text("\n".join([*lines, "from . import beside", "import gone", "def f():\n    import yaml"]))
    assert installed_imports([str(script), "x"]) == ["psutil", "pytest.mark", "_pytest"]


def test_a_script_that_can_not_be_read_loads_nothing_more(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import psutil\nthis is no Python", encoding="utf-8")
    assert installed_imports([str(script)]) == installed_imports([str(tmp_path / "gone.py")]) == []
    assert installed_imports(["-m", "there.is.no.module"]) == []
