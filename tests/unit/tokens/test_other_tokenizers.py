"""Tokenizers of sentencepiece and tiktoken: the ids of their own libraries, and files that are refused."""

import base64
import hashlib
import io
import random
import socket
import struct
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tiktoken
from tiktoken_ext import openai_public

from jobs.cli.__main__ import main
from jobs.packing import long_texts, tokenizing
from jobs.packing.documents import Text
from jobs.packing.long_texts import Parts
from jobs.packing.models import tiktoken_file
from jobs.packing.pieces import InputError
from jobs.packing.tokenizing import Tokenizer, read_recipe, tokenizer_file
from jobs.training.task.token_index import INDEX, from_json

WORDS = [
    "the",
    "of",
    "times",
    "Worst",
    "über",
    "1234567",
    "don't",
    "数据",
    "😀👍",
    "</s>",
    "<|endoftext|>",
    "\x00",
]
GAPS = [" ", " ", "\n", "\n\n", "  ", ", ", ". ", "\t", "   \n", "-", "\u0301"]
KINDS = ("bpe", "unigram", "llama", "tiktoken")


def random_text(seed: int, num_words: int) -> str:
    chance = random.Random(seed)
    return "".join(chance.choice(WORDS) + chance.choice(GAPS) for _ in range(num_words))


@cache
def model(kind: str, **more: Any) -> bytes:
    """A model that sentencepiece trained. That of ``llama`` keeps all white space, as Llama 2's does."""
    if kind == "llama":
        more |= {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    text, out = random_text(1, 4000), io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.split(". ")), model_writer=out, vocab_size=400,
        hard_vocab_limit=False, byte_fallback=True, model_type="bpe" if kind == "llama" else kind,
        minloglevel=2, num_threads=1, **more,
    )  # fmt: skip
    return out.getvalue()


@cache
def ranks() -> bytes:
    """A small file of tiktoken: all bytes, and what some words begin with."""
    tokens = [bytes([byte]) for byte in range(256)]
    for word in ("the", " of", " times", "Worst", "数据"):
        tokens += [word.encode()[:end] for end in range(2, len(word.encode()) + 1)]
    return b"".join(base64.b64encode(one) + b" %d\n" % rank for rank, one in enumerate(dict.fromkeys(tokens)))


def file_of(kind: str, folder: Path) -> Path:
    path = folder / ("cl100k_base.tiktoken" if kind == "tiktoken" else "tokenizer.model")
    path.write_bytes(ranks() if kind == "tiktoken" else model(kind))
    return path


def ours(kind: str, folder: Path) -> Tokenizer:
    return read_recipe(str(file_of(kind, folder)), None).open()


def library_ids(kind: str, text: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    if kind != "tiktoken":
        ids: list[int] = sentencepiece.SentencePieceProcessor(model_proto=model(kind)).encode(text)
        return ids
    table = {base64.b64decode(one): int(rank) for one, rank in map(bytes.split, ranks().splitlines())}
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *_, **__: table)
    return tiktoken.Encoding(**openai_public.cl100k_base()).encode_ordinary(text)


