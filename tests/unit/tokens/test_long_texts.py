"""Long documents go to a tokenizer in parts, and their ids are those of the whole."""

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from jobs.packing import long_texts
from jobs.packing.documents import Text
from jobs.packing.long_texts import Parts
from jobs.packing.pieces import InputError
from jobs.packing.tokenizing import ByteTokenizer, read_recipe

WORDS = [
    "the",
    "of",
    "times",
    "it",
    "Worst",
    "was",
    "über",
    "naïve",
    "1234567",
    "don't",
    "数据",
    "路径",
    "😀👍",
]
GAPS = [" ", " ", " ", "\n", "\n\n", "  ", ", ", ". ", "。", "\t", "   \n", "-", "\u0301"]
LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


def random_text(chance: random.Random, num_words: int) -> str:
    return "".join(chance.choice(WORDS) + chance.choice(GAPS) for _ in range(num_words))


class Encoded:
    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.longest = 0

    def ids(self, text: str) -> Sequence[int]:
        self.longest = max(self.longest, len(text))
        ids: Sequence[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def trained(kind: str) -> Encoded:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=kind == "prefix", use_regex=kind != "llama")
    if kind == "llama":
        split = pre_tokenizers.Split(tokenizers.Regex(LLAMA), behavior="isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    elif kind == "metaspace":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
    else:
        tokenizer.pre_tokenizer = byte_level
        tokenizer.decoder = decoders.ByteLevel()
    if kind == "nfc":
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=700, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    text = random_text(random.Random(1), 4000)
    # Without a pre-tokenizer all of a text is one word, so it is trained on short ones.
    tokenizer.train_from_iterator([text[at : at + 200] for at in range(0, len(text), 200)], trainer)
    return Encoded(tokenizer)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_texts, "PART_CHARACTERS", 2000)
    monkeypatch.setattr(long_texts, "_REACH", 1000)
    monkeypatch.setattr(long_texts, "MOST_CHARACTERS", 8000)


def in_parts(tokenizer: Encoded | ByteTokenizer, text: str, chance: random.Random) -> list[int]:
    parts, ids, at = Parts(tokenizer), [], 0
    while at < len(text):
        size = chance.randrange(1, 3000)
        part = Text(text=text[at : at + size], is_end=at + size >= len(text), where="here")
        ids += [number for found in parts.ids(part) for number in found]
        at += size
    return ids


HOSTILE = ["a" * 3000, " " * 3000, "\n" * 3000, "ab" * 2000, "1" * 3000, "e\u0301" * 1000, "\u2581" * 2000]


@pytest.mark.parametrize("kind", ["gpt2", "prefix", "llama", "nfc"])
def test_the_ids_of_the_parts_are_those_of_the_whole(kind: str, small: None) -> None:
    tokenizer, chance = trained(kind), random.Random(2)
    for number in range(6):
        text = random_text(chance, 4000)
        if number >= 2:
            text = text[:5000] + chance.choice(HOSTILE) + text[5000:]
        tokenizer.longest = 0
        found = in_parts(tokenizer, text, chance)
        assert tokenizer.longest <= 8000 < len(text)
        assert found == tokenizer.ids(text)


def test_bytes_are_cut_anywhere(small: None) -> None:
    chance = random.Random(3)
    text = random_text(chance, 5000)
    assert in_parts(ByteTokenizer(), text, chance) == [*text.encode()]


def test_a_tokenizer_that_lets_nothing_be_cut_gets_short_documents_whole_and_long_ones_are_refused(
    small: None,
) -> None:
    tokenizer, chance = trained("metaspace"), random.Random(4)
    text = random_text(chance, 10_000)
    assert in_parts(tokenizer, text[:7000], chance) == tokenizer.ids(text[:7000])
    with pytest.raises(
        InputError, match=r"^here: has more than 8,000 characters without a place where the tok"
    ):
        in_parts(tokenizer, text, chance)


def test_a_long_run_without_a_word_in_it_is_refused_and_not_cut_somewhere(small: None) -> None:
    tokenizer = trained("gpt2")
    with pytest.raises(InputError, match=r"^here: has more than 8,000 characters without a place"):
        in_parts(tokenizer, "a" * 20_000, random.Random(5))


def test_ids_that_are_found_without_their_places_are_those_that_are_found_with_them(tmp_path: Path) -> None:
    """On text of any characters and on what spells special tokens, read as them or as text."""
    seed = int(os.environ.get("LONGHAUL_SEED", random.randrange(2**32)))
    by, file = random.Random(seed), tmp_path / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["</s>", "<x y>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["the cat sat on the mat, the others' cats did not"] * 9, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="</s> $A", special_tokens=[("</s>", 0)])
    tokenizer.save(str(file))
    pieces = ["the", " cat", "</s>", "<x y>", "<x", "  \n", "'", "\0", "e\u0301", "\u200d", "\U0001f600", ""]
    texts = [
        "".join(by.choices([*pieces, chr(by.randrange(0xD800))], k=by.randrange(20))) for _ in range(300)
    ]
    for reads_special in (False, True):
        found = read_recipe(str(file), None, reads_special=reads_special).open()
        alone = [found.ids_with_offsets(text)[0] for text in texts]
        assert [list(ids) for ids in found.ids_of_each(texts)] == alone, f"LONGHAUL_SEED={seed}"
        assert any(found.end_id in ids for ids in alone) is reads_special
