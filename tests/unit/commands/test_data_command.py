"""``longhaul data``: what a place of tokens and a spec hold, and whether the bytes are those of the index."""

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.cli.__main__ import main
from jobs.dataset import verifying
from jobs.dataset.facts import RunFacts, step_facts
from jobs.spec_schema.run_spec import RunSpec
from tests.unit.printed import checked

SHARDS = (range(2000), range(2000, 3000))
SPEC = """
name: r
model: llama-tiny
seq_len: 32
micro_batch: 4
steps: 50
seed: 3
eval: {samples: 8}
data: {kind: tokens, path: tokens}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """3,000 tokens in two shards, packed with bytes, and a spec beside them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    (tmp_path / "r.yaml").write_text(SPEC, encoding="utf-8")
    place = tmp_path / "tokens"
    place.mkdir()
    shards = []
    for number, ids in enumerate(SHARDS):
        body = struct.pack(f"<{len(ids)}H", *(one * one % 241 for one in ids))
        (place / f"{number}.bin").write_bytes(body)
        digest = hashlib.sha256(body).hexdigest()
        shards.append({"name": f"{number}.bin", "num_tokens": len(ids), "sha256": digest, "largest_id": 249})
    write_index(place, shards)
    return place


def write_index(place: Path, shards: list[dict[str, Any]]) -> None:
    body = {
        "format": "longhaul tokens 1",
        "dtype": "uint16",
        "vocabulary": {"tokenizer": "bytes", "digest": "d" * 64, "size": 257},
        "shards": shards,
    }
    (place / "index.json").write_text(json.dumps(body), encoding="utf-8")


def seen(capsys: pytest.CaptureFixture[str], *words: str, expected: int = 0) -> Any:
    assert main(["data", *words, "--json"]) == expected
    return checked("data", capsys.readouterr().out)


