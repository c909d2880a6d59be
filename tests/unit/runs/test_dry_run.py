"""``train --dry-run``: the plan of a start, which starts and leaves nothing."""

import sys
from pathlib import Path

import pytest

from checkpointing.generations.repository import Repository
from checkpointing.log.history import Commit, Generation
from checkpointing.stores.local import LocalStore
from jobs.cli.__main__ import main
from tests.conftest import Golden
from tests.unit.commands.test_command_line import HEAVY, loaded, run
from tests.unit.older_store import files, unpack
from tests.unit.printed import checked

CLUSTER = """
max_workers: 4
available_node_types:
  nvidia:
    max_workers: 2
    resources: {CPU: 96, GPU: 8}
    labels: {longhaul.group: nvidia, longhaul.vendor: nvidia, longhaul.device: H100-SXM}
"""
AMD = """
  amd:
    max_workers: 4
    resources: {CPU: 96, GPU: 8}
    labels: {longhaul.group: amd, longhaul.vendor: amd, longhaul.device: MI300X}
"""
LARGE = """
name: large
model: llama-3.1-8b
group: nvidia
strategy: fsdp
world_size: {min: 8, max: 16}
precision: bf16
activation_checkpointing: full
cross_entropy: chunked
seq_len: 4096
steps: 1000
store: saves
data: {kind: synthetic, samples: 100000}
checkpoint: {every_s: 600, local: {dir: /nvme/run}, retention: {last: 3, every_s: 86400}}
on_finish: {export: models/large}
"""
SMALL = "name: small\nmodel: llama-tiny\nsteps: 40\nstore: results\n"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_ADDRESS", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    Path("cluster.yaml").write_text(CLUSTER, encoding="utf-8")
    Path("large.yaml").write_text(LARGE, encoding="utf-8")
    Path("small.yaml").write_text(SMALL, encoding="utf-8")


def large(*flags: str) -> int:
    return main(["train", "large.yaml", "--cluster", "cluster.yaml", "--dry-run", *flags])


def saved(store: Path, run_name: str, *steps: int) -> None:
    repository = Repository(LocalStore(store), run_name)
    term = repository.take_over("somebody")
    for number, step in enumerate(steps, start=1):
        one = Generation(
            name=f"{step:012d}-t{term}-aaaa.{number}", step=step, term=term, number=number, committed_s=0.0,
            num_bytes=1, manifest_digest="0" * 64, is_verified=True,
        )  # fmt: skip
        repository.append(Commit(generation=one), term=term)


def test_the_plan_is_what_was_reviewed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    before = sorted(tmp_path.iterdir())
    assert large() == 0
    golden("train_dry_run.txt", capsys.readouterr().out.replace(str(tmp_path), "FOLDER"))
    assert sorted(tmp_path.iterdir()) == before


def test_what_saves_may_take_of_each_nodes_disk_stands_beside_what_they_take(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert large("--set", "checkpoint.local.max_bytes=200000000000") == 0
    assert "and on each node in /nvme/run: 144.54 GB, of at most 200.00 GB" in capsys.readouterr().out


def test_of_several_groups_each_has_its_place_and_the_first_that_has_one_is_named(
    capsys: pytest.CaptureFixture[str], golden: Golden, tmp_path: Path
) -> None:
    Path("cluster.yaml").write_text(CLUSTER + AMD, encoding="utf-8")
    turns = ("--set", "group=[nvidia, amd]", "--set", "world_size=12")
    assert large(*turns, "--set", "spread=true") == 0
    golden("train_dry_run_turns.txt", capsys.readouterr().out.replace(str(tmp_path), "FOLDER"))
    for sizes, first in (("12", "nvidia"), ("24", "amd"), ("48", "nvidia")):
        assert large(*turns, "--set", f"world_size={sizes}", "--json") == (1 if sizes == "48" else 0)
        found = checked("train_dry_run", capsys.readouterr().out)
        assert (found["group"], [size["group"] for size in found["sizes"]]) == (first, ["nvidia", "amd"])


def test_a_group_that_is_not_there_is_named_while_another_one_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert large("--set", "group=[nvida, nvidia]") == 0
    said = capsys.readouterr().err
    assert "has no group 'nvida' (nvidia); did you mean 'nvidia'?; a start goes on without" in said


def test_it_starts_no_ray_and_loads_no_torch_also_under_keep() -> None:
    for more in ([], ["--keep"]):
        words = ["train", "small.yaml", "--dry-run", "--json", *more]
        done = run(sys.executable, "-X", "importtime", "-m", "jobs.cli", *words)
        assert done.returncode == 0, done.stderr[-500:]
        assert loaded(done.stderr) & HEAVY == set()
        assert checked("train_dry_run", done.stdout)["begins_at_step"] == 0
    assert not Path("results").exists()


def test_it_says_from_which_checkpoint_the_run_would_go_on_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path / "results", "small", 10, 20)
    before = files(tmp_path / "results")
    for flags, step in (([], 20), (["--resume", "step:10"], 10), (["--fresh"], 0)):
        assert main(["train", "small.yaml", "--dry-run", "--json", *flags]) == 0
        assert checked("train_dry_run", capsys.readouterr().out)["begins_at_step"] == step
    assert files(tmp_path / "results") == before


