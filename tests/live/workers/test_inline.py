"""The same core without Ray: in one process, and on the ranks that ``torchrun`` starts."""

import shutil
import sys
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from jobs.launch.torchrun import command_again, name_flag
from tests.live.command_line import QUICK, files, rows, run, sweep_command, write_spec

BOTH_SIZES = QUICK.replace("world_size: [1]", "world_size: [1, 2]").replace("[ddp, fsdp]", "[ddp, zero2]")


def test_inline_measures_the_cells_of_one_device_and_goes_on_after_a_failure(tmp_path: Path) -> None:
    spec = QUICK + "include: [{model: llama-mini, strategy: ddp}]\n"
    tight = "limits: {memory_gb_per_worker: 0.2, try_anyway: true}\n"
    spec = spec.replace("limits: {schedule_timeout_s: 60, cell_timeout_s: 120}\n", tight)
    store = tmp_path / "store"

    done = run(sweep_command(write_spec(tmp_path, spec), store, "--executor", "inline"))

    assert done.returncode == 1, done.stdout + done.stderr
    found = {(row["model"], row["strategy"]): row["status"] for row in rows(store)}
    assert found == {
        ("llama-tiny", "ddp"): "ok",
        ("llama-tiny", "fsdp"): "ok",
        ("llama-mini", "ddp"): "oom",
    }


def test_torchrun_measures_the_cells_of_its_world_size_and_inline_the_rest(tmp_path: Path) -> None:
    text = BOTH_SIZES.replace("steps: 4", "steps: 4, profile_steps: 1")
    spec, store = write_spec(tmp_path, text), tmp_path / "store"

    two = run([*torchrun(2), *sweep_command(spec, store)[1:]])
    sizes_after_torchrun = {row["world_size"] for row in rows(store)}
    one = run(sweep_command(spec, store, "--executor", "inline"))

    assert (two.returncode, one.returncode) == (0, 0), two.stdout + two.stderr + one.stdout + one.stderr
    assert sizes_after_torchrun == {2}
    assert two.stdout.count("results: ") == 1, "one rank speaks"
    found = rows(store)
    assert sorted((row["strategy"], row["world_size"]) for row in found) == [
        ("ddp", 1),
        ("ddp", 2),
        ("zero2", 1),
        ("zero2", 2),
    ]
    assert all(row["status"] == "ok" for row in found)
    assert all(len(row["per_rank"]["node"]) == row["world_size"] for row in found)
    traces = sorted(name.rpartition("/")[2] for name in files(store) if "/trace-" in name)
    assert traces == sorted(row["profile"]["trace"] for row in found)
    assert "USDT" not in one.stdout + one.stderr + two.stdout + two.stderr, "the profiler chatters"


def test_a_loss_that_every_rank_sees_ends_no_torchrun(tmp_path: Path) -> None:
    spec, store = write_spec(tmp_path, BOTH_SIZES), tmp_path / "store"
    # One strategy: to load another one's library takes longer than the rest.
    flags = ("--set", "optimizer.lr=1e30", "--set", "axes.strategy=ddp")

    done = run([*torchrun(2), *sweep_command(spec, store, *flags)[1:]])

    assert done.returncode == 1
    assert [row["status"] for row in rows(store)] == ["invalid_loss"]
    assert "Traceback" not in done.stdout


@pytest.mark.soak
def test_ranks_that_were_given_one_key_find_out_who_has_another(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, BOTH_SIZES)
    keys = {"same": "the same on all", "other": "of $RANK alone"}
    done = {
        name: run([*torchrun(2), *_with_key(key), *sweep_command(spec, tmp_path / name)])
        for name, key in keys.items()
    }
    assert done["same"].returncode == 0, done["same"].stdout + done["same"].stderr
    assert [row["status"] for row in rows(tmp_path / "same")] == ["ok", "ok"]
    assert done["other"].returncode == 1
    assert "somebody else writes to the rendezvous at " in done["other"].stderr
    assert rows(tmp_path / "other") == []


def _with_key(key: str) -> list[str]:
    """As a launcher of the user's gives it to each rank."""
    return ["--no-python", "sh", "-c", f'LONGHAUL_RUN_KEY="{key}" exec "$@"', "sh"]


def torchrun(num_ranks: int) -> list[str]:
    found = shutil.which("torchrun", path=str(Path(sys.executable).parent))
    assert found is not None, "there is no `torchrun` beside this Python"
    return [found, "--standalone", f"--nproc_per_node={num_ranks}"]


@pytest.mark.parametrize("local_world_size", ["2", "4"])
def test_torchrun_understands_the_command_that_messages_advise(
    local_world_size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local_world_size)
    words = ["train", "spec.yaml", "--store", "s", "--run", "x", "--no-retry", "--set", "a=b", "--fresh"]
    torchrun, *flags = command_again(words)
    parsed = get_args_parser().parse_args(flags)
    assert torchrun == "torchrun"
    assert (parsed.module, parsed.training_script, parsed.training_script_args) == (True, "jobs.cli", words)
    assert name_flag().endswith("-m -- jobs.cli")
    assert " -m -- jobs.cli train" in " ".join([torchrun, *flags])


def test_torchrun_takes_our_flag_for_its_own_without_the_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    """Should this fail with a later torch, messages need no ``--`` any more."""
    with pytest.raises(SystemExit):
        get_args_parser().parse_args(["--standalone", "-m", "jobs.cli", "train", "spec.yaml", "--run", "x"])
    assert "ambiguous option: --run" in capsys.readouterr().err
