"""The index beside token shards, and where it is not believed."""

import json
import pickle
from dataclasses import replace

import pytest

from jobs.training.task.token_index import (
    Chat,
    DataError,
    Split,
    TokenIndex,
    TokenShard,
    Vocabulary,
    from_json,
    to_json,
)

INDEX = TokenIndex(
    dtype="uint16",
    shards=(
        TokenShard(name="00000.bin", num_tokens=7, sha256="a" * 64, largest_id=90),
        TokenShard(name="part/00001.bin", num_tokens=0),
    ),
    vocabulary=Vocabulary(tokenizer="bytes", digest="b" * 64, size=257, end_id=256, begin_ids=(1, 2)),
)


def test_an_index_comes_back_as_it_was() -> None:
    assert from_json(to_json(INDEX), "here") == INDEX


@pytest.mark.parametrize(
    "index",
    [
        INDEX,
        replace(INDEX, shards=(), vocabulary=None),
        replace(INDEX, chat=Chat(seq_len=7, num_trained=3, template="c" * 64)),
        replace(INDEX, split=Split(numerator=1, denominator=200, is_held_out=True)),
    ],
)
def test_a_worker_gets_the_index_that_was_sent_to_it(index: TokenIndex) -> None:
    assert pickle.loads(pickle.dumps(index)) == index


@pytest.mark.parametrize("begin_ids", [None, (), (1,)])
def test_an_index_says_what_stands_before_documents_or_that_it_does_not_know(
    begin_ids: tuple[int, ...] | None,
) -> None:
    assert INDEX.vocabulary
    index = replace(INDEX, vocabulary=replace(INDEX.vocabulary, begin_ids=begin_ids))
    body = json.loads(to_json(index))
    assert from_json(json.dumps(body).encode(), "here") == index
    del body["vocabulary"]["begin_ids"]  # as older versions wrote it
    older = from_json(json.dumps(body).encode(), "here").vocabulary
    assert older == replace(INDEX.vocabulary, begin_ids=None)


def test_names_and_numbers_are_enough_for_a_hand_written_index() -> None:
    text = (
        b'{"format": "longhaul tokens 1", "dtype": "uint32", "shards": [{"name": "a.bin", "num_tokens": 3}]}'
    )
    found = from_json(text, "here")
    assert found == TokenIndex(dtype="uint32", shards=(TokenShard(name="a.bin", num_tokens=3),))
    assert (found.num_tokens, found.vocabulary) == (3, None)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "other"}, "its format is 'other', expected 'longhaul tokens 1'"),
        ({"dtype": "int8"}, "its dtype is 'int8', expected uint16 or uint32"),
        ({"num_tokens": 9}, "its shards have 7 tokens together, but it says 9"),
        ({"shards": [{"name": "../a.bin", "num_tokens": 7}]}, "'../a.bin' is not the name"),
        ({"shards": [{"name": "a.bin", "num_tokens": -7}]}, "a.bin has -7 tokens"),
        ({"shards": [{"name": "a.bin", "num_tokens": 7, "largest_id": 1.5}]}, "a.bin's largest id is 1.5"),
        ({"shards": [{"name": "a.bin", "num_tokens": 7, "sha256": 3}]}, "a.bin's sha256 is 3"),
        ({"shards": [{"name": "a.bin", "num_tokens": 7}] * 2}, "a.bin is there twice"),
        ({"shards": [{"name": "a.bin"}]}, "'num_tokens' is missing"),
        ({"vocabulary": {"tokenizer": "t", "digest": "d", "size": "big"}}, "its vocabulary is"),
        ({"vocabulary": {"tokenizer": "t", "digest": 1, "size": 9}}, "the digest of its tokenizer is 1"),
        ({"shards": [{"name": "a.bin", "num_tokens": 2**63}]}, "a.bin has 9223372036854775808 tokens"),
        ({"shards": [{"name": f"{at}.bin", "num_tokens": 2**62} for at in "ab"]}, "more than .* together"),
        ({"shards": [{"name": "a.bin", "num_tokens": 7, "sha256": "\x1b[2J"}]}, "a.bin's sha256 is '.x1b"),
        ({"vocabulary": {"tokenizer": "t\nread 14 bytes", "digest": "d", "size": 9}}, "its vocabulary is"),
        ({"vocabulary": {"tokenizer": "t" * 256, "digest": "d", "size": 9}}, "its vocabulary is"),
        ({"vocabulary": {"tokenizer": "t", "digest": "d\n", "size": 9}}, "digest of its tokenizer is 'd.n'"),
        (
            {"vocabulary": {"tokenizer": "t", "digest": "d", "size": 9, "end_id": 9}},
            "the end_id of its .* is 9",
        ),
        (
            {"vocabulary": {"tokenizer": "t", "digest": "d", "size": 9, "end_id": True}},
            "the end_id .* is True",
        ),
        *(
            (
                {"vocabulary": {"tokenizer": "t", "digest": "d", "size": 9, "begin_ids": begin_ids}},
                "the begin_ids of its vocabulary are ",
            )
            for begin_ids in (3, "3", [True], [-1], [9], [2**63], {"3": 3}, [[3]])
        ),
    ],
)
def test_what_does_not_add_up_is_said(change: dict[str, object], says: str) -> None:
    body = {**json.loads(to_json(INDEX)), **change}
    with pytest.raises(DataError, match=r"^here: .*" + says):
        from_json(json.dumps(body).encode(), "here")


