"""``longhaul init``: what it writes can be read, placed and held by the machines that it was written for."""

import sys
from pathlib import Path

import pytest

from cluster.inventory import Inventory, WorkerGroup
from jobs.cli.__main__ import main
from jobs.first_spec.choice import Chosen, Compared, NothingFits, choose_run, choose_sweep, largest
from jobs.first_spec.spec_text import name_of, run_text, sweep_text
from jobs.spec_schema.run_spec import RunSpec
from jobs.spec_schema.sweep_spec import SweepSpec
from jobs.sweeps.grid import expand
from jobs.sweeps.plan import plan_all
from tests.conftest import Golden
from tests.unit.builders import GB, group, inventory
from tests.unit.commands.test_command_line import HEAVY, loaded, run

CLUSTER = """
max_workers: 4
available_node_types:
  nvidia:
    max_workers: 2
    resources: {CPU: 96, GPU: 8}
    labels: {longhaul.group: nvidia, longhaul.vendor: nvidia, longhaul.device: H100-SXM}
  amd:
    max_workers: 1
    resources: {CPU: 96, GPU: 8}
    labels: {longhaul.group: amd, longhaul.vendor: amd, longhaul.device: MI300X}
"""
ODD = [
    group(devices=(1,), memory_bytes=GB),
    group(devices=(1,), memory_bytes=None),
    group(devices=(3,), memory_bytes=2 * GB),
    group(devices=(256,), memory_bytes=1024 * GB),
    group(devices=(1, 5, 2), memory_bytes=8 * GB),
    group("sim", (2, 2), vendor="amd", device="MI300X", memory_bytes=4 * GB, simulated=True),
    group("a", (1,), vendor="nvidia", device="NVIDIA A100-SXM4-40GB"),
    group("a", (7,), vendor="nvidia", device="H100-SXM"),
    group("a", (8,) * 1000, vendor="amd", device="MI300X"),
    group("a", (8,), vendor="amd", device=None),
    group("on", (2,), vendor="nvidia", device="Some Card 9000"),
    group("1e3", (2,), vendor="nvidia", device="L40S"),
    group("a.b", (2,), vendor="cpu"),
    group("a", (4,), vendor="nvidia", device="Tesla V100-SXM2-16GB"),
]
odd = pytest.mark.parametrize("one", ODD, ids=range(len(ODD)))


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def loaded_run(chosen: Chosen) -> RunSpec:
    Path("x.yaml").write_text(run_text(chosen, "trial"), encoding="utf-8")
    return RunSpec.load(Path("x.yaml"))


@odd
def test_a_training_for_odd_machines_can_be_placed_there_and_fits(one: WorkerGroup) -> None:
    there = inventory(one)
    chosen = choose_run(there, one)
    assert isinstance(chosen, Chosen)
    assert chosen.fit.is_within
    spec = loaded_run(chosen)
    assert spec.group == (one.name,)
    assert spec.recipe() == chosen.recipe
    assert spec.num_steps(spec.data.samples) == 40


@odd
def test_each_cell_of_a_comparison_for_odd_machines_is_placed_and_fits(one: WorkerGroup) -> None:
    there = inventory(one)
    compared = choose_sweep(there, [one])
    assert isinstance(compared, Compared)
    Path("x.yaml").write_text(sweep_text(compared, "trial"), encoding="utf-8")
    spec = SweepSpec.load(Path("x.yaml"))
    plans = plan_all(expand(spec, []), there, spec.limits)
    assert len(plans) == len(compared.strategies) * len(compared.world_sizes)
    assert [plan.refused for plan in plans if plan.refused] == []
    assert {plan.recipe.strategy for plan in plans} == {*compared.strategies}


def test_a_comparison_of_groups_fits_the_smallest_of_them() -> None:
    small = group("small", (2,), vendor="nvidia", device="A100 40GB")
    large = group("large", (8, 8), vendor="amd", device="MI300X")
    compared = choose_sweep(inventory(large, small), [large, small])
    assert isinstance(compared, Compared)
    assert max(compared.world_sizes) <= 2
    assert compared.fit.limit_bytes == 40 * 2**30


