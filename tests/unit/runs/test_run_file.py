"""A run's file: what is right becomes a recipe and a way of saving, what is wrong one line that helps."""

from pathlib import Path

import pytest

from checkpointing.generations.retention import Retention
from checkpointing.saving.cadence import Cadence
from jobs.commandline.usage_error import SpecError
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.task.spikes import SpikeBound
from jobs.training.task.task import Saving
from tests.conftest import Golden

SHIPPED = sorted(Path(__file__).parents[3].glob("jobs/specs/runs/*.yaml"))
GOOD = "name: trial\nmodel: llama-tiny\nsteps: 40\n"
TWO_PLACES = "data: {{kind: tokens, path: t, local: {{dir: {}}}}}\ncheckpoint: {{local: {{dir: {}}}}}\n"

# What a person gets wrong -> the file's text. The messages are in golden/run_spec_errors.txt.
BAD_FILES = {
    "an empty file": "",
    "neither steps nor epochs": "name: trial\nmodel: llama-tiny\n",
    "both steps and epochs": GOOD + "epochs: 2\n",
    "0 epochs": "name: trial\nmodel: llama-tiny\nepochs: 0\n",
    "a schedule that nobody knows": GOOD + "optimizer: {schedule: cosin}\n",
    "an end of what never falls": GOOD + "optimizer: {decay_steps: 30}\n",
    "a schedule that ends in its warm-up": GOOD + "optimizer: {schedule: linear, decay_steps: 10}\n",
    "a lowest rate above the highest": GOOD + "optimizer: {schedule: linear, min_lr_ratio: 1.1}\n",
    "a spike that is none": GOOD + "guard: {spike_ratio: 1}\n",
    "checks by steps and by time": GOOD + "guard: {check_every_steps: 9, check_every_s: 600}\n",
    "weights of no name": GOOD + "weights: ''\n",
    "neither name nor model": "steps: 40\n",
    "a list of models": "name: trial\nmodel: [llama-tiny]\nsteps: 40\n",
    "an unknown model": "name: trial\nmodel: llama-tny\nsteps: 40\n",
    "an unknown strategy": GOOD + "strategy: zero4\n",
    "fp8 as a precision": GOOD + "precision: fp8\n",
    "no such fp8": GOOD + "precision: bf16\nfp8: e4m3\n",
    "fp8 in fp32": GOOD + "fp8: rowwise\n",
    "fp8 under DeepSpeed": GOOD + "precision: bf16\nfp8: tensorwise\nstrategy: zero2\n",
    "tokens that fp8 can't take": GOOD + "precision: bf16\nfp8: rowwise\nseq_len: 24\nmicro_batch: 3\n",
    "compiled blocks under ZeRO-3": GOOD + "compile: block\nstrategy: zero3\n",
    "an unknown mode": GOOD + "mode: trian\n",
    "an unknown kind of data": GOOD + "data: {kind: text}\n",
    "a name that climbs": "name: ../x\nmodel: llama-tiny\nsteps: 40\n",
    "a group's name with a space": GOOD + "group: my group\n",
    "0 steps": "name: trial\nmodel: llama-tiny\nsteps: 0\n",
    "half a step": "name: trial\nmodel: llama-tiny\nsteps: 0.5\n",
    "a world of nobody": GOOD + "world_size: 0\n",
    "an epoch without samples": GOOD + "data: {samples: 0}\n",
    "a negative seed": GOOD + "seed: -1\n",
    "no store": GOOD + "store: ''\n",
    "an unknown key of saving": GOOD + "checkpoint: {every_stps: 5}\n",
    "an unknown key of the disks": GOOD + "checkpoint: {local: {path: /disk}}\n",
    "an unknown key of keeping": GOOD + "checkpoint: {retention: {lst: 3}}\n",
    "an unknown key of evaluating": GOOD + "eval: {every: 5}\n",
    "saving every 0 seconds": GOOD + "checkpoint: {every_s: 0}\n",
    "saving every 0 steps": GOOD + "checkpoint: {every_steps: 0}\n",
    "saving never in words": GOOD + "checkpoint: {every_s: never}\n",
    "no such way to be busy": GOOD + "checkpoint: {on_busy: waits}\n",
    "a deadline that never comes": GOOD + "checkpoint: {deadline_s: .inf}\n",
    "one generation on the disks": GOOD + "checkpoint: {local: {dir: /disk, keep: 1}}\n",
    "a folder that begins nowhere": GOOD + "checkpoint: {local: {dir: disk/run}}\n",
    "a folder of somebody else": GOOD + "data: {kind: tokens, path: t, local: {dir: ~nvme}}\n",
    "one place for tokens and saves": GOOD + TWO_PLACES.format("/nvme/x", "/nvme/y/../x/"),
    "saves where room is made for tokens": GOOD + TWO_PLACES.format("/nvme", "/nvme/longhaul-tokens-0/saves"),
    "tokens where room is made for saves": GOOD + TWO_PLACES.format("/nvme/runs/tokens", "/nvme"),
    "a folder of no name": GOOD + "checkpoint: {local: {dir: ''}}\n",
    "a negative share of the saves": GOOD + "checkpoint: {store: {every: -1}}\n",
    "the best in no direction": GOOD + "checkpoint: {retention: {mode: low}}\n",
    "a switch with a number": GOOD + "checkpoint: {retention: {epochs: 3}}\n",
    "a number instead of a section": GOOD + "checkpoint: 60\n",
    "a variable with a dash": GOOD + "environment: {NCCL-DEBUG: INFO}\n",
    "a list as a secret": GOOD + "environment: {HF_TOKEN: [s3cret]}\n",
    "a sequence longer than the model's": GOOD + "seq_len: 100000\n",
    "held-out samples that can't be divided": GOOD
    + "world_size: 3\nmicro_batch: 2\neval: {every_steps: 5, samples: 8}\n",
    "neighbours that share nothing": GOOD + "world_size: 4\nshard_within: 2\n",
    "neighbours that do not divide": GOOD + "strategy: fsdp\nworld_size: 6\nshard_within: 4\n",
    "no neighbours at all": GOOD + "strategy: fsdp\nshard_within: 0\n",
    "offloading without slices": GOOD + "strategy: zero2\noffload: optimizer\n",
    "an unknown thing to offload": GOOD + "strategy: zero3\noffload: params\n",
    "a kernel that does not repeat": GOOD + "deterministic: true\nattention: cudnn\n",
    "a group twice": GOOD + "group: [nvidia, amd, nvidia]\n",
    "a list of no group": GOOD + "group: []\n",
    "a group without a name in a list": GOOD + "group: [nvidia, 5]\n",
    "two mistakes": GOOD + "strategy: dpp\ncheckpoint: {on_busy: waits}\n",
}

