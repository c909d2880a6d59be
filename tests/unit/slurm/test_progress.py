"""What a job compares before it queues itself again."""

from pathlib import Path

from checkpointing.stores.local import LocalStore
from jobs.slurm.progress import progress_of
from tests.unit.builders import measurement, record, run_of, sweep


def test_a_run_without_a_save_and_a_sweep_without_a_result_have_got_nowhere(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert progress_of(store, "train", "r") == progress_of(store, "train", "r") == "newest save: none"
    assert progress_of(store, "sweep", "s") == "results: 0"


def test_a_sweep_with_another_result_has_got_on(tmp_path: Path) -> None:
    store, spec = LocalStore(tmp_path), sweep()
    run = run_of(spec, 1)
    outcome = measurement(run.run_id, step_s=0.1)
    store.put(f"sweeps/{spec.name}/runs/{run.name}/result.json", record(spec, run, outcome).to_json())
    assert progress_of(store, "sweep", spec.name) == "results: 1"