def test_where_nothing_fits_that_is_said_with_both_figures() -> None:
    tiny = group(memory_bytes=20_000_000)
    for found in (choose_run(inventory(tiny), tiny), choose_sweep(inventory(tiny), [tiny])):
        assert isinstance(found, NothingFits)
        assert "GB per worker, and 0.02 GB are there" in found.reason or "0.01 GB are there" in found.reason


def test_the_group_with_most_accelerators_is_taken_and_one_without_devices_never() -> None:
    cores, few = group("cores", (64,)), group("few", (2,), vendor="amd")
    assert largest(inventory(cores, few)) == few
    assert largest(inventory(group("none", ()), cores)) == cores
    assert largest(Inventory(groups=(), source="nothing")) is None


@pytest.mark.parametrize(
    ("file", "name"),
    [("run.yaml", "first-run"), ("my run!.yaml", "my-run"), ("..yaml", "first-run"), ("é.yaml", "first-run"),
     ("-x-.yaml", "x"), ("a" * 200, "a" * 64)],
)  # fmt: skip
def test_what_a_file_describes_is_called_like_the_file(file: str, name: str) -> None:
    assert name_of(Path(file), "run") == name


@pytest.mark.parametrize(("kind", "flags"), [("run", []), ("sweep", []), ("run", ["--group", "amd"])])
def test_a_spec_for_a_cluster_file_is_what_was_reviewed(
    kind: str, flags: list[str], capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    Path("cluster.yaml").write_text(CLUSTER, encoding="utf-8")
    assert main(["init", "--kind", kind, "--cluster", "cluster.yaml", *flags]) == 0
    written = Path(f"{kind}.yaml").read_text(encoding="utf-8")
    golden(f"init_{'_'.join([kind, *flags[1:]])}.txt", capsys.readouterr().out + written)
    command = {"run": "train", "sweep": "sweep"}[kind]
    assert main([command, f"{kind}.yaml", "--cluster", "cluster.yaml", "--dry-run"]) == 0


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen-3-32b"])
def test_a_model_that_is_named_is_planned_for(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("cluster.yaml").write_text(CLUSTER, encoding="utf-8")
    assert main(["init", "--model", model, "--cluster", "cluster.yaml", "--group", "amd"]) == 0
    assert RunSpec.load(Path("run.yaml")).model.name == model


@pytest.mark.parametrize("made", ["file", "link", "folder"])
def test_what_is_there_is_never_touched(made: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("run.yaml")
    match made:
        case "file":
            path.write_text("mine", encoding="utf-8")
        case "link":
            path.symlink_to("nowhere")
        case _:
            path.mkdir()
    assert main(["init"]) == 2
    assert "run.yaml: exists and is left as it is" in capsys.readouterr().err
    assert path.is_symlink() or path.is_dir() or path.read_text(encoding="utf-8") == "mine"
    assert not Path("nowhere").exists()


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (["--model", "lama-tiny"], 2, "did you mean 'llama-tiny'?"),
        (["--group", "locl"], 2, "did you mean 'local'?"),
        (["--cluster", "none.yaml"], 2, "none.yaml: can't be read"),
        (["none/run.yaml"], 1, "can't be written (No such file or directory)"),
        (["--model", "llama-3.3-70b"], 1, "nothing fits on group 'local'"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(
    flags: list[str], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", *flags]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err
    assert len(printed.err.splitlines()) == 1
    assert [*tmp_path.iterdir()] == []


def test_init_on_this_machine_loads_neither_torch_nor_ray() -> None:
    done = run(sys.executable, "-X", "importtime", "-m", "jobs.cli", "init")
    assert done.returncode == 0
    assert loaded(done.stderr) & HEAVY == set()
    assert Path("run.yaml").exists()
