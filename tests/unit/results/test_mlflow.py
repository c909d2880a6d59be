"""MLflow as a sink: what its server gets, and that whatever the server does costs no step."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from reporting.recording import mlflow
from reporting.recording.mlflow import Mlflow, MlflowError, Tracking
from reporting.recording.scalars import RecordedWindow
from tests.unit.recorded import NOON_S, attempt

Respond = Callable[[BaseHTTPRequestHandler, str], None]


class Server(ThreadingHTTPServer):
    """The part of MLflow's REST API 2.0 that is documented and used here. ``respond`` misbehaves instead."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.logins: list[str | None] = []
        self.respond: Respond | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        match path:
            case "experiments/search":
                found = [name for name in self.experiments if asked["filter"] == f"name = '{name}'"]
                return {"experiments": [{"experiment_id": self.experiments[name]} for name in found]}
            case "experiments/create":
                self.experiments[asked["name"]] = str(len(self.experiments))
                return {"experiment_id": self.experiments[asked["name"]]}
            case "runs/search":
                ids = [
                    one for one in self.runs if asked["filter"] == f"tags.`longhaul.run` = '{self.tag(one)}'"
                ]
                return {"runs": [{"info": {"run_id": one}} for one in ids]} if ids else {}
            case "runs/create":
                run_id = f"id{len(self.runs)}"
                self.runs[run_id] = {**asked, "metrics": [], "params": [], "status": "RUNNING"}
                return {"run": {"info": {"run_id": run_id}}}
            case "runs/log-batch":
                assert len(asked.get("metrics", [])) <= 1000
                for name in ("metrics", "params"):
                    self.runs[asked["run_id"]][name] += asked.get(name, [])
                return {}
            case "runs/update":
                self.runs[asked["run_id"]].update(status=asked["status"], end_time=asked.get("end_time"))
                return {"run_info": {}}
        raise AssertionError(path)

    def tag(self, run_id: str) -> str:
        return str(next(one["value"] for one in self.runs[run_id]["tags"] if one["key"] == "longhaul.run"))


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = self.path.removeprefix("/api/2.0/mlflow/")
        self.server.logins.append(self.headers["Authorization"])
        if self.server.respond is not None:
            self.server.respond(self, path)
        else:
            give(self, 200, json.dumps(self.server.answer(path, asked)).encode())

    def log_message(self, *_: Any) -> None:
        return None


