"""A sweep's file: what is right is understood, what is wrong gets one line that says what to do."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.commandline.usage_error import SpecError
from jobs.spec_schema.sweep_spec import SweepSpec
from jobs.sweeps.grid import expand
from tests.conftest import Golden

SHIPPED = sorted(Path(__file__).parents[3].glob("jobs/specs/sweeps/*.yaml"))
GOOD = "name: trial\nmodels: [llama-tiny]\n"

# What a person gets wrong -> the file's text. The messages are in golden/spec_errors.txt.
BAD_FILES = {
    "an empty file": "",
    "a list instead of a mapping": "- name: trial\n",
    "a word instead of a mapping": "smoke\n",
    "an unclosed bracket": "name: trial\nmodels: [llama-tiny\naxes: {}\n",
    "a tab": "name:\ttrial\n",
    "a control character": "name: \x01\n",
    "a key twice": GOOD + "axes: {world_size: 1}\naxes: {world_size: 2}\n",
    "a key that is a date": GOOD + "2026-01-01: x\n",
    "a key that is a number": GOOD + "3: x\n",
    "a value that holds itself": "name: &a [*a]\nmodels: [llama-tiny]\n",
    "no name": "models: [llama-tiny]\n",
    "no models": "name: trial\n",
    "an empty list of models": "name: trial\nmodels: []\n",
    "an unknown key": GOOD + "axis: {strategy: ddp}\n",
    "an unknown key below": GOOD + "measure: {step: 20}\n",
    "an unknown key in a list": GOOD + "include: [{strategi: ddp}]\n",
    "an unknown key of a group": GOOD + "overrides: {nvidia: {env: {}}}\n",
    "a section without anything": GOOD + "axes:\n",
    "a value instead of a section": GOOD + "limits: 5\n",
    "a section instead of a list": GOOD + "include: {strategy: ddp}\n",
    "an unknown strategy": GOOD + "axes: {strategy: [ddp, zero4]}\n",
    "an unknown strategy to exclude": GOOD + "exclude: [{strategy: fsdp2}]\n",
    "a mapping for a strategy": GOOD + "axes: {strategy: {zero: 3}}\n",
    "an unknown model": "name: trial\nmodels: [llama-3-8b]\n",
    "an unknown precision": GOOD + "axes: {precision: fp16}\n",
    "fp8 as a precision": GOOD + "axes: {precision: [bf16, fp8]}\n",
    "fp8 in fp32": GOOD + "axes: {strategy: [ddp, fsdp], precision: [fp32, bf16], fp8: rowwise}\n",
    "fp8 under DeepSpeed": GOOD + "axes: {strategy: [ddp, zero1], precision: bf16, fp8: [none, rowwise]}\n",
    "world size 0": GOOD + "axes: {world_size: [0, 1]}\n",
    "a fraction of a device": GOOD + "axes: {world_size: [0.5]}\n",
    "a world size in quotes": GOOD + "axes: {world_size: ['2']}\n",
    "a world size that is true": GOOD + "axes: {world_size: [true]}\n",
    "a sequence longer than the model's": GOOD + "axes: {seq_len: [64, 4096]}\n",
    "a value of an axis twice": GOOD + "axes: {world_size: [1, 2, 1]}\n",
    "a model twice": "name: trial\nmodels: [llama-tiny, llama-tiny]\n",
    "a name that climbs": "name: ../x\nmodels: [llama-tiny]\n",
    "a name with a slash": "name: a/b\nmodels: [llama-tiny]\n",
    "no characters in a name": "name: ''\nmodels: [llama-tiny]\n",
    "a hidden name": "name: .hidden\nmodels: [llama-tiny]\n",
    "a name with a line break": 'name: "a\\n"\nmodels: [llama-tiny]\n',
    "a name that is too long": f"name: {'a' * 65}\nmodels: [llama-tiny]\n",
    "a number for a name": "name: 12\nmodels: [llama-tiny]\n",
    "a group's name that climbs": GOOD + "groups: [../x]\n",
    "no groups": GOOD + "groups: []\n",
    "auto among groups": GOOD + "groups: [auto, nvidia]\n",
    "an override for an unknown group": GOOD + "groups: [nvidia, amd]\noverrides: {nvdia: {}}\n",
    "an unknown group to exclude": GOOD + "groups: [nvidia, amd]\nexclude: [{group: and}]\n",
    "a variable with a dash": GOOD + "overrides: {nvidia: {environment: {NCCL-DEBUG: INFO}}}\n",
    "a list as a secret": GOOD + "overrides: {nvidia: {environment: {HF_TOKEN: [s3cret]}}}\n",
    "a word for a number": GOOD + "repeats: many\n",
    "no repeats": GOOD + "repeats: 0\n",
    "a negative seed": GOOD + "seed: -1\n",
    "an unknown tier": GOOD + "tier: C\n",
    "an unknown isolation": GOOD + "isolation: runs\n",
    "an unknown kind of logging": GOOD + "logging: ful\n",
    "a word for true": GOOD + "limits: {try_anyway: 'yes'}\n",
    "no time at all": GOOD + "limits: {cell_timeout_s: 0}\n",
    "a deadline that never comes": GOOD + "limits: {schedule_timeout_s: .inf}\n",
    "a rate that is none": GOOD + "optimizer: {lr: .nan}\n",
    "a word for a rate": GOOD + "optimizer: {lr: fast}\n",
    "a beta of 1": GOOD + "optimizer: {beta1: 1}\n",
    "a warm-up that is too long": GOOD + "measure: {warmup: 51}\n",
    "no store": GOOD + "store: ''\n",
    "nothing left": GOOD + "exclude: [{model: llama-tiny}]\n",
    "a word for neighbours": GOOD + "axes: {shard_within: [node]}\n",
    "neighbours twice": GOOD + "axes: {shard_within: [null, 2, null]}\n",
    "two mistakes": "name: a/b\nmodels: [llama-tiny]\naxes: {strategy: [dpp]}\n",
}

BAD_SETTINGS = (
    "measure.steps",
    "=3",
    ".=3",
    "measure..steps=3",
    "measure.steps=",
    "measure.steps=x",
    "measure.steps.more=3",
    "measure={step: 3}",
    "name.x=3",
    "models.0=llama-tiny",
    "axes.strategy=[",
    "axes.strategy=[ddp, zero4]",
    "model=llama-tiny",
    "axes.seq_len=4096",
)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of ``sweep.yaml`` in the current directory, so that messages are the same everywhere."""
    monkeypatch.chdir(tmp_path)
    return Path("sweep.yaml")