@pytest.mark.parametrize(
    "change",
    [
        {"format": "x" * 10**6},
        {"dtype": "x" * 10**6},
        {"num_tokens": "x" * 10**6},
        {"shards": [{"name": "x" * 10**6, "num_tokens": 7}]},
        {"shards": [{"name": "a.bin", "num_tokens": "x" * 10**6}]},
        {"shards": [{"name": "a.bin", "num_tokens": 10**4000}]},
        {"shards": [{"name": "a.bin", "num_tokens": 7, "sha256": "x" * 10**6}]},
        {"vocabulary": {"tokenizer": "x" * 10**6, "digest": "d", "size": 9}},
        {"split": {"share": "1/2", "is_held_out": "x" * 10**6}},
        {"vocabulary": {"tokenizer": "t", "digest": "d", "size": 9, "begin_ids": ["x" * 10**6]}},
    ],
)
def test_what_is_said_of_an_index_is_short_however_much_it_says(change: dict[str, object]) -> None:
    body = {**json.loads(to_json(INDEX)), **change}
    with pytest.raises(DataError, match=r"^here: .*") as refused:
        from_json(json.dumps(body).encode(), "here")
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"7", b"null", b'{"format": "longhaul tokens 1"}'])
def test_what_is_no_index_at_all_is_said(data: bytes) -> None:
    with pytest.raises(DataError, match=r"^here: "):
        from_json(data, "here")


def test_the_digest_is_of_the_tokens_and_not_of_what_is_known_besides() -> None:
    nameless = TokenIndex(dtype=INDEX.dtype, shards=INDEX.shards)
    fewer = TokenIndex(dtype=INDEX.dtype, shards=INDEX.shards[:1])
    assert nameless.digest == INDEX.digest
    assert fewer.digest != INDEX.digest


CHAT = TokenIndex(
    dtype="uint32",
    shards=(TokenShard(name="00000.bin", num_tokens=12, sha256="a" * 64, largest_id=90),),
    chat=Chat(seq_len=4, num_trained=5, template="t" * 64),
)


def test_an_index_of_conversations_comes_back_as_it_was_under_a_format_of_its_own() -> None:
    assert from_json(to_json(CHAT), "here") == CHAT
    assert json.loads(to_json(CHAT))["format"] == "longhaul tokens 2"
    assert json.loads(to_json(INDEX))["format"] == "longhaul tokens 1"
    assert "chat" not in json.loads(to_json(INDEX))


def test_other_rows_are_other_data() -> None:
    assert CHAT.chat is not None
    longer = replace(CHAT, chat=replace(CHAT.chat, seq_len=6))
    assert len({CHAT.digest, longer.digest, replace(CHAT, chat=None).digest}) == 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"chat": None}, "is no index of tokens"),
        ({"dtype": "uint16"}, "its dtype is 'uint16', expected 'uint32' of chat data"),
        ({"chat": {"seq_len": 5, "num_trained": 5, "template": "t"}}, "has 12 tokens, not whole rows of 5"),
        ({"chat": {"seq_len": 0, "num_trained": 5, "template": "t"}}, "its chat is"),
        ({"chat": {"seq_len": 4, "num_trained": 5, "template": 3}}, "the digest of its template is 3"),
        ({"chat": {"seq_len": 4}}, "'num_trained' is missing"),
        ({"chat": {"seq_len": 4, "num_trained": 13, "template": "t"}}, "is trained on 13 of its 12 tokens"),
    ],
)  # fmt: skip
def test_an_index_of_conversations_that_can_not_be_is_refused(change: dict[str, object], says: str) -> None:
    body = json.loads(to_json(CHAT)) | change
    with pytest.raises(DataError) as refused:
        from_json(json.dumps(body).encode(), "here")
    assert says in str(refused.value)
