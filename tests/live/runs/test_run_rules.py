"""What ``longhaul train`` does with a run that is there already, or that is to leave nothing."""

import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from checkpointing.generations.repository import Repository
from checkpointing.log.history import Quarantine
from checkpointing.stores.local import LocalStore
from jobs.training.models.hugging_face import tensor_shapes
from jobs.training.task.presets import preset
from tests.conftest import strict_json
from tests.live.attempts import digests_of, newest_manifest
from tests.live.command_line import files, run, running, write_spec
from tests.live.forked_command import run_forked
from tests.live.runs.test_train import num_commits, train_command, wait_until

ALONE = """
name: r
model: llama-tiny
seq_len: 32
steps: 4
data: {samples: 64}
optimizer: {warmup_steps: 2}
checkpoint: {every_steps: 2, on_busy: wait}
"""
TOGETHER = ALONE.replace("steps: 4", "steps: 8\nworld_size: 2\nstrategy: fsdp")


def inline(spec: Path, store: Path, *settings: str) -> list[str]:
    return [*train_command(spec, store, "--executor", "inline"), *settings]


@pytest.mark.parametrize("executor", ["inline", pytest.param("ray", marks=pytest.mark.soak)])
def test_a_benchmark_leaves_nothing_anywhere(executor: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    spec = write_spec(tmp_path, ALONE + "mode: benchmark\nrecord: {wandb: {project: nobody}}\n")
    command = train_command(spec, store, "--executor", executor, "--json")
    done = run(command, HOME=str(tmp_path), WANDB_MODE="offline")
    assert done.returncode == 0, done.stderr
    assert strict_json(done.stdout)["problem"] is None
    assert "finished at step 4" in done.stderr
    assert files(tmp_path) == ["spec.yaml"]


def test_a_log_that_went_back_or_is_gone_costs_no_checkpoint_that_it_does_not_name(tmp_path: Path) -> None:
    spec, store = write_spec(tmp_path, ALONE.replace("steps: 4", "steps: 8")), tmp_path / "store"
    command = inline(spec, store, "--set", "checkpoint.local.dir=null")
    first = run_forked(command)
    assert first.returncode == 0, first.stderr
    log, gen = store / "runs/r/log", store / "runs/r/gen"
    saved = {path.name for path in gen.iterdir()}
    assert len(saved) == 4
    for record in sorted(log.iterdir())[-6:]:
        record.unlink()

    refused = run_forked(command)
    assert refused.returncode == 2, refused.stderr
    assert "newer records are gone: it does not name" in refused.stderr
    assert max(saved) in refused.stderr and "--resume NAME" in refused.stderr
    named = run_forked([*command, "--resume", max(saved)])
    assert named.returncode == 0, named.stderr
    assert f"{max(saved)} is whole and its commit was not in the log" in named.stdout + named.stderr

    for record in log.iterdir():
        record.unlink()
    begun = run_forked([*command, "--fresh"])
    assert begun.returncode == 0, begun.stderr
    assert "4 whole generations that the log does not name: kept" in begun.stdout + begun.stderr
    now = {path.name for path in gen.iterdir()}
    assert saved < now
    assert {name.split("-")[1] for name in now - saved} == {"t3"}


def test_another_training_under_the_same_name_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    spec, store, out = write_spec(tmp_path, ALONE), tmp_path / "store", tmp_path / "out"
    first = run_forked(inline(spec, store, "--set", f"on_finish.export={out}"))
    assert first.returncode == 0, first.stderr
    assert f"r: exported to {out}: 39 tensors" in first.stdout
    assert files(out) == ["config.json", "model.safetensors"]
    before = files(store)

    without_its_cluster = run(train_command(spec, store), RAY_ADDRESS="127.0.0.1:1")
    assert without_its_cluster.returncode == 0, without_its_cluster.stderr
    assert "r: finished at step 4, nothing to do" in without_its_cluster.stdout
    finished = run_forked(inline(spec, store, "--set", "seed=3"))
    longer = run_forked(
        inline(spec, store, "--set", "steps=6", "--set", "data.samples=32", "--set", "seed=3")
    )
    assert (finished.returncode, longer.returncode) == (2, 2)
    seed = "longhaul train: seed: the run r has 0, this spec 3; put it back (--set seed=0)"
    assert finished.stderr.splitlines()[0] == seed
    first_line, second_line, *_ = longer.stderr.splitlines()
    assert first_line.startswith("longhaul train: data.samples: the run r has 64, this spec 32; put it back")
    assert second_line == seed
    assert files(store) == before


def test_weights_that_do_not_fit_are_refused_before_anything_is_started(tmp_path: Path) -> None:
    spec, store = write_spec(tmp_path, ALONE), tmp_path / "store"
    done = run(inline(spec, store, "--set", f"weights={tmp_path / 'none'}"))
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"longhaul train: weights: {tmp_path / 'none'} is not there; expected a model's folder, on every node"
    ]
    assert num_commits(store) == 0