BAD_SETTINGS = (
    "steps",
    "steps=many",
    "steps=",
    "checkpoint.every_stps=5",
    "checkpoint.every_s.more=5",
    "checkpoint.retention.mode=low",
    "eval={every_steps: 5, samples: 3}",
)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``run.yaml`` in the current directory, so that messages are the same everywhere."""
    monkeypatch.chdir(tmp_path)
    return Path("run.yaml")


def load(path: Path, text: str, *settings: str) -> RunSpec:
    path.write_text(text)
    return RunSpec.load(path, settings)


def problems(path: Path, text: str, *settings: str) -> list[str]:
    with pytest.raises(SpecError) as refused:
        load(path, text, *settings)
    assert str(refused.value) == "\n".join(refused.value.problems)
    return refused.value.problems


def test_everything_that_can_be_wrong_has_a_line_that_helps(path: Path, golden: Golden) -> None:
    lines = []
    for mistake, text in BAD_FILES.items():
        lines += [f"{mistake}:", *(f"  {problem}" for problem in problems(path, text))]
    for setting in BAD_SETTINGS:
        found = problems(path, GOOD + "micro_batch: 2\n", setting)
        lines += [f"--set {setting}", *(f"  {problem}" for problem in found)]
    golden("run_spec_errors.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("mistake", BAD_FILES)
def test_a_mistake_is_one_line_that_begins_with_its_place(path: Path, mistake: str) -> None:
    found = problems(path, BAD_FILES[mistake])
    assert len(found) == (2 if mistake in ("two mistakes", "neither name nor model") else 1)
    assert all(problem.startswith("run.yaml: ") and "\n" not in problem for problem in found)
    assert not any(word in problem for problem in found for word in ("pydantic", "Error", "s3cret"))


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("stratgy: ddp", "strategy"),
        ("models: [llama-tiny]", "model"),
        ("checkpoints: {}", "checkpoint"),
        ("checkpoint: {every_stps: 5}", "every_steps"),
        ("checkpoint: {retention: {lst: 3}}", "last"),
        ("strategy: zero4", "zero3"),
        ("mode: trian", "train"),
        ("checkpoint: {on_busy: waits}", "wait"),
    ],
)
def test_the_nearest_right_word_is_named(path: Path, line: str, word: str) -> None:
    [found] = problems(path, GOOD + line + "\n")
    assert found.endswith(f"did you mean '{word}'?")


def test_a_file_that_is_not_there_is_a_runs_file_that_is_not_there(path: Path) -> None:
    with pytest.raises(SpecError, match=r"^run.yaml: can't be read \(.*\); give the path of a run's YAML"):
        RunSpec.load(path)


def test_three_lines_are_a_run_that_saves_each_minute_to_the_store_alone(path: Path) -> None:
    assert load(path, GOOD).saving() == Saving(
        cadence=Cadence(every_s=60.0, disk_every=0, store_every=1, on_busy="skip"),
        retention=Retention(),
        disk=None,
        disk_keep=2,
        deadline_s=600.0,
    )


def test_each_setting_of_saving_reaches_its_place(path: Path) -> None:
    text = """
