"""What Prometheus reads of a run that is watched, and who else may: nobody without the token."""

from pathlib import Path

import pytest

from checkpointing.stores.memory import MemoryStore
from cluster.yaml_file import read_yaml
from jobs.commandline.usage_error import SpecError
from jobs.watching.command import token_of
from jobs.watching.prometheus import exposition
from tests.unit.watching.watched import look_at, put_run, put_sweep, run_snapshot, sweep_snapshot

ROOT = Path(__file__).parents[3]


def figures(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_a_run_has_the_figures_that_its_driver_told() -> None:
    store = MemoryStore()
    put_run(store)
    found = figures(exposition(run_snapshot(store)))
    assert found['ray_longhaul_step{run="r"}'] == 35
    assert found['ray_longhaul_steps_wanted{run="r"}'] == 40
    assert found['ray_longhaul_loss{run="r"}'] == 1.5
    stages = {name: value for name, value in found.items() if name.startswith("ray_longhaul_stage")}
    assert sum(stages.values()) == 1


def test_nobody_waits_for_data_while_none_trains() -> None:
    found = []
    for stage in ("training", "waiting"):
        store = MemoryStore()
        put_run(store, stage=stage, data_wait_share=0.43)
        found.append(figures(exposition(run_snapshot(store)))['ray_longhaul_data_wait_ratio{run="r"}'])
    assert found == [0.43, 0.0]


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), "1 } evil 7", True, None, ["x"]], ids=str)
def test_what_is_no_finite_number_is_left_out(loss: object) -> None:
    store = MemoryStore()
    put_run(store)
    told = run_snapshot(store)
    status = {**(told.status.value or {}), "loss": loss}
    text = exposition(
        type(told)(kind="run", name="r", store="s", status=look_at(status), records=told.records)
    )
    assert "ray_longhaul_loss" not in text
    assert "ray_longhaul_step{" in text


def test_a_name_forges_no_line() -> None:
    store = MemoryStore()
    put_run(store)
    told = run_snapshot(store)
    name = 'r"} 1\nevil{a="\\'
    text = exposition(type(told)(kind="run", name=name, store="s", status=told.status, records=told.records))
    assert all(line.startswith(("#", "ray_longhaul_")) for line in text.splitlines())


def test_a_sweep_and_a_store_that_has_not_answered_have_none() -> None:
    store = MemoryStore()
    put_sweep(store)
    assert exposition(sweep_snapshot(store)) == ""
    put_run(store)
    told = run_snapshot(store)
    assert (
        exposition(type(told)(kind="run", name="r", store="s", status=look_at(None), records=told.records))
        == ""
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text("a-token-of-enough-letters\n", encoding="utf-8")
    return path


def test_the_token_is_read_from_a_file_that_is_its_owners_alone(file: Path) -> None:
    assert token_of(file, {"LONGHAUL_WATCH_TOKEN": "another"}) == "a-token-of-enough-letters"
    assert token_of(None, {"LONGHAUL_WATCH_TOKEN": "another"}) == "another"
    assert token_of(None, {}) is None


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_token_that_others_may_read_or_write_is_refused(mode: int, file: Path) -> None:
    file.chmod(mode)
    with pytest.raises(SpecError, match=rf"--token-file: .* has mode {mode:04o} .* expected 0600"):
        token_of(file, {})


def test_the_scrape_configuration_of_the_docs_sends_a_token_from_a_file() -> None:
    found = read_yaml(ROOT / "docs/prometheus.yaml", "Prometheus' configuration")
    (job,) = found["scrape_configs"]
    assert job["metrics_path"] == "/metrics"
    assert job["authorization"] == {"type": "Bearer", "credentials_file": "/etc/prometheus/longhaul-token"}
