"""Sends a run's scalars to MLflow, through its documented REST API: its own client would bring a web server.

Whatever the tracking server does, a request ends within seconds, and an answer of any size is cut. Errors are
raised to the caller, who runs in a thread of its own.
"""

import json
import os
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from checkpointing.stores.transfers import within
from reporting.recording.attempts import RecordedAttempt
from reporting.recording.scalars import RecordedWindow, Scalar, Scalars
from reporting.results.redaction import without_credentials

TRACKING_URI = "MLFLOW_TRACKING_URI"
_SILENT_S = 5.0
_DEADLINE_S = 10.0
_MOST_ANSWER_BYTES = 1_000_000
# MLflow's own bound for one request.
_MOST_METRICS = 1_000
# Limits what waits for a server that is away: ten requests.
_MOST_WAITING = 10_000
_MOST_SAID = 200
# What MLflow calls the way in which an attempt ended. The next attempt, if there is one, sets RUNNING again.
_STATUS = {"end": "FINISHED", "failure": "FAILED", "stop": "KILLED", "interruption": "KILLED"}


class MlflowError(Exception):
    """The tracking server refused, or did not answer. The message holds no credentials."""


class Tracking:
    """The tracking server that MLflow's own variables name, with their login."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get(TRACKING_URI, "")
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise MlflowError(
                f"{TRACKING_URI} is {without_credentials(address)[:_MOST_SAID]!r}, expected http:// or https://"
            )
        self._address = address.rstrip("/")
        self._headers = {"Content-Type": "application/json", **_login(environment)}
        # A redirection would take the login to another server.
        self._opener = urllib.request.build_opener(_NoRedirection)

    def post(self, path: str, **values: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self._address}/api/2.0/mlflow/{path}",
            data=json.dumps(values).encode(),
            headers=self._headers,
        )
        try:
            # The library's own timeout is per piece: a server that drips would keep it for ever.
            answer = within(_DEADLINE_S, lambda: self._answer(request))
        except TimeoutError as error:
            raise MlflowError(f"{path}: {error}") from None
        if not isinstance(answer, dict):
            raise MlflowError(f"{path}: the answer is no JSON object")
        return answer

    def _answer(self, request: urllib.request.Request) -> Any:
        what = request.full_url.rpartition("/mlflow/")[2]
        try:
            with self._opener.open(request, timeout=_SILENT_S) as answer:
                return json.loads(_bounded(answer.read(_MOST_ANSWER_BYTES + 1)))
        except urllib.error.HTTPError as error:
            with error:
                raise MlflowError(f"{what}: {error.code} {_said(error.read(_MOST_ANSWER_BYTES))}") from None
        except (OSError, ValueError, RecursionError) as error:
            raise MlflowError(f"{what}: {without_credentials(str(error))[:_MOST_SAID]}") from None


class Mlflow:
    """Sends all attempts of a run to one run of MLflow, which is found again by the tag ``longhaul.run``.

    Scalars that could not be sent go with the next window; beyond a limit only the newest are kept.
    """

    def __init__(self, *, experiment: str) -> None:
        self._experiment = experiment
        self._scalars = Scalars()
        self._waiting: list[Scalar] = []
        self._run: tuple[Tracking, str] | None = None
        self._end: dict[str, Any] = {}

    def __call__(self, window: RecordedWindow) -> None:
        self._waiting = [*self._waiting, *self._scalars.of(window)][-_MOST_WAITING:]
        for incident in window.of("incidents"):
            if status := _STATUS.get(incident["kind"]):
                self._end = {"status": status, "end_time": int(incident["happened_s"] * 1000)}
        if self._run is None:
            tracking = Tracking()
            self._run = (tracking, _begin(tracking, self._experiment, window.attempt))
        tracking, run_id = self._run
        while self._waiting:
            sent = self._waiting[:_MOST_METRICS]
            tracking.post("runs/log-batch", run_id=run_id, metrics=_metrics(sent))
            self._waiting = self._waiting[len(sent) :]
        if window.is_last and self._end:
            tracking.post("runs/update", run_id=run_id, **self._end)


def _begin(tracking: Tracking, experiment: str, attempt: RecordedAttempt) -> str:
    """The id of the run's MLflow run, which is made if there is none."""
    experiment_id = _experiment_id(tracking, experiment)
    found = tracking.post(
        "runs/search",
        experiment_ids=[experiment_id],
        filter=f"tags.`longhaul.run` = '{attempt.run}'",
        max_results=1,
    )
    if found.get("runs"):
        run_id = _text(found, "runs", 0, "info", "run_id")
        tracking.post("runs/update", run_id=run_id, status="RUNNING")
        return run_id
    made = tracking.post(
        "runs/create",
        experiment_id=experiment_id,
        run_name=attempt.run,
        start_time=int(attempt.leased_s * 1000),
        tags=[{"key": "longhaul.run", "value": attempt.run}],
    )
    run_id = _text(made, "run", "info", "run_id")
    tracking.post("runs/log-batch", run_id=run_id, params=_parameters(attempt))
    return run_id


def _experiment_id(tracking: Tracking, experiment: str) -> str:
    found = tracking.post("experiments/search", filter=f"name = '{experiment}'", max_results=1)
    if found.get("experiments"):
        return _text(found, "experiments", 0, "experiment_id")
    return _text(tracking.post("experiments/create", name=experiment), "experiment_id")


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _login(environment: Mapping[str, str]) -> dict[str, str]:
    if token := environment.get("MLFLOW_TRACKING_TOKEN"):
        return {"Authorization": f"Bearer {token}"}
    if user := environment.get("MLFLOW_TRACKING_USERNAME"):
        pair = f"{user}:{environment.get('MLFLOW_TRACKING_PASSWORD', '')}"
        return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}
    return {}


def _metrics(scalars: Sequence[Scalar]) -> list[dict[str, Any]]:
    return [
        {"key": one.tag, "value": one.value, "timestamp": int(one.at_s * 1000), "step": one.step}
        for one in scalars
    ]


def _parameters(attempt: RecordedAttempt) -> list[dict[str, str]]:
    names = (
        "model",
        "strategy",
        "world_size",
        "group",
        "vendor",
        "num_steps",
        "tokens_per_step",
        "simulated",
    )
    return [{"key": name, "value": str(getattr(attempt, name))} for name in names]


def _text(answer: Any, *path: str | int) -> str:
    for step in path:
        try:
            answer = answer[step]
        except (KeyError, IndexError, TypeError):
            raise MlflowError(f"the answer has no {path[-1]}") from None
    return str(answer)


def _bounded(data: bytes) -> bytes:
    if len(data) > _MOST_ANSWER_BYTES:
        raise ValueError(f"the answer has more than {_MOST_ANSWER_BYTES:,} bytes")
    return data


def _said(data: bytes) -> str:
    """What a refusal says, in one line."""
    try:
        text = str(json.loads(data).get("message", ""))
    except (ValueError, AttributeError, RecursionError):
        text = data.decode(errors="replace")
    return " ".join(without_credentials(text).split())[:_MOST_SAID]