checkpoint:
  every_s: 30
  every_steps: 5
  on_busy: wait
  deadline_s: 9
  local: {dir: /disk, every: 2, keep: 3, max_bytes: 5_000_000}
  store: {every: 4}
  retention: {last: 1, epochs: false, best: 2, metric: loss, mode: max, every_steps: 100}
"""
    assert load(path, GOOD + text).saving() == Saving(
        cadence=Cadence(every_s=30.0, every_steps=5, disk_every=2, store_every=4, on_busy="wait"),
        retention=Retention(last=1, epochs=False, best=2, metric="loss", mode="max", every_steps=100),
        disk="/disk",
        disk_keep=3,
        disk_max_bytes=5_000_000,
        deadline_s=9.0,
    )


def test_a_folder_on_each_node_may_be_in_its_home_and_is_kept_as_it_was_written(path: Path) -> None:
    spec = load(path, GOOD + "checkpoint: {local: {dir: ~/run}}\ndata: {local: {dir: ~/tokens}}\n")
    assert (spec.checkpoint.saving().disk, spec.data.local.dir) == ("~/run", "~/tokens")


def test_a_measurement_saves_nothing(path: Path) -> None:
    assert load(path, GOOD + "mode: benchmark\n").saving() is None


def test_a_setting_wins_over_the_file(path: Path) -> None:
    spec = load(path, GOOD + "checkpoint: {every_steps: 5}\n", "checkpoint.every_steps=7", "seed=3")
    assert (spec.checkpoint.every_steps, spec.recipe().seed) == (7, 3)


def test_a_schedule_that_names_no_end_ends_with_the_run(path: Path) -> None:
    falling = GOOD + "optimizer: {schedule: cosine, min_lr_ratio: 0.1}\n"
    assert load(path, falling).recipe(num_steps=40).optimizer.decay_steps == 40
    assert load(path, falling, "optimizer.decay_steps=30").recipe(num_steps=40).optimizer.decay_steps == 30
    assert load(path, GOOD).recipe(num_steps=40).optimizer.decay_steps is None


@pytest.mark.parametrize(
    ("settings", "num_steps"),
    [(("epochs=1",), 12), (("epochs=3",), 37), (("epochs=3", "grad_accum=4"), 9), (("steps=5",), 5)],
)
def test_epochs_are_as_many_steps_as_they_have_whole_ones(
    path: Path, settings: tuple[str, ...], num_steps: int
) -> None:
    both = "name: trial\nmodel: llama-tiny\nworld_size: 2\nmicro_batch: 4\n"
    assert load(path, both, *settings).num_steps(100) == num_steps


def test_a_spike_is_looked_for_unless_nobody_wants_to(path: Path) -> None:
    assert load(path, GOOD).guard.bound() == SpikeBound()
    assert load(path, GOOD + "guard: {spike_ratio: 3}\n").guard.bound() == SpikeBound(ratio=3.0)
    assert load(path, GOOD + "guard: {spike_ratio: null}\n").guard.bound() is None


def test_held_out_samples_need_fit_only_where_somebody_evaluates(path: Path) -> None:
    odd = GOOD + "micro_batch: 2\neval: {samples: 3}\n"
    assert load(path, odd).eval.every_steps == 0
    [found] = problems(path, odd, "eval.every_steps=5")
    assert "expected a multiple of 2" in found


@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda shipped: shipped.name)
def test_every_shipped_run_is_one(shipped: Path) -> None:
    assert RunSpec.load(shipped).recipe().tokens_per_step > 0


def test_one_folder_for_tokens_and_saves_is_found_behind_links_and_homes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    disk = tmp_path / "disk"
    for tokens, saves in ((disk, tmp_path / "link"), ("~/link/new", disk / "new"), ("~/disk", f"{disk}//.")):
        [problem] = problems(path, GOOD + TWO_PLACES.format(tokens, saves))
        assert problem.startswith(
            f"run.yaml: data.local.dir: '{tokens}' and checkpoint.local.dir: '{saves}' are one"
        )


@pytest.mark.parametrize(
    ("tokens", "saves"),
    [("/nvme/tokens", "/nvme/saves"), ("/nvme", "/nvme/saves"), ("/nvme/tokens", "/nvme")],
)
def test_tokens_and_saves_may_share_a_disk(path: Path, tokens: str, saves: str) -> None:
    assert load(path, GOOD + TWO_PLACES.format(tokens, saves)).saving() is not None