def test_a_place_tells_its_tokens_and_who_made_them(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = seen(capsys, "tokens")
    assert (found["run"], found["step"], found["verified"]) == (None, None, None)
    tokens = found["tokens"]
    assert (tokens["num_tokens"], tokens["num_bytes"], tokens["num_shards"]) == (3000, 6000, 2)
    assert (tokens["tokenizer"], tokens["vocab_size"], tokens["num_with_sha256"]) == ("bytes", 257, 2)
    assert main(["data", "tokens"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{place}: 3,000 tokens in 2 shards, 6,000 bytes of uint16"
    assert lines[1] == "tokenizer: bytes (dddddddddddd), a vocabulary of 257"


def test_a_spec_tells_samples_steps_and_epochs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # (3,000 - 8 x 32 - 2) / 32 samples of 32 tokens, four of them in a step.
    assert seen(capsys, "r.yaml")["run"] == {
        "kind": "tokens",
        "seq_len": 32,
        "num_samples": 85,
        "num_held_out": 8,
        "samples_per_step": 4,
        "tokens_per_step": 128,
        "num_steps": 50,
        "steps_per_epoch": 21.25,
        "num_epochs": 200 / 85,
        "held_out_at": None,
    }
    assert main(["data", "r.yaml", "--set", "steps=17"]) == 0
    assert "the run: 17 steps, 0.80 epochs\n" in capsys.readouterr().out


def test_the_steps_of_an_epoch_read_each_sample_once_at_any_size(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [seen(capsys, "r.yaml", "--step", str(step))["step"] for step in range(1, 23)]
    numbers = [sample for step in steps for sample in step["samples"]]
    assert sorted(numbers[:85]) == list(range(85))
    assert [steps[21][key] for key in ("first_position", "first_epoch", "last_epoch")] == [84, 1, 2]
    other = seen(capsys, "r.yaml", "--step", "2", "--set", "world_size=2", "--set", "micro_batch=2")
    assert other["step"] == steps[1]
    assert main(["data", "r.yaml", "--step", "22"]) == 0
    shown = ", ".join(map(str, steps[21]["samples"]))
    assert f"step 22 begins after 84 samples, in epoch 1 and 2: {shown}\n" in capsys.readouterr().out


def test_a_mixture_tells_each_source_and_which_samples_of_it_a_step_reads(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = "[{name: a, path: tokens, weight: 3}, {name: b, path: tokens, weight: 1}]"
    words = ["r.yaml", "--set", f"data={{kind: tokens, sources: {sources}}}"]
    found = seen(capsys, *words, "--step", "2")
    assert found["tokens"] is None
    # Each source holds out four samples: (3,000 - 4 x 32 - 2) / 32. The run reads 200.
    told = [(one["name"], one["share"], one["num_samples"], one["num_epochs"]) for one in found["sources"]]
    assert told == [("a", 0.75, 89, 150 / 89), ("b", 0.25, 89, 50 / 89)]
    assert (found["run"]["num_samples"], found["run"]["num_epochs"]) == (178, 200 / 178)
    step = found["step"]
    assert sorted(step["sources"]) == ["a", "a", "a", "b"]
    assert main(["data", *words, "--step", "2"]) == 0
    out = capsys.readouterr().out
    assert "a: 75.0% of the samples; it has 89, which the run reads 1.69 times\n" in out
    places = zip(step["sources"], step["samples"], strict=True)
    assert f"in epoch 1: {', '.join(f'{source} {number}' for source, number in places)}\n" in out
    assert main(["data", *words, "--verify"]) == 2
    assert "names several sources; verify each place by itself" in capsys.readouterr().err


def flip(place: Path) -> None:
    body = bytearray((place / "1.bin").read_bytes())
    body[999] ^= 1
    (place / "1.bin").write_bytes(body)


def exchange(place: Path) -> None:
    first, second = (place / f"{number}.bin" for number in (0, 1))
    bodies = first.read_bytes(), second.read_bytes()
    first.write_bytes(bodies[1] * 2)
    second.write_bytes(bodies[0][:2000])


def cut(place: Path) -> None:
    (place / "1.bin").write_bytes((place / "1.bin").read_bytes()[:-2])


def lengthen(place: Path) -> None:
    (place / "1.bin").write_bytes((place / "1.bin").read_bytes() + b"\0")


def remove(place: Path) -> None:
    (place / "1.bin").unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (flip, ["1.bin: has the SHA-256 "]),
        (exchange, ["0.bin: has the SHA-256 ", "1.bin: has the SHA-256 "]),
        (cut, ["1.bin: is shorter than the 2,000 bytes of its 1,000 tokens"]),
        (lengthen, ["1.bin: is longer than the 2,000 bytes of its 1,000 tokens"]),
        (remove, ["1.bin: is not there"]),
    ],
)
def test_other_bytes_than_the_index_says_are_named_and_end_with_1(
    damage: Callable[[Path], None], said: list[str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = seen(capsys, "tokens", "--verify")["verified"]
    assert whole == {"num_right": 2, "num_unknown": 0, "num_bytes": 6000, "problems": []}
    damage(place)
    found = seen(capsys, "tokens", "--verify", expected=1)["verified"]
    assert [problem.startswith(start) for problem, start in zip(found["problems"], said, strict=True)] == [
        True
    ] * len(said)
    assert found["num_right"] == 2 - len(said)
    assert main(["data", "tokens", "--verify"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(f"{2 - len(said)} shard{'s' * (len(said) == 2)} right, {len(said)} wrong")


def test_a_shard_without_a_digest_is_not_called_right(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_index(place, [{"name": "0.bin", "num_tokens": 2000}, {"name": "1.bin", "num_tokens": 1000}])
    found = seen(capsys, "tokens", "--verify")["verified"]
    assert (found["num_right"], found["num_unknown"], found["problems"]) == (0, 2, [])
    cut(place)
    found = seen(capsys, "tokens", "--verify", expected=1)["verified"]
    assert (found["num_right"], found["num_unknown"], len(found["problems"])) == (0, 1, 1)


def test_a_shard_that_ends_where_a_read_ends_is_compared_to_its_end(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "READ_BYTES", 1000)
    assert seen(capsys, "tokens", "--verify")["verified"]["num_right"] == 2
    lengthen(place)
    [problem] = seen(capsys, "tokens", "--verify", expected=1)["verified"]["problems"]
    assert "1.bin: is longer" in problem


def test_of_synthetic_samples_there_are_no_bytes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = seen(capsys, "r.yaml", "--set", "data={samples: 64}", "--verify")
    assert (found["tokens"], found["verified"], found["run"]["num_samples"]) == (None, None, 64)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["elsewhere"], "index.json is not there, nor Parquet files of ids"),
        (["nowhere.yaml"], "nowhere.yaml"),
        (["tokens", "--step", "1"], "--set and --step belong to a spec"),
        (["r.yaml", "--step", "51"], "--step 51: the run has 50 steps"),
        (["r.yaml", "--set", "data.path=ftp://h/x"], "data.path"),
    ],
)
def test_what_is_no_data_ends_with_2_and_one_line(
    words: list[str], said: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err and len(printed.err.splitlines()) == 1


def test_a_step_of_more_samples_than_anybody_reads_is_refused() -> None:
    run = RunFacts(
        kind="synthetic",
        seq_len=1,
        num_samples=10**9,
        num_held_out=0,
        samples_per_step=10**6,
        tokens_per_step=10**6,
        num_steps=9,
        steps_per_epoch=1.0,
        num_epochs=1.0,
    )
    with pytest.raises(Exception, match="a step has 1,000,000 samples, expected at most 100,000"):
        step_facts(1, run, RunSpec.model_validate({"name": "r", "model": "llama-tiny", "steps": 1}))