def test_a_loss_that_is_never_finite_ends_a_run_with_its_cause_on_the_last_line(tmp_path: Path) -> None:
    spec, store = write_spec(tmp_path, ALONE), tmp_path / "store"
    diverging = ("--set", "steps=60", "--set", "optimizer={lr: 1e30, warmup_steps: 1}", "--json")
    done = run_forked(inline(spec, store, *diverging))
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "longhaul train: given up, stepped back 3 times before: rank 0: the loss of step 2"
    )
    told = strict_json((store / "runs/r/status.json").read_bytes())
    assert told["stage"] == "given up"
    ended = [strict_json(path.read_bytes()) for path in sorted((store / "runs/r/attempts").glob("*.json"))]
    # Each time it went wrong on what came next; after the last one nobody goes on.
    assert [one["skips"] for one in ended] == [[[1, 2]], [[1, 3]], [[1, 4]], [[1, 4]]]


# Whoever reads one of three samples has a loss that is far too high; each step reads one.
SPIKES = """
import sys
from pathlib import Path
from jobs.cli.__main__ import main
from jobs.spec_schema.run_spec import RunSpec
from tests.live.workers.test_bad_loss import Curse, cursed

command, spec, *rest = sys.argv[1:]
with cursed(RunSpec.load(Path(spec)).recipe(), Curse(range(30, 33), 1000.0), num_samples=64):
    sys.exit(main([command, spec, *rest]))
"""


def test_a_loss_that_spikes_is_stepped_back_from_and_its_samples_left_out(tmp_path: Path) -> None:
    """It is known at the third step in a row, when two that were spoilt have been saved."""
    store = tmp_path / "store"
    spec = write_spec(tmp_path, ALONE.replace("every_steps: 2", "every_steps: 1, retention: {last: 20}"))
    _, _, _, *words = inline(spec, store, "--set", "steps=40")
    done = run([sys.executable, "-c", SPIKES, *words])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "r: attempt 1 failed: rank 0: the loss is " in done.stdout
    assert "; trying again in 0 s from step 30" in done.stdout
    repository = Repository(LocalStore(store), "r")
    view, told = repository.refresh(), [record.entry for record in repository.records()]
    spoilt = [one.name.partition("-")[0] for one in told if isinstance(one, Quarantine)]
    assert spoilt == ["000000000031", "000000000032"]
    assert (view.term, view.finished_step) == (2, 40)
    assert newest_manifest(store, "r").cut.state["position"] == 43
    note = strict_json(sorted((store / "runs/r/attempts").glob("*.json"))[-1].read_bytes())
    assert note["skips"] == [[30, 33]]


def test_a_supervisor_stands_by_while_another_driver_is_at_work_and_takes_up_the_run_when_it_dies(
    tmp_path: Path,
) -> None:
    """As one whose machine was restarted while the driver that it had started went on."""
    spec, store = write_spec(tmp_path, ALONE), tmp_path / "store"
    # So few samples are learnt by heart, and then a loss is soon a spike.
    long = ("--set", "steps=100000", "--set", "guard.spike_ratio=null")
    repository = Repository(LocalStore(store), "r")
    with running(inline(spec, store, *long)) as first:
        wait_until(lambda: num_commits(store) >= 2)
        told = tmp_path / "told.txt"
        with (
            told.open("w") as output,
            running(inline(spec, store, *long, "--keep"), output=output) as supervisor,
        ):
            wait_until(lambda: "this supervisor stands by" in told.read_text())
            assert (first.poll(), repository.refresh().term) == (None, 1)
            first.kill()
            wait_until(lambda: repository.refresh().term == 2)
            supervisor.terminate()
            assert supervisor.wait(120) == 0, told.read_text()
    assert "another driver is at work on it" in told.read_text()
    assert repository.refresh().stopped_step is not None