def problems(path: Path, settings: tuple[str, ...] = ()) -> list[str]:
    with pytest.raises(SpecError) as refused:
        expand(SweepSpec.load(path, settings), ["local"])
    assert str(refused.value) == "\n".join(refused.value.problems)
    return refused.value.problems


def test_everything_that_can_be_wrong_has_a_line_that_helps(write: Path, golden: Golden) -> None:
    lines = []
    for mistake, text in BAD_FILES.items():
        write.write_text(text)
        lines += [f"{mistake}:", *(f"  {problem}" for problem in problems(write))]
    write.write_text(GOOD)
    for setting in BAD_SETTINGS:
        lines += [f"--set {setting}", *(f"  {problem}" for problem in problems(write, (setting,)))]
    golden("spec_errors.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("mistake", BAD_FILES)
def test_a_mistake_is_one_line_without_a_traceback_or_a_secret(write: Path, mistake: str) -> None:
    write.write_text(BAD_FILES[mistake])
    found = problems(write)
    assert len(found) == (2 if mistake == "two mistakes" else 1)
    assert all("\n" not in problem and problem.strip() for problem in found)
    assert not any(word in problem for problem in found for word in ("pydantic", "Error", "s3cret"))


@pytest.mark.parametrize(
    ("mistake", "word"),
    [
        ("an unknown strategy", "'zero3'"),
        ("an unknown model", "'llama-3.1-8b'"),
        ("an unknown key", "'axes'"),
        ("an unknown key below", "'steps'"),
        ("an unknown key in a list", "'strategy'"),
        ("an override for an unknown group", "'nvidia'"),
        ("an unknown group to exclude", "'amd'"),
        ("an unknown isolation", "'run'"),
    ],
)
def test_the_nearest_right_word_is_named(write: Path, mistake: str, word: str) -> None:
    write.write_text(BAD_FILES[mistake])
    assert problems(write)[0].endswith(f"did you mean {word}?")


@pytest.mark.parametrize("name", ["missing.yaml", ".", "no/such/folder.yaml"])
def test_a_file_that_cannot_be_read_is_named(write: Path, name: str) -> None:
    found = problems(Path(name))
    assert len(found) == 1
    assert found[0].startswith(f"{name}: can't be read (")
    assert found[0].endswith("; give the path of a sweep's YAML file")


def test_bytes_that_are_no_text_are_refused(write: Path) -> None:
    write.write_bytes(b"\xff\xfe")
    assert problems(write) == ["sweep.yaml: is not text; expected a sweep's YAML file"]


def test_half_a_character_is_refused(write: Path) -> None:
    write.write_text('name: "\\ud800"\nmodels: [llama-tiny]\n')
    assert problems(write) == ["sweep.yaml: is not text; expected a sweep's YAML file"]


@pytest.mark.parametrize("value", ["2026-99-99", "2001-12-14t21:59:43.10-99:00", "9" * 5000, "[" * 1000])
def test_what_yaml_allows_and_nobody_can_read_is_no_yaml(write: Path, value: str) -> None:
    write.write_text(f"{GOOD}seed: {value}\n")
    (found,) = problems(write)
    assert re.match(r"sweep\.yaml(:3)?: is not YAML: ", found)
    write.write_text(GOOD)
    assert problems(write, (f"seed={value}",)) == [f"--set seed={value}: {value!r} is not a YAML value"]


def test_one_value_stands_for_a_list_of_one(write: Path) -> None:
    write.write_text("name: trial\nmodels: llama-tiny\naxes: {strategy: fsdp, world_size: 2}\n")
    spec = SweepSpec.load(write)
    assert (spec.axes.strategy, spec.axes.world_size) == (("fsdp",), (2,))
    assert [model.name for model in spec.models] == ["llama-tiny"]


@pytest.mark.parametrize("text", ["1e-4", "0.0001", "1.0e-4", "1E-4"])
def test_a_number_is_read_however_people_write_it(write: Path, text: str) -> None:
    write.write_text(GOOD + f"optimizer: {{lr: {text}}}\n")
    assert SweepSpec.load(write).optimizer.lr == 1e-4
    assert SweepSpec.load(write, [f"optimizer.lr={text}"]).optimizer.lr == 1e-4


def test_a_variable_that_looks_like_a_number_is_text(write: Path) -> None:
    write.write_text(GOOD + "overrides: {nvidia: {environment: {NCCL_P2P_DISABLE: 1}}}\n")
    assert SweepSpec.load(write).overrides["nvidia"].environment == {"NCCL_P2P_DISABLE": "1"}


def test_a_setting_wins_over_the_file_and_the_last_one_over_the_others(write: Path) -> None:
    write.write_text(GOOD + "measure: {steps: 30, warmup: 5}\n")
    spec = SweepSpec.load(write, ["measure.steps=20", "measure.steps=10", "axes.strategy=[ddp, zero2]"])
    assert (spec.measure.steps, spec.measure.warmup, spec.axes.strategy) == (10, 5, ("ddp", "zero2"))


def test_a_setting_makes_the_sections_that_the_file_lacks(write: Path) -> None:
    write.write_text(GOOD)
    spec = SweepSpec.load(write, ["overrides.amd.environment.NCCL_DEBUG=INFO", "limits.try_anyway=true"])
    assert spec.overrides["amd"].environment == {"NCCL_DEBUG": "INFO"}
    assert spec.limits.try_anyway


def test_a_group_that_is_only_included_may_have_overrides_and_be_excluded(write: Path) -> None:
    included = "groups: nvidia\ninclude: [{group: amd}]\n"
    write.write_text(GOOD + included + "overrides: {amd: {}}\nexclude: [{group: amd, world_size: 8}]\n")
    assert {cell.group for cell in expand(SweepSpec.load(write), [])} == {"nvidia", "amd"}


def test_a_spec_cannot_be_changed_afterwards(write: Path) -> None:
    write.write_text(GOOD)
    spec = SweepSpec.load(write)
    with pytest.raises(ValueError, match="frozen"):
        spec.repeats = 3  # type: ignore[misc]  # that is the point


@given(st.text(max_size=30))
def test_no_text_at_all_makes_anything_but_a_spec_or_a_spec_error(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(GOOD + text)
    try:
        SweepSpec.load(path, [text])
    except SpecError as error:
        assert error.problems


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_sweep_is_right_and_bears_the_name_of_its_file(path: Path) -> None:
    spec = SweepSpec.load(path)
    assert spec.name == path.stem
    assert expand(spec, ["local"])


def test_of_a_thousand_problems_some_are_told_and_the_rest_are_counted(write: Path) -> None:
    """Found by fuzzing: a file of 2 KB was refused with 176 KB."""
    write.write_text(f"{GOOD}axes: {{strategy: [{'p, ' * 1000}]}}\n")
    with pytest.raises(SpecError) as raised:
        SweepSpec.load(write)
    lines = str(raised.value).splitlines()
    assert len(lines) == 41 and "'p'" in lines[39]
    assert lines[40] == f"and {len(raised.value.problems) - 40:,} more"
    assert len(raised.value.problems) >= 1000
