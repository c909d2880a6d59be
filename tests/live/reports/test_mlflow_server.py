"""A real MLflow server sees a run as one run, over stops, kills, and a time in which the server was dead."""

import json
import os
import signal
import sys
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.hosts import wait_until
from tests.live.command_line import run, running, write_spec
from tests.live.servers import HOST, MLFLOW_LOGIN, free_port, mlflow

DEADLINE_S = 300.0
RUN = """
name: r
model: llama-tiny
seq_len: 256
micro_batch: 4
steps: 1000000
data: {samples: 64}
checkpoint: {every_s: 2}
guard: {spike_ratio: null}
record: {flush_s: 1, mlflow: {experiment: big}}
"""

pytestmark = pytest.mark.soak


class Seen:
    """What the server tells of runs."""

    def __init__(self, port: int) -> None:
        self._api = f"http://{HOST}:{port}/api/2.0/mlflow"
        pair = ":".join(MLFLOW_LOGIN.values())
        self._headers = {
            "Authorization": f"Basic {b64encode(pair.encode()).decode()}",
            "Content-Type": "application/json",
        }

    def answers(self) -> bool:
        try:
            self._ask("experiments/search?max_results=1")
        except (OSError, urllib.error.HTTPError):
            return False
        return True

    def runs(self) -> list[dict[str, Any]]:
        experiments = self._ask("experiments/search?max_results=9")["experiments"]
        ids = [one["experiment_id"] for one in experiments if one["name"] == "big"]
        return self._ask("runs/search", experiment_ids=ids).get("runs", []) if ids else []

    def losses(self) -> dict[int, float]:
        """By step, the newest one of each."""
        found = self.runs()
        if not found:
            return {}
        (one,) = found
        asked = f"run_id={one['info']['run_id']}&metric_key=train/loss&max_results=25000"
        history = self._ask(f"metrics/get-history?{asked}").get("metrics", [])
        history.sort(key=lambda point: int(point["timestamp"]))
        return {int(point.get("step", 0)): point["value"] for point in history}

    def has_step(self, step: int) -> Callable[[], bool]:
        return lambda: max(self.losses(), default=0) >= step

    def _ask(self, question: str, **values: Any) -> Any:
        data = json.dumps(values).encode() if values else None
        request = urllib.request.Request(f"{self._api}/{question}", data=data, headers=self._headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


def test_a_run_is_one_run_there_over_a_stop_a_dead_server_and_a_kill(tmp_path: Path) -> None:
    port = free_port()
    seen, store = Seen(port), tmp_path / "store"
    command = _command(tmp_path, store)
    environment = {"MLFLOW_TRACKING_URI": f"http://{HOST}:{port}", **MLFLOW_LOGIN}

    with mlflow(tmp_path, port) as server:
        wait_until(seen.answers, DEADLINE_S, "the server")
        with running(command, **environment) as process:
            wait_until(seen.has_step(5), DEADLINE_S, "step 5")
            (at_first,) = seen.runs()
            assert (at_first["info"]["run_name"], at_first["info"]["status"]) == ("r", "RUNNING")
            assert {"key": "model", "value": "llama-tiny"} in at_first["data"]["params"]
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, output
        assert _status(store)["step"] == max(seen.losses())
        (stopped,) = seen.runs()
        assert stopped["info"]["status"] == "KILLED"
        assert stopped["info"]["end_time"] > stopped["info"]["start_time"]

        with running(command, **environment) as process:
            wait_until(seen.has_step(max(seen.losses()) + 5), DEADLINE_S, "five steps more")
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            died_at = _status(store)["step"]
            wait_until(lambda: _status(store)["step"] >= died_at + 10, DEADLINE_S, "steps without a server")
            with mlflow(tmp_path, port):
                wait_until(seen.answers, DEADLINE_S, "the server again")
                wait_until(seen.has_step(died_at + 10), DEADLINE_S, "what it has missed")
                process.kill()
                process.wait()
                assert [one["info"]["status"] for one in seen.runs()] == ["RUNNING"]

                last = _status(store)["step"] + 100  # beyond what it may have saved since it told that
                done = run([*command, "--set", f"steps={last}", "--json"], **environment)
                assert done.returncode == 0, done.stderr
                (finished,) = seen.runs()
                losses = seen.losses()
    assert finished["info"]["run_id"] == at_first["info"]["run_id"]
    assert finished["info"]["status"] == "FINISHED"
    assert sorted(losses) == list(range(1, last + 1))
    assert losses[last] == json.loads(done.stdout)["loss"]


def test_a_wrong_password_is_one_warning_and_costs_no_step(tmp_path: Path) -> None:
    port = free_port()
    seen = Seen(port)
    wrong = {"MLFLOW_TRACKING_URI": f"http://{HOST}:{port}", **MLFLOW_LOGIN}
    wrong["MLFLOW_TRACKING_PASSWORD"] = "another-secret"
    with mlflow(tmp_path, port):
        wait_until(seen.answers, DEADLINE_S, "the server")
        command = _command(tmp_path, tmp_path / "store")
        done = run([*command, "--set", "steps=20", "--json"], **wrong)
        assert seen.runs() == []
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Mlflow: experiments/search: 401") == 1
    assert "another-secret" not in done.stderr + done.stdout
    assert json.loads(done.stdout)["step"] == 20


def _command(folder: Path, store: Path) -> list[str]:
    spec = write_spec(folder, RUN)
    return [
        sys.executable, "-m", "jobs.cli", "train", str(spec), "--store", str(store), "--executor", "inline",
    ]  # fmt: skip


def _status(store: Path) -> dict[str, Any]:
    return json.loads((store / "runs/r/status.json").read_text(encoding="utf-8"))