def give(handler: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("TOKEN", "USERNAME", "PASSWORD"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    with Server() as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{server.address}/")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def window(*steps: int, is_last: bool = False, term: int = 1, end: str | None = None) -> RecordedWindow:
    rows = [
        {
            "step": step, "ended_s": NOON_S + step, "step_s": 1.0, "loss": 2.0, "val_loss": None,
            "grad_norm": None, "learning_rate": 0.1,
        }
        for step in steps
    ]  # fmt: skip
    incidents = [{"kind": "save", "place": "disk"}, {"kind": end, "happened_s": NOON_S + 9}] if end else []
    return RecordedWindow(
        attempt=attempt(term=term), rows={"steps": rows, "incidents": incidents}, is_last=is_last
    )


def losses(server: Server, run_id: str = "id0") -> list[int]:
    return [one["step"] for one in server.runs[run_id]["metrics"] if one["key"] == "train/loss"]


def test_all_attempts_of_a_run_are_one_run_there(server: Server) -> None:
    Mlflow(experiment="big")(window(1, 2, is_last=False))
    again = Mlflow(experiment="big")
    again(window(2, 3, is_last=True, term=2, end="end"))
    assert list(server.experiments) == ["big"]
    assert list(server.runs) == ["id0"]
    assert losses(server) == [1, 2, 2, 3]
    run = server.runs["id0"]
    assert (run["run_name"], run["status"]) == ("r", "FINISHED")
    assert {"key": "model", "value": "llama-tiny"} in run["params"]
    assert {"key": "train/loss", "value": 2.0, "timestamp": int((NOON_S + 1) * 1000), "step": 1} in run[
        "metrics"
    ]


@pytest.mark.parametrize(
    ("end", "status"),
    [("end", "FINISHED"), ("stop", "KILLED"), ("interruption", "KILLED"), ("failure", "FAILED")],
)
def test_how_an_attempt_ended_and_when_is_seen_there_until_the_next_one_begins(
    server: Server, end: str, status: str
) -> None:
    sink = Mlflow(experiment="big")
    sink(window(1, end=end))
    run = server.runs["id0"]
    assert run["status"] == "RUNNING"
    # As a recorder does: what is left goes in one window, and the last one is empty.
    sink(window(is_last=True))
    assert (run["status"], run["end_time"]) == (status, int((NOON_S + 9) * 1000))
    Mlflow(experiment="big")(window(2, term=2))
    assert run["status"] == "RUNNING"


def test_a_long_window_goes_in_pieces_that_the_server_takes(server: Server) -> None:
    Mlflow(experiment="big")(window(*range(1, 2501)))
    assert losses(server) == list(range(1, 2501))


def test_what_could_not_be_sent_goes_with_the_next_window_up_to_a_bound(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow, "_MOST_WAITING", 8)
    sink = Mlflow(experiment="big")
    server.respond = lambda handler, _path: give(handler, 503, b"busy")
    for step in (1, 2, 3, 4, 5):
        with pytest.raises(MlflowError, match="experiments/search: 503 busy"):
            sink(window(step))
    server.respond = None
    sink(window(6))
    assert losses(server)[-2:] == [5, 6]
    assert len(server.runs["id0"]["metrics"]) == 8


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"[" * 100_000, "experiments/search"),
        (b"{" + b" " * 1_100_000 + b"}", "more than 1,000,000 bytes"),
        (b"[]", "no JSON object"),
        (b'{"experiments": [{}]}', "has no experiment_id"),
        (b'{"experiments": 7}', "has no"),
        (b"\xff\xfe", "experiments/search"),
    ],
)
def test_an_answer_that_is_none_is_one_line(server: Server, body: bytes, says: str) -> None:
    server.respond = lambda handler, _path: give(handler, 200, body)
    with pytest.raises(MlflowError, match=says) as raised:
        Mlflow(experiment="big")(window(1))
    assert len(str(raised.value)) < 400 and "\n" not in str(raised.value)


def test_a_server_that_hangs_or_drips_is_left_in_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow, "_DEADLINE_S", 0.2)
    over = threading.Event()

    def drip(handler: BaseHTTPRequestHandler, _path: str) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not over.wait(0.02):
            handler.wfile.write(b" ")

    server.respond = drip
    with pytest.raises(MlflowError, match="no answer within"):
        Mlflow(experiment="big")(window(1))
    over.set()


def test_the_login_goes_to_the_server_alone_and_never_into_a_message(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    Mlflow(experiment="big")(window(1))
    assert set(server.logins) == {"Bearer secret"}
    with Server() as other:
        thread = threading.Thread(target=other.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        server.respond = lambda handler, _path: give(handler, 307, b"", Location=other.address)
        with pytest.raises(MlflowError, match="307") as raised:
            Mlflow(experiment="big")(window(1))
        other.shutdown()
        thread.join()
        assert other.logins == []
    assert "secret" not in str(raised.value)
    assert Tracking({"MLFLOW_TRACKING_URI": server.address, "MLFLOW_TRACKING_USERNAME": "me"})


@pytest.mark.parametrize("address", ["", "file:///etc", "databricks", "ftp://host", "http://", "/srv/mlruns"])
def test_an_address_that_is_none_of_a_server_is_said(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    with pytest.raises(MlflowError, match="expected http:// or https://"):
        Mlflow(experiment="big")(window(1))
