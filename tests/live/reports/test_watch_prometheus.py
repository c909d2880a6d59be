"""A real Prometheus reads what ``longhaul watch`` shows of a run, as docs/prometheus.yaml tells it to."""

import json
import shutil
import socket
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from checkpointing.stores.local import LocalStore
from cluster.yaml_file import read_yaml
from tests.hosts import wait_until
from tests.live.command_line import ROOT, run, running
from tests.unit.watching.watched import put_run

TOKEN = "a-token-of-enough-letters"
AS_STATUS_SAYS = {
    "ray_longhaul_step": "step",
    "ray_longhaul_steps_wanted": "num_steps",
    "ray_longhaul_loss": "loss",
    "ray_longhaul_steps_at_risk": "steps_at_risk",
}
_DEADLINE_S = 120

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="no prometheus on PATH: nothing has scraped longhaul watch"
    ),
]


class Prometheus:
    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"

    def series(self, query: str) -> list[tuple[dict[str, str], float]]:
        """The labels and the value of each series that the query finds."""
        found = self._answer(f"query?{urllib.parse.urlencode({'query': query})}")["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def newest(self, metric: str) -> list[tuple[dict[str, str], float]]:
        """Its series as they were scraped last: on a busy machine one scrape in between may be late."""
        return self.series(f"last_over_time({metric}[5m])")

    def wait_for(self, metric: str, value: float) -> None:
        def is_so() -> bool:
            with suppress(OSError):  # It does not listen yet.
                return [found for _, found in self.series(metric)] == [value]
            return False

        wait_until(is_so, _DEADLINE_S, f"{metric} {value}")

    def last_error(self) -> str:
        (target,) = self._answer("targets")["activeTargets"]
        return target["lastError"]

    def _answer(self, question: str) -> Any:
        with urllib.request.urlopen(f"{self._address}/api/v1/{question}", timeout=30) as answer:
            return json.load(answer)["data"]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "results")
    put_run(store, stage="interrupted")
    return store


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text(f"{TOKEN}\n", encoding="utf-8")
    return path


@pytest.fixture
def prometheus(tmp_path: Path, store: LocalStore, token_file: Path) -> Iterator[Prometheus]:
    watch = [
        sys.executable, "-m", "jobs.cli", "watch", "r", "--store", str(tmp_path / "results"),
        "--listen", "127.0.0.1:0", "--token-file", str(token_file),
    ]  # fmt: skip
    with running(watch) as watching:
        assert watching.stdout is not None
        address = watching.stdout.readline().removeprefix("r: http://").strip().removesuffix("/")
        scrapers_file = tmp_path / "scrapers-token"
        shutil.copy(token_file, scrapers_file)
        with _scraping(tmp_path, address, scrapers_file) as found:
            yield found


@contextmanager
def _scraping(folder: Path, address: str, credentials: Path) -> Iterator[Prometheus]:
    config = folder / "prometheus.yaml"
    config.write_text(json.dumps(_of_the_docs(address, credentials)), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with running([*command, f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]):
        yield Prometheus(port)


def _of_the_docs(address: str, credentials: Path) -> dict[str, Any]:
    """The docs' configuration, with this test's address and file, and looking more often."""
    config = read_yaml(ROOT / "docs/prometheus.yaml", "Prometheus' configuration")
    (job,) = config["scrape_configs"]
    job["static_configs"][0]["targets"] = [address]
    job["authorization"]["credentials_file"] = str(credentials)
    job["scrape_interval"] = "1s"
    return config


def status(store: Path) -> dict[str, Any]:
    done = run([sys.executable, "-m", "jobs.cli", "status", "r", "--store", str(store), "--json"])
    return json.loads(done.stdout)


def test_prometheus_reads_the_figures_that_status_has_and_new_ones_later_but_none_with_a_wrong_token(
    prometheus: Prometheus, store: LocalStore, tmp_path: Path
) -> None:
    prometheus.wait_for("ray_longhaul_step", 35)
    told = json.loads(store.get("runs/r/status.json"))
    store.put("runs/r/status.json", json.dumps({**told, "step": 36, "loss": 1.25}).encode())
    prometheus.wait_for("ray_longhaul_step", 36)

    figures = {name: prometheus.newest(name) for name in AS_STATUS_SAYS}
    stages = {labels["stage"]: value for labels, value in prometheus.newest("ray_longhaul_stage")}
    ((_, age_s),) = prometheus.newest("ray_longhaul_durable_age_seconds")
    found = status(tmp_path / "results")
    for name, key in AS_STATUS_SAYS.items():
        ((labels, value),) = figures[name]
        assert (labels["run"], labels["job"], value) == ("r", "longhaul", found[key]), name
    assert [stage for stage, value in stages.items() if value] == [found["stage"]] == ["interrupted"]
    assert 0 < age_s <= found["newest_durable_age_s"]

    (tmp_path / "scrapers-token").write_text("another-token-of-as-many-letters", encoding="utf-8")
    wait_until(lambda: "401" in prometheus.last_error(), _DEADLINE_S, "a refusal")
    assert prometheus.series("ray_longhaul_step") == []