def test_a_finished_run_has_nothing_to_do_until_it_gets_more_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = unpack(tmp_path / "older")
    monkeypatch.chdir(folder)
    before = files(folder)
    assert main(["train", "whole.yaml", "--store", "results", "--dry-run"]) == 0
    assert "not at all: it is finished at step 80" in capsys.readouterr().out
    assert main(["train", "whole.yaml", "--store", "results", "--dry-run", "--set", "steps=90"]) == 0
    assert "after step 80, from " in capsys.readouterr().out
    assert files(folder) == before


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (["--set", "world_size=24"], 1, "none: nvidia has 16 devices on 2 nodes, 24 were asked for"),
        (["--set", "model=llama-3.3-70b", "--set", "world_size=8"], 3, "it will not fit"),
        (["--set", "mode=benchmark"], 0, "nothing: mode is benchmark"),
    ],
)
def test_what_can_not_go_well_is_said(
    flags: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert large(*flags) == code
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--set", "group=nvida"], "did you mean 'nvidia'?"),
        (["--set", "data={kind: tokens, path: nowhere}"], "nowhere"),
        (["--resume", "step:7"], "'step:7' is none of its generations"),
        (["--resume", "elsewhere/runs/x"], "there is no run 'x'"),
        (["--store", "ftp://x"], "ftp:// is no kind of store"),
    ],
)
def test_what_a_start_refuses_a_dry_run_refuses_too(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert large(*flags) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.out == ""
    assert not Path("saves").exists()


@pytest.mark.parametrize(
    ("model", "attention", "kernel", "group", "code"),
    [
        ("mistral-tiny", "per_document, end_id: 2", "flash", "nvidia", 2),
        ("mistral-tiny", "per_document, end_id: 2", "efficient", "nvidia", 0),
        ("mistral-tiny", "per_document, end_id: 2", "flex", "nvidia", 0),
        ("mistral-tiny", "causal", "flash", "nvidia", 0),
        ("mistral-tiny", "per_document, end_id: 2", "flash", "local", 0),
        ("llama-tiny", "per_document, end_id: 2", "flash", "nvidia", 0),
    ],
)
def test_flash_with_a_mask_is_refused_where_no_kernel_takes_it(
    model: str, attention: str, kernel: str, group: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    LocalStore(Path("tokens")).put("train.bin", bytes(2 * 100_000))
    data = f"data={{kind: tokens, path: tokens/train.bin, attention: {attention}}}"
    given = [f"--set={data}", f"--set=attention={kernel}", f"--set=group={group}", f"--set=model={model}"]
    where = ["--cluster", "cluster.yaml"] if group == "nvidia" else []
    assert main(["train", "small.yaml", "--dry-run", *where, *given]) == code
    assert ("attention: flash takes no mask on a device" in capsys.readouterr().err) == (code == 2)


def test_the_mask_of_documents_that_are_kept_apart_is_in_the_forecast(
    capsys: pytest.CaptureFixture[str],
) -> None:
    LocalStore(Path("tokens")).put("train.bin", bytes(2 * 2_000_000))
    found = []
    for attention in ("causal", "per_document, end_id: 2"):
        data = f"data={{kind: tokens, path: tokens/train.bin, attention: {attention}}}"
        given = [f"--set={data}", "--set=seq_len=512", "--set=micro_batch=32", "--json"]
        assert main(["train", "small.yaml", "--dry-run", *given]) in (0, 3)
        found.append(checked("train_dry_run", capsys.readouterr().out)["sizes"][0])
    causal, apart = (one["predicted_memory_bytes"] for one in found)
    # The heap of a CPU holds a tenth more than is live.
    assert apart - causal == pytest.approx(1.1 * 4 * 32 * 512**2, rel=1e-6)


def test_flash_and_flex_on_a_device_need_no_mask_for_documents(capsys: pytest.CaptureFixture[str]) -> None:
    LocalStore(Path("tokens")).put("train.bin", bytes(2 * 2_000_000))
    found = {}
    for kernel in ("flash", "efficient", "flex"):
        for attention in ("causal", "per_document, end_id: 2"):
            data = f"data={{kind: tokens, path: tokens/train.bin, attention: {attention}}}"
            given = [f"--set={data}", "--set=precision=bf16", "--set=group=nvidia", "--cluster=cluster.yaml"]
            command = ["train", "small.yaml", "--dry-run", "--json", f"--set=attention={kernel}", *given]
            assert main(command) in (0, 3)
            plan = checked("train_dry_run", capsys.readouterr().out)
            found[kernel, attention[:6]] = plan["sizes"][0]["predicted_memory_bytes"]
    assert found["flash", "per_do"] == found["flash", "causal"]
    assert found["flex", "per_do"] == found["flex", "causal"]
    assert found["efficient", "per_do"] > found["efficient", "causal"]
