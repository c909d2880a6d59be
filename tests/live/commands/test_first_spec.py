"""What ``longhaul init`` writes for this machine really runs here, and fits."""

import sys
from pathlib import Path

import pytest

from tests.live.command_line import rows, run


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_the_spec_that_init_writes_for_this_machine_runs_to_its_end(kind: str, tmp_path: Path) -> None:
    longhaul, spec, store = (
        (sys.executable, "-m", "jobs.cli"),
        str(tmp_path / "first.yaml"),
        tmp_path / "store",
    )
    written = run([*longhaul, "init", "--kind", kind, spec])
    assert written.returncode == 0, written.stderr

    if kind == "run":
        command = [*longhaul, "train", spec, "--store", str(store)]
    else:
        # One repeat of two strategies: the others are run by the tests of sweeps.
        flags = ["--set", "repeats=1", "--set", "axes.strategy=[ddp,zero2]", "--set", "axes.world_size=1"]
        command = [*longhaul, "sweep", spec, "--store", str(store), *flags]
    done = run(command)

    assert done.returncode == 0, done.stdout + done.stderr
    if kind == "run":
        assert "finished at step 40" in done.stdout
    else:
        assert [row["status"] for row in rows(store)] == ["ok", "ok"]
