"""What stands in place of Ray's own scripts in a private Ray: the start of a worker, and the node's agent."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.local_ray import agent_stand_in, worker_start
from cluster.local_ray.worker_start import expanded, line

CONTEXT = "--serialized-runtime-env-context"
# Tells what it was started with.
SCRIPT = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ.get('FIRST'), sys.executable]))"


def started(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    script = folder / "a worker.py"
    script.write_text(SCRIPT, encoding="utf-8")
    words = [str(script), "--raylet-name=it's $HOME", *options, "--last"]
    return subprocess.run(
        [sys.executable, str(worker_start.__file__), *words], check=False, capture_output=True, text=True
    )


@pytest.mark.parametrize("joined", [True, False])
def test_a_worker_gets_its_variables_and_all_arguments_but_the_two_for_its_start(
    tmp_path: Path, joined: bool
) -> None:
    told = json.dumps({"env_vars": {"FIRST": "one two"}, "py_executable": sys.executable})
    options = (
        [f"{CONTEXT}={told}", "--language=PYTHON"] if joined else [CONTEXT, told, "--language", "PYTHON"]
    )
    done = started(tmp_path, *options)
    assert json.loads(done.stdout) == [["--raylet-name=it's $HOME", "--last"], "one two", sys.executable]


def test_a_worker_without_a_runtime_environment_has_this_python(tmp_path: Path) -> None:
    assert json.loads(started(tmp_path).stdout)[2] == sys.executable


def test_a_worker_in_another_language_is_refused_in_one_line(tmp_path: Path) -> None:
    done = started(tmp_path, "--language=JAVA")
    assert (done.returncode, done.stderr) == (1, "a worker in JAVA: expected one in Python\n")


def test_the_shell_gets_the_prefix_and_the_python_as_they_are() -> None:
    context = {"command_prefix": ["cd", "/x", "&&"], "py_executable": "python 'a b'"}
    assert line(context, ["w.py", "a b"]) == "cd /x && exec python 'a b' w.py 'a b'"
    assert (
        line({"override_worker_entrypoint": "/in/it.py", "py_executable": "p"}, ["w.py"])
        == "exec p /in/it.py"
    )


def test_values_name_earlier_variables_and_those_unset_in_braces_are_empty() -> None:
    values = {"A": "${HOME}/x:$HOME", "B": "$A", "C": "${GONE_1}|$GONE|${gone}|$"}
    assert expanded(values, {"HOME": "/h"}) == {
        "A": "/h/x:/h",
        "B": "/h/x:/h",
        # As with Ray: only a name in braces and capitals stands for nothing.
        "C": "|$GONE|${gone}|$",
    }


def test_expansion_is_pythons_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", "1")
    for value in ("$ONE${ONE}", "$ONE_$ONE-", "${ONE", "$$ONE", "${}", "é$ONEé", r"\$ONE"):
        assert expanded({"X": value}, os.environ)["X"] == os.path.expandvars(value)


def test_a_raylet_reads_that_there_are_no_ports(tmp_path: Path) -> None:
    agent_stand_in.tell_no_ports(tmp_path, "abc")
    assert {path.name: path.read_text(encoding="ascii") for path in tmp_path.iterdir()} == {
        "metrics_agent_port_abc": "-1",
        "metrics_export_port_abc": "-1",
        "dashboard_agent_listen_port_abc": "-1",
    }


def test_the_stand_in_ends_with_the_raylet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parents = iter([7, 7, 7, 1])
    slept: list[float] = []
    monkeypatch.setattr(agent_stand_in.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(agent_stand_in.time, "sleep", slept.append)
    agent_stand_in.main(["/ray/agent.py", f"--session-dir={tmp_path}", "--node-id=abc", "--head"])
    assert slept == [1.0, 1.0]
    assert len(list(tmp_path.iterdir())) == 3
