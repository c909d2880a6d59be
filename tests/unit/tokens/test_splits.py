"""A downloaded Hugging Face data set: which files are which split, and what a stranger's card can't do."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from jobs.cli.__main__ import main
from jobs.packing.inputs.patterns import fits
from jobs.packing.inputs.splits import Wanted
from jobs.packing.pieces import InputError, Split
from jobs.packing.sources import SplitFiles, in_split, named

SHARDS = ("data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl")
CONFIGS = """configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
  - split: test
    path:
    - "data/test.jsonl"
    - 'more/**/*.jsonl'
"""
INFO = {"splits": {"train": {"name": "train", "num_bytes": 1}, "test": {"name": "test"}}}


def card(front: str) -> str:
    return f"---\n{front}---\n# A data set\n"


def folder_with(place: Path, files: Mapping[str, str] | tuple[str, ...]) -> Path:
    contents = files if isinstance(files, Mapping) else dict.fromkeys(files, "")
    for name, text in contents.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text or json.dumps({"text": name}))
    return place


def found(folder: Path, split: str | None = None, subset: str | None = None) -> Split:
    """What is found in a folder, and in the same folder as a store."""
    [given], [stored] = named([folder]), named([f"file://{folder}"])
    wanted = Wanted(split=split, subset=subset)
    here, there = in_split(given, wanted), in_split(stored, wanted)
    assert isinstance(here, SplitFiles) and isinstance(there, SplitFiles)
    assert here.split == there.split
    return here.split


DATA = (*SHARDS, "data/test.jsonl", "more/a/b.jsonl", "other.jsonl")


def test_the_card_says_which_files_are_which_split(tmp_path: Path) -> None:
    folder_with(tmp_path, {**dict.fromkeys(DATA, ""), "README.md": card(CONFIGS)})
    assert found(tmp_path) == Split(name="train", files=SHARDS, others={"test": 2})
    [stored] = named([f"file://{tmp_path.parent}//{tmp_path.name}//"])
    assert isinstance(in_split(stored, Wanted()), SplitFiles), "a slash more is no other folder"
    test = found(tmp_path, "test")
    assert test == Split(name="test", files=("data/test.jsonl", "more/a/b.jsonl"), others={"train": 2})


@pytest.mark.parametrize(
    "front",
    [
        "configs:\n- {config_name: a, data_files: x}\n"
        "- {config_name: b, default: true, data_files: ./data/t*-*}\n",
        "configs:\n- config_name: default\n  data_files: data/train-*\n",
        "configs:\n- config_name: default\n  data_files: [data/train-0*, data/train-0*]\n",
        "configs:\n- config_name: x\n  data_dir: data\n  data_files: [{split: train, path: train-*}]\n",
        "configs:\n- config_name: x\n  data_dir: data/\n  data_files: train-*\n",
        "configs:\n- config_name: x\n  data_files: {train: data/train-*}\n",
        "dataset_info:\n  splits:\n  - name: train\n",
        "dataset_info:\n- config_name: default\n  splits: [{name: train}]\n",
    ],
)
def test_a_card_has_several_forms(front: str, tmp_path: Path) -> None:
    folder_with(tmp_path, {**dict.fromkeys(DATA, ""), "README.md": card(front)})
    assert found(tmp_path).files == SHARDS


@pytest.mark.parametrize("name", ["dataset_info.json", "dataset_infos.json"])
def test_the_names_of_splits_are_looked_for_in_the_names_of_files(name: str, tmp_path: Path) -> None:
    info = INFO if name == "dataset_info.json" else {"default": INFO}
    files = (*SHARDS, "my-train-set-test.jsonl", "training/x.jsonl", "eval.jsonl", "rest.jsonl")
    folder_with(tmp_path, {**dict.fromkeys(files, ""), name: json.dumps(info)})
    split = found(tmp_path)
    assert (split.files, split.others) == ((*SHARDS, "training/x.jsonl"), {"test": 2})


def test_files_without_a_split_in_their_names_are_the_training_split(tmp_path: Path) -> None:
    folder_with(tmp_path, {"a.jsonl": "", "b.jsonl": "", "dataset_info.json": json.dumps(INFO)})
    assert found(tmp_path).files == ("a.jsonl", "b.jsonl")


def test_a_subset_is_named_where_there_are_several(tmp_path: Path) -> None:
    infos = json.dumps({"cola": INFO, "sst2": INFO})
    folder_with(tmp_path, {"cola/train.jsonl": "", "sst2/train.jsonl": "", "dataset_infos.json": infos})
    assert found(tmp_path, subset="sst2").files == ("sst2/train.jsonl",)
    for wanted in (Wanted(), Wanted(subset="none")):
        with pytest.raises(InputError, match=r"^--subset: .*dataset_infos.json has .*\(cola, sst2\)"):
            in_split(tmp_path, wanted)


def test_what_was_saved_to_disk_is_read_by_its_state(tmp_path: Path) -> None:
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": "train"}
    one = {"data-00000-of-00001.arrow": "", "cache-1.arrow": "", "state.json": json.dumps(state)}
    both = {f"{split}/{name}": text for split in ("train", "test") for name, text in one.items()}
    folder_with(tmp_path, {**both, "dataset_dict.json": json.dumps({"splits": ["train", "test"]})})
    assert found(tmp_path).files == ("train/data-00000-of-00001.arrow",)
    assert found(tmp_path, "test").files == ("test/data-00000-of-00001.arrow",)
    assert found(tmp_path / "test").files == ("data-00000-of-00001.arrow",)
    state["_indices_data_files"] = [{"filename": "indices.arrow"}]
    (tmp_path / "train/state.json").write_text(json.dumps(state))
    with pytest.raises(InputError, match=r"train/state.json: has rows that were selected"):
        in_split(tmp_path, Wanted())


@pytest.mark.parametrize(
    "path", ["../secret/a.jsonl", "/etc/passwd", "data/../../secret/*", "hf://datasets/a/b", "..", r"..\a"]
)
def test_a_card_leads_nobody_out_of_its_folder(path: str, tmp_path: Path) -> None:
    folder_with(tmp_path / "secret", ("a.jsonl",))
    front = f"configs:\n- config_name: default\n  data_files: {json.dumps(path)}\n"
    folder_with(tmp_path / "set", {"data/a.jsonl": "", "README.md": card(front)})
    with pytest.raises(InputError, match=r"README.md: data_files has .*, which leads out of the folder"):
        in_split(tmp_path / "set", Wanted())


@pytest.mark.parametrize(
    ("front", "says"),
    [
        ("configs: [\n", "is not YAML at its top"),
        ("configs: 3\n", "expected a list of objects"),
        ("configs:\n- config_name: default\n  data_files: []\n", "expected from one to 1,000 paths"),
        ("configs:\n- config_name: default\n  data_files: [{split: 'a b', path: x}]\n", "name of a split"),
        ("configs:\n- config_name: default\n  data_files: [{split: a, path: 3}]\n", "expected a path"),
        ("configs:\n- config_name: default\n  data_files: none.jsonl\n", "no file of split 'train' is there"),
        ("configs:\n- {config_name: default, data_dir: in}\n", "has a data_dir without data_files"),
        (f"configs: [{{data_files: '{'**/' * 400}a'}}]\n", "expected a path"),
        (f"configs: [{{data_files: a}}]\nx: {'y' * 2**20}\n", "no end of its YAML in the first 1,048,576"),
        ("dataset_info: {1: {splits: [train]}, 2: {}}\n", "has several subsets (1, 2)"),
        ("dataset_info:\n  splits: []\n", "expected the names of splits"),
        ("dataset_info: {splits: [{name: a}, {name: b}]}\n", "has no split 'train' (a, b)"),
        ("dataset_info: {splits: [{name: in}, {name: out}]}\n", "may be of the splits in, out"),
    ],
)
def test_a_card_that_can_not_be_followed_is_refused(front: str, says: str, tmp_path: Path) -> None:
    folder_with(tmp_path, {"in-out-x.jsonl": "" if "out" in front else "{}", "README.md": card(front)})
    with pytest.raises(InputError) as refused:
        in_split(tmp_path, Wanted())
    assert says in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["# Text", "---\nlicense: mit\n---\n", "---\nconfigs:\n", "--- a: [\n---\n"])
def test_a_folder_whose_card_says_nothing_of_data_is_a_folder(text: str, tmp_path: Path) -> None:
    folder_with(tmp_path, {"a.jsonl": "", "README.md": text})
    assert in_split(tmp_path, Wanted()) == tmp_path
    with pytest.raises(InputError, match=rf"^--split test: nothing in {tmp_path} tells of splits"):
        in_split(tmp_path, Wanted(split="test"))


def test_a_pattern_of_a_stranger_takes_no_time() -> None:
    assert not fits(["*a" * 100 + "b"], ["a" * 200])
    assert not fits(["**", "*"] * 100 + ["b"], ["a"] * 200)
    assert fits(["**"] * 100 + ["b"], ["a"] * 200 + ["b"])


def test_the_command_packs_the_training_split_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder_with(tmp_path / "set", {**dict.fromkeys(DATA, ""), "README.md": card(CONFIGS)})
    assert main(["pack", str(tmp_path / "set"), "--out", str(tmp_path / "tokens")]) == 0
    told = capsys.readouterr().out
    assert "split test  left out (--split)       2" in told
    assert "of data sets with splits, train is packed" in told and "2 documents" in told
    assert main(["pack", str(tmp_path / "set"), "--split", "dev", "--out", str(tmp_path / "dev")]) == 2
    assert "has no split 'dev' (train, test); name one of these" in capsys.readouterr().err


def test_a_files_name_steers_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder_with(tmp_path / "plain", ("a.jsonl", "b.\x1b]0;c"))
    assert main(["pack", str(tmp_path / "plain"), "--out", str(tmp_path / "plain-tokens")]) == 0
    assert "\x1b" not in capsys.readouterr().out
