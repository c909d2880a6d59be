"""Every sweep that ships, planned on the cluster that ships: the plan that people read is a golden file."""

from pathlib import Path

import pytest

from jobs.cli.__main__ import main
from tests.conftest import Golden

ROOT = Path(__file__).parents[3]
SHIPPED = sorted((ROOT / "jobs" / "specs" / "sweeps").glob("*.yaml"))


@pytest.mark.parametrize("spec", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_sweep_can_be_planned(
    spec: Path, golden: Golden, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)

    code = main(["sweep", str(spec), "--cluster", "cluster.yaml", "--dry-run"])

    assert code == 0
    golden(f"plan-{spec.stem}.txt", capsys.readouterr().out)
