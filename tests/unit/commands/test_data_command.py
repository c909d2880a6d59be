"""``longhaul data``: what a place of tokens and a spec hold, and whether the bytes are those of the index."""

import hashlib
import itertools
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpointing.stores.local import LocalStore
from jobs.cli.__main__ import main
from jobs.dataset import command, verifying
from jobs.dataset.facts import RunFacts, step_facts
from jobs.runs.data_check import stored
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


def test_the_bytes_of_each_source_of_a_mixture_are_compared(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shutil.copytree(place, place.parent / "other")
    sources = "[{name: a, path: tokens, weight: 3}, {name: b, path: other, weight: 1}]"
    words = ["r.yaml", "--set", f"data={{kind: tokens, sources: {sources}}}", "--verify"]
    whole = seen(capsys, *words)["verified"]
    assert whole == {"num_right": 4, "num_unknown": 0, "num_bytes": 12000, "problems": []}
    flip(other)
    found = seen(capsys, *words, expected=1)["verified"]
    assert found["num_right"] == 3
    [problem] = found["problems"]
    assert problem.startswith("b: 1.bin: has the SHA-256 ")
    flip(place)
    found = seen(capsys, *words, expected=1)["verified"]
    assert [problem[:8] for problem in found["problems"]] == ["a: 1.bin", "b: 1.bin"]
    assert main(["data", *words]) == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith("2 shards right, 2 wrong")


@pytest.mark.parametrize("is_mixed", [False, True])
def test_the_bytes_of_what_is_evaluated_on_are_compared_too(
    is_mixed: bool, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held_out = place.parent / "held-out"
    held_out.mkdir()
    shards = []
    for number in range(2):
        body = struct.pack("<1000H", *(7 * (one + number) % 239 for one in range(1000)))
        (held_out / f"{number}.bin").write_bytes(body)
        digest = hashlib.sha256(body).hexdigest()
        shards.append({"name": f"{number}.bin", "num_tokens": 1000, "sha256": digest})
    write_index(held_out, shards)
    words = ["r.yaml", "--set", "eval.path=held-out", "--verify"]
    if is_mixed:
        words += ["--set", "data={kind: tokens, sources: [{name: a, path: tokens, weight: 1}]}"]
    whole = seen(capsys, *words)["verified"]
    assert whole == {"num_right": 4, "num_unknown": 0, "num_bytes": 10000, "problems": []}
    flip(held_out)
    found = seen(capsys, *words, expected=1)["verified"]
    assert found["num_right"] == 3
    [problem] = found["problems"]
    assert problem.startswith("eval.path: 1.bin: has the SHA-256 ")
    flip(place)
    found = seen(capsys, *words, expected=1)["verified"]
    source = "a: " if is_mixed else ""
    assert [problem[: problem.index(": has")] for problem in found["problems"]] == [
        f"{source}1.bin",
        "eval.path: 1.bin",
    ]


@pytest.fixture
def books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """Packed documents of 2 to 288 bytes, of which every fifth is a copy of the first."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    texts = ["ab" * (number * number) if number % 5 else "one\ttext\n" for number in range(13)]
    lines = [json.dumps({"text": text}) for text in texts]
    (tmp_path / "books.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "r.yaml").write_text(SPEC.replace("samples: 8", "samples: 2"), encoding="utf-8")
    assert main(["pack", "books.jsonl", "--out", "tokens"]) == 0
    capsys.readouterr()
    return tmp_path / "tokens"


def test_few_tokens_on_a_disk_are_read_for_their_documents(
    books: Path, capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]
) -> None:
    tokens = seen(capsys, "tokens")["tokens"]
    assert tokens["unread"] is None
    assert tokens["documents"] == {
        "num_tokens": 1090,
        "num_documents": 13,
        "longest": 288,
        "length_bounds": [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
        "length_counts": [0, 0, 1, 0, 4, 1, 1, 2, 3, 1],
        "num_compared": 13,
        "num_copies": 2,
        "num_padding_tokens": 0,
        "num_cut": None,
    }
    assert tokens["excerpt"] == "one\\ttext\\n"
    assert main(["data", "tokens"]) == 0
    golden("data_place.txt", capsys.readouterr().out.replace(str(books), "/data/tokens"))


def test_a_spec_tells_which_documents_its_samples_cut(
    books: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_rows = [
        seen(capsys, "r.yaml", "--set", f"seq_len={seq_len}")["tokens"]["documents"]["num_cut"]
        for seq_len in (16, 128)
    ]
    assert of_rows[0] > of_rows[1] > 0
    assert main(["data", "r.yaml", "--set", "seq_len=128"]) == 0
    out = capsys.readouterr().out
    assert f"cut, so that no sample holds the whole document: {of_rows[1]} ({of_rows[1] / 13:.1%})\n" in out


def test_each_source_of_a_mixture_tells_of_its_documents(
    books: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = "[{name: a, path: tokens, weight: 3}, {name: b, path: tokens, weight: 1}]"
    words = ["r.yaml", "--set", f"data={{kind: tokens, sources: {sources}}}"]
    told = [one["tokens"]["documents"]["num_documents"] for one in seen(capsys, *words)["sources"]]
    assert told == [13, 13]
    assert main(["data", *words]) == 0
    assert capsys.readouterr().out.count("  13 documents in the 1,090 tokens, all of which were read") == 2


def test_many_tokens_are_read_when_that_is_asked_for(
    books: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "FEW_BYTES", 2179)
    tokens = seen(capsys, "tokens")["tokens"]
    assert (tokens["documents"], tokens["excerpt"]) == (None, "one\\ttext\\n")
    assert tokens["unread"] == "--documents reads all 2,180 bytes for them"
    assert main(["data", "tokens"]) == 0
    assert "documents: not read; --documents reads all 2,180 bytes for them\n" in capsys.readouterr().out
    assert seen(capsys, "tokens", "--documents")["tokens"]["documents"]["num_documents"] == 13


def test_documents_that_cannot_be_read_hide_nothing_else_unless_they_were_asked_for(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "nothing tells which token ends one; a spec says so with data.end_id"
    assert seen(capsys, "tokens")["tokens"]["unread"] == said
    assert main(["data", "tokens", "--documents"]) == 2
    assert capsys.readouterr().err == f"longhaul data: --documents: {place}: {said}\n"
    per_document = "data={kind: tokens, path: tokens, attention: per_document, end_id: 4}"
    found = seen(capsys, "r.yaml", "--set", per_document)["tokens"]["documents"]
    assert found["num_documents"] == sum(one * one % 241 == 4 for one in range(3000)) + 1
    cut(place)
    body = json.loads((place / "index.json").read_text(encoding="utf-8"))
    body["vocabulary"]["end_id"] = 4
    (place / "index.json").write_text(json.dumps(body), encoding="utf-8")
    short = f"{place}/1.bin: is not there, or shorter than its index says"
    assert seen(capsys, "tokens")["tokens"]["unread"] == short
    assert main(["data", "tokens", "--documents"]) == 2
    assert short in capsys.readouterr().err


def test_an_excerpt_needs_the_tokenizer_that_made_the_ids(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*"abcdefghijklmnopqrstuvwxyz", "</s>", "[UNK]"]
    model = {"type": "WordLevel", "vocab": dict(zip(words, range(28), strict=True)), "unk_token": "[UNK]"}
    body = {"version": "1.0", "model": model, "pre_tokenizer": {"type": "Whitespace"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(body), encoding="utf-8")
    (tmp_path / "words.txt").write_text("c a b", encoding="utf-8")
    assert main(["pack", "words.txt", "--out", "words", "--tokenizer", "tokenizer.json"]) == 0
    capsys.readouterr()
    assert seen(capsys, "words")["tokens"]["excerpt"] is None
    assert seen(capsys, "words", "--tokenizer", "tokenizer.json")["tokens"]["excerpt"] == "c a b"
    (tmp_path / "other.json").write_text(json.dumps({**body, "version": "1.0 "}), encoding="utf-8")
    for other in ("nowhere.json", "other.json", "bytes"):
        assert main(["data", "words", "--tokenizer", other]) == 2
        assert f"--tokenizer {other}: " in capsys.readouterr().err


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
        (["a\nb"], "'a\\nb' has control characters"),
        (["a\0b"], "'a\\x00b' has control characters"),
        (["y" * 300 + ".bin"], "expected letters, digits and ._+=@- in its name"),
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


def test_an_end_that_no_id_can_be_is_said_and_hides_nothing_else(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = json.loads((place / "index.json").read_text(encoding="utf-8"))
    body["vocabulary"] |= {"size": 10**6, "end_id": 2**16}
    (place / "index.json").write_text(json.dumps(body), encoding="utf-8")
    tokens = seen(capsys, "tokens")["tokens"]
    assert (tokens["num_tokens"], tokens["documents"]) == (3000, None)
    assert tokens["unread"] == "the id 65,536, which ends a document, is beyond uint16"


def test_files_without_an_end_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    endless = (f"{number}.parquet" for number in itertools.count())
    monkeypatch.setattr(LocalStore, "contents", lambda _: endless)
    monkeypatch.setattr(stored, "MOST_FILES", 5)
    assert main(["data", str(tmp_path)]) == 2
    assert "more than 5 files; expected a folder of tokens" in capsys.readouterr().err
    assert next(endless) == "6.parquet"


def test_a_file_s_name_is_shown_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a\nread 7 bytes.parquet").touch()
    assert main(["data", str(tmp_path)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "'a\\nread 7 bytes.parquet': expected letters" in line


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
