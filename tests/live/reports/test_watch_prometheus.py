"""A real Prometheus reads what ``longhaul watch`` shows of a run, as docs/prometheus.yaml tells it to."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpointing.stores.local import LocalStore
from cluster.yaml_file import read_yaml
from tests.hosts import wait_until
from tests.live.command_line import ROOT, run, running
from tests.live.prometheus import DEADLINE_S, IS_THERE, Prometheus, scraping
from tests.unit.watching.watched import put_run

TOKEN = "a-token-of-enough-letters"
AS_STATUS_SAYS = {
    "ray_longhaul_step": "step",
    "ray_longhaul_steps_wanted": "num_steps",
    "ray_longhaul_loss": "loss",
    "ray_longhaul_steps_at_risk": "steps_at_risk",
}

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not IS_THERE, reason="no prometheus on PATH: nothing has scraped longhaul watch"),
]


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
        with scraping(tmp_path, _of_the_docs(address, scrapers_file)) as found:
            yield found


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
    wait_until(lambda: "401" in prometheus.last_error(), DEADLINE_S, "a refusal")
    assert prometheus.series("ray_longhaul_step") == []