@pytest.mark.soak
def test_a_second_driver_leaves_the_first_alone_unless_it_is_to_take_over(tmp_path: Path) -> None:
    spec, store = write_spec(tmp_path, ALONE), tmp_path / "store"
    long = ("--set", "steps=100000")
    with running(inline(spec, store, *long)) as first:
        wait_until(lambda: num_commits(store) >= 2)
        second = run([*train_command(spec, store), *long])
        assert second.returncode == 2, second.stdout + second.stderr
        assert "longhaul train: r: another driver is at work on it, at step " in second.stderr
        assert "--take-over" in second.stderr
        assert Repository(LocalStore(store), "r").refresh().term == 1
        assert first.poll() is None
        with running(inline(spec, store, *long, "--take-over")) as heir:
            output, _ = first.communicate(timeout=120)
            assert first.returncode == 1
            assert "a later attempt has taken r over; this one ends itself (attempt 2 is that of " in output
            wait_until(lambda: Repository(LocalStore(store), "r").refresh().generations[-1].term == 2)
            heir.terminate()
            told, _ = heir.communicate(timeout=120)
    assert heir.returncode == 0, told


@pytest.mark.soak
def test_a_start_right_after_a_driver_was_killed_goes_on(tmp_path: Path) -> None:
    spec, store = write_spec(tmp_path, ALONE), tmp_path / "store"
    with running(inline(spec, store, "--set", "steps=100000")) as first:
        wait_until(lambda: num_commits(store) >= 2)
        first.kill()
        first.wait(timeout=30)
        step = Repository(LocalStore(store), "r").refresh().generations[-1].step
        heir = run(inline(spec, store, "--set", f"steps={step + 6}"))
    assert heir.returncode == 0, heir.stdout + heir.stderr


@pytest.mark.soak
def test_a_run_goes_on_under_ray_from_what_torchrun_left_and_the_other_way_to_the_bit(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, TOGETHER)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m"]

    def under_ray(store: str, *settings: str) -> None:
        done = run(train_command(spec, tmp_path / store, *settings))
        assert done.returncode == 0, done.stdout + done.stderr

    def under_torchrun(store: str, *settings: str) -> None:
        command = [*torchrun, *train_command(spec, tmp_path / store, *settings)[2:]]
        done = run(command)
        assert done.returncode == 0, done.stdout + done.stderr

    under_ray("ray")
    under_ray("ray-first", "--set", "steps=4")
    under_torchrun("ray-first")
    under_torchrun("torchrun-first", "--set", "steps=4")
    under_ray("torchrun-first")
    straight = digests_of(newest_manifest(tmp_path / "ray", "r"))
    assert digests_of(newest_manifest(tmp_path / "ray-first", "r")) == straight
    assert digests_of(newest_manifest(tmp_path / "torchrun-first", "r")) == straight


@pytest.mark.soak
def test_what_is_exported_of_one_run_is_what_another_begins_with(tmp_path: Path) -> None:
    spec, store, out = write_spec(tmp_path, ALONE), tmp_path / "store", tmp_path / "out"
    first = run(inline(spec, store))
    exported = run(
        [
            *(sys.executable, "-m", "jobs.cli", "checkpoints", "export", "latest"),
            *("--run", "r", "--store", str(store), "--to", str(out)),
        ]
    )
    heir = run(inline(spec, store, "--run", "heir", "--set", f"weights={out}", "--set", "optimizer.lr=1e-30"))
    assert (first.returncode, exported.returncode, heir.returncode) == (0, 0, 0), heir.stderr
    assert f"heir: begins with the weights in {out}" in heir.stdout
    again = run(
        [
            *(sys.executable, "-m", "jobs.cli", "checkpoints", "export", "latest"),
            *("--run", "heir", "--store", str(store), "--to", str(tmp_path / "again")),
        ]
    )
    assert again.returncode == 0, again.stderr
    one, other = (load_file(folder / "model.safetensors") for folder in (out, tmp_path / "again"))
    assert one.keys() == other.keys() == tensor_shapes(preset("llama-tiny")).keys()
    assert all((one[name] - other[name]).abs().max() < 1e-6 for name in one)