@pytest.mark.parametrize("kind", KINDS)
def test_the_ids_are_those_of_the_library_and_no_text_is_a_special_token(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "socket", None)
    tokenizer, texts = ours(kind, tmp_path), [random_text(seed, 200) for seed in range(20)]
    expected = [library_ids(kind, text, monkeypatch) for text in texts]
    assert [list(tokenizer.ids(text)) for text in texts] == expected
    assert [list(ids) for ids in tokenizer.ids_of_each(texts)] == expected
    end = "<|endoftext|>" if kind == "tiktoken" else "</s>"
    assert all(tokenizer.end_id not in ids for ids in expected)
    assert tokenizer.num_special("".join(texts)) == "".join(texts).count(end) > 0
    assert tokenizer.vocabulary.digest == hashlib.sha256(file_of(kind, tmp_path).read_bytes()).hexdigest()
    assert tokenizer.vocabulary.end_id == tokenizer.end_id == (100257 if kind == "tiktoken" else 2)
    size = sentencepiece.SentencePieceProcessor(
        model_proto=model("bpe" if kind == "tiktoken" else kind)
    ).piece_size()
    assert tokenizer.vocabulary.size == (100277 if kind == "tiktoken" else size)
    assert "times" in tokenizer.text([*expected[0], 99_999])


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_has_the_ids_of_the_whole(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a model which puts a blank before each text is given whole, up to the limit."""
    monkeypatch.setattr(long_texts, "PART_CHARACTERS", 4000)
    monkeypatch.setattr(long_texts, "_REACH", 2000)
    tokenizer, text = ours(kind, tmp_path), random_text(3, 5000)
    parts = Parts(tokenizer)
    found = [[*ids] for ids in parts.ids(Text(text=text, is_end=True, where="here"))]
    assert [number for ids in found for number in ids] == library_ids(kind, text, monkeypatch)
    assert (len(found) == 1) == (kind == "llama")
    monkeypatch.setattr(long_texts, "MOST_CHARACTERS", 20_000)
    if kind == "llama":
        with pytest.raises(InputError, match="here: has more than 20,000 characters without a place"):
            list(Parts(tokenizer).ids(Text(text=text, is_end=True, where="here")))


@pytest.mark.parametrize("kind", ["bpe", "tiktoken"])
def test_the_command_packs_with_a_folder_that_holds_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").mkdir()
    file = file_of(kind, tmp_path / "model")
    assert tokenizer_file(str(tmp_path / "model")) == str(file)
    (tmp_path / "a.txt").write_text("the Worst </s> of times <|endoftext|>")
    arguments = ["pack", str(tmp_path / "a.txt"), "--tokenizer", str(tmp_path / "model")]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
    assert "1 times the text spells special tokens" in capsys.readouterr().out
    index = from_json((tmp_path / "out" / INDEX).read_bytes(), "here")
    data = (tmp_path / "out" / index.shards[0].name).read_bytes()
    width, code = (4, "I") if kind == "tiktoken" else (2, "H")
    assert index.vocabulary is not None
    expected = [*library_ids(kind, (tmp_path / "a.txt").read_text(), monkeypatch), index.vocabulary.end_id]
    assert list(struct.unpack(f"<{len(data) // width}{code}", data)) == expected
    (tmp_path / "chat.jsonl").write_text('{"messages": [{"role": "assistant", "content": "a"}]}')
    chat = ["--chat", "--chat-template", "chatml", "--seq-len", "64", "--out", str(tmp_path / "chat")]
    assert main(["pack", str(tmp_path / "chat.jsonl"), "--tokenizer", str(file), *chat]) == 2
    assert f"--tokenizer {file}: conversations need a tokenizer.json" in capsys.readouterr().err


def test_a_special_token_is_read_where_that_is_wanted(tmp_path: Path) -> None:
    recipe = read_recipe(str(file_of("tiktoken", tmp_path)), "<|fim_prefix|>", reads_special=True)
    assert recipe.open().end_id == 100258
    assert list(recipe.open().ids("a<|endoftext|>")) == [ord("a"), 100257]
    with pytest.raises(InputError, match="--special-tokens: sentencepiece reads none"):
        read_recipe(str(file_of("bpe", tmp_path)), None, reads_special=True)


NO_END = {"eos_id": -1}


@pytest.mark.parametrize(
    ("name", "content", "end", "says"),
    [
        ("tokenizer.model", b"junk", None, "is no whole model of sentencepiece"),
        ("tokenizer.model", b"", None, "is no whole model of sentencepiece"),
        ("tokenizer.model", model("bpe")[:5000], None, "is no whole model of sentencepiece"),
        ("tokenizer.model", model("bpe", **NO_END), None, "has no end of its own; name a token"),
        ("tokenizer.model", model("bpe"), "<none>", "--end-token <none>: tokenizer.model has no such token"),
        ("tokenizer.model", ranks(), None, "is a file of tiktoken, which does not say how it cuts words"),
        ("qwen.tiktoken", ranks(), None, "known are cl100k_base.tiktoken, o200k_base.tiktoken"),
        ("r50k_base.tiktoken", ranks(), None, "has 274 tokens, expected 50,256"),
        ("cl100k_base.tiktoken", ranks()[:-7], None, "is no token in base64 with its rank"),
        ("cl100k_base.tiktoken", ranks() + b"AA== 999\n", None, "a token or a rank twice"),
        ("cl100k_base.tiktoken", ranks() + b"enp6eg== 5\n", None, "a token or a rank twice"),
        ("cl100k_base.tiktoken", ranks()[7:], None, "no token for byte 0"),
        (
            "cl100k_base.tiktoken",
            ranks() + b"enp6eg== 100257\n",
            None,
            "has a token at 100,257, a special token's id",
        ),
        ("cl100k_base.tiktoken", ranks() + b"enp6eg== -1\n", None, "is no token in base64"),
        ("cl100k_base.tiktoken", b"", None, "no token for byte 0"),
        ("cl100k_base.tiktoken", ranks(), "</s>", "--end-token </s>: cl100k_base.tiktoken has no such token"),
    ],
)
def test_what_is_no_whole_tokenizer_is_refused_in_one_line(
    name: str, content: bytes, end: str | None, says: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as refused:
        read_recipe(str(tmp_path / name), end)
    assert says in str(refused.value) and "\n" not in str(refused.value)


def test_more_white_space_than_tiktoken_takes_is_refused_before_it_breaks_off(tmp_path: Path) -> None:
    tokenizer = ours("tiktoken", tmp_path)
    assert len(tokenizer.ids("\n" * tiktoken_file.MOST_WHITE + "x")) == tiktoken_file.MOST_WHITE + 1
    with pytest.raises(InputError, match="more than 262,144 white characters in a row"):
        tokenizer.ids("a" + "\n" * (tiktoken_file.MOST_WHITE + 1) + "x")


@pytest.mark.parametrize(("kind", "package"), [("bpe", "sentencepiece"), ("tiktoken", "tiktoken")])
def test_a_package_that_is_missing_is_named(
    kind: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_of(kind, tmp_path)
    tokenizing._opened.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=f"needs the package {package}; install it, or use bytes"):
        read_recipe(str(file), None)
