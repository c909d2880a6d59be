"""From conversations to rows of tokens: whose words are trained on, what is refused, and where it stands."""

import json
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.stores.memory import MemoryStore
from jobs.cli.__main__ import main
from jobs.packing.chat.masks import trained
from jobs.packing.chat.piece import pack_chat_piece
from jobs.packing.chat.recipe import ChatRecipe, ChatTemplate, TooLong
from jobs.packing.chat.rows import Rows, flagged
from jobs.packing.chat.sandbox import Template
from jobs.packing.chat.spans import rendered
from jobs.packing.chat.template_file import CHATML, MOST_TEMPLATE_BYTES, read_template
from jobs.packing.pieces import InputError, cut_into_pieces
from jobs.packing.shard import Packed
from jobs.packing.sources import find_sources
from jobs.packing.tokenizing import ByteTokenizer, read_recipe
from jobs.training.task.sample_order import sample_at, share_of_rank
from jobs.training.task.token_index import BEGINS, ID_MASK, TRAINED
from jobs.training.task.windows import rows_of
from tests.unit.chat_templates import MODELS, Model, conversation, write_model

CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


def as_template(text: str) -> Template:
    return Template(ChatTemplate(where="t.jinja", text=text))


def recipe(text: str = CHATML, *, seq_len: int = 128, too_long: TooLong = "refuse") -> ChatRecipe:
    return ChatRecipe(template=ChatTemplate(where="t.jinja", text=text), seq_len=seq_len, too_long=too_long)


def write_rows(path: Path, *values: object) -> Path:
    path.write_text("\n".join(json.dumps({"messages": value}) for value in values))
    return path


def packed(
    path: Path, how: ChatRecipe, piece_bytes: int = 2**20, column: str = "messages"
) -> tuple[list[int], list[Packed]]:
    """All tokens with their flags, and what is told of each piece."""
    store, data, told = MemoryStore(), bytearray(), []
    for piece in cut_into_pieces(find_sources([path], column, is_chat=True), piece_bytes):
        told.append(pack_chat_piece(piece, ByteTokenizer(), column, how, store))
        if shard := told[-1].shard:
            data += store.get(shard.name)
    return list(struct.unpack(f"<{len(data) // 4}I", data)), told


def conversations_in(tokens: Sequence[int]) -> list[bytes]:
    """The bytes of each, without what fills rows up."""
    found: list[list[int]] = []
    for token in tokens:
        if token & BEGINS:
            found.append([])
        found[-1].append(token & ID_MASK)
    return [bytes(ids) for ids in found if any(ids)]


# Whose words are trained on.


@pytest.mark.parametrize("is_marked", [False, True], ids=["plain", "marked"])
@pytest.mark.parametrize("model", MODELS, ids=[model.name for model in MODELS])
def test_an_assistants_words_and_what_ends_them_are_trained_on_and_nothing_else(
    model: Model, is_marked: bool, tmp_path: Path
) -> None:
    file = write_model(tmp_path, model, is_marked=is_marked)
    messages = conversation(system=model.has_system)
    found = rendered(Template(read_template(str(file), None)), messages, "here")
    ids, offsets = read_recipe(str(file), None, needs_end=False).open().ids_with_offsets(found.text)
    mask = trained(found, offsets)
    words, before = [""], False
    for (start, end), is_trained, previous in zip(offsets, mask, [None, *offsets], strict=False):
        if is_trained and not before:
            words.append("")
        # Tokens of one character of several bytes stand for the same character.
        if is_trained and (start, end) != previous:
            words[-1] += found.text[start:end]
        before = is_trained
    blank = " " if model.name == "mistral" else ""
    answers = [one["content"] for one in messages if one["role"] == "assistant"]
    assert words[1:] == [blank + answer + model.ends for answer in answers]
    assert len(ids) == len(mask)


def test_an_answer_that_looks_like_a_template_is_words() -> None:
    messages = [*CHAT[:1], {"role": "assistant", "content": "{{ 1 + 1 }}{% raw %}<|im_end|>\n"}]
    found = rendered(as_template(CHATML), messages, "here")
    assert found.text.endswith("assistant\n{{ 1 + 1 }}{% raw %}<|im_end|>\n<|im_end|>\n")
    (span,) = found.spans
    assert found.text[span.start : span.end] == "{{ 1 + 1 }}{% raw %}<|im_end|>\n<|im_end|>\n"


def test_marks_count_before_all_else() -> None:
    text = (
        "{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}"
    )
    found = rendered(as_template(text), CHAT, "here")
    assert found.text == "user:hi;assistant:ho;"
    assert [found.text[span.start : span.end] for span in found.spans] == ["hi", "ho"]


def test_a_template_that_rewrites_what_came_before_is_refused() -> None:
    text = "{% for m in messages %}{{ m.content if loop.last else '-' }}{% endfor %}"
    with pytest.raises(InputError, match=r"^here: message 2: the chat template writes what stands before it"):
        rendered(as_template(text), CHAT, "here")


def test_the_characters_that_marks_are_made_of_are_refused_where_there_are_marks() -> None:
    text = "{% generation %}{{ messages[1].content }}{% endgeneration %}"
    messages = [CHAT[0], {"role": "assistant", "content": "a\ufdd1b"}]
    with pytest.raises(InputError, match=r"^here: has U\+FDD0 or U\+FDD1"):
        rendered(as_template(text), messages, "here")


# Templates are programs of strangers.


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
        ("{{ messages.append(1) }}", "access to attribute 'append' of 'list' object is unsafe"),
        ("{{ namespace(__class__=1) }}", "a namespace has no '__class__'"),
        ("{{ lipsum(1) }}", "'lipsum' is undefined"),
        ("{{ strftime_now('%d') }}", "'strftime_now' is undefined"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ raise_exception('not so') }}", "not so"),
        ("{{ messages }}", "it writes a list as text; use tojson"),
        ("{{ 'a' * 999999999 }}", "a text gets longer"),
        ("{{ 2 ** 99999999 }}", "** is not for templates"),
        ("{{ '%999999999d' % 1 }}", "% is not for templates"),
        ("{{ '{:>999999999}'.format(1) }}", "access to attribute 'format'"),
        ("{{ 'a'.ljust(999999999) }}", "access to attribute 'ljust'"),
        ("{{ 'aaaa'.encode() }}", "access to attribute 'encode'"),
        ("{{ ('a' * 100).replace('', 'b' * 1000000) }}", "a text gets longer"),
        ("{{ (range(100)|map('string')|list)|join('b' * 1000000) }}", "a text gets longer"),
        ("{{ ('b' * 1000000).join(range(100)|map('string')) }}", "a text gets longer"),
        ("{{ [1]|tojson(indent=999999999) }}", "its JSON is too wide"),
        ("{{ range(99999) }}", "a range has more than 10,000 numbers"),
        ("{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}", "200,000 steps"),
        ("{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}", "maximum recursion depth"),
    ],
)
def test_a_template_that_wants_more_than_to_write_text_is_stopped(text: str, says: str) -> None:
    with pytest.raises(InputError) as refused:
        as_template(text).render([dict(one) for one in CHAT])
    assert str(refused.value).startswith("t.jinja: refuses the messages (")
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "growing",
    [
        "{% set ns.x = ns.x ~ ns.x %}",
        "{% set ns.x = ns.x + ns.x %}",
        "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}",
    ],
)
def test_a_text_that_doubles_is_stopped(growing: str) -> None:
    text = (
        "{% set ns = namespace(x='a' * 99999) %}{% for i in range(60) %}" + growing + "{% endfor %}{{ ns.x }}"
    )
    with pytest.raises(InputError, match=r"a text gets longer than"):
        as_template(text).render(CHAT)


def test_a_list_that_holds_itself_again_and_again_is_stopped() -> None:
    text = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
    with pytest.raises(InputError, match=r"a list or dict holds more than 10,000 values"):
        as_template(text).render(CHAT)


@pytest.mark.parametrize("text", ["{% if", "{{ ''|attr('x') }}", "{{ " + "(" * 5000 + ")" * 5000 + " }}"])
def test_what_is_no_template_is_refused_as_it_is_read(text: str) -> None:
    with pytest.raises(InputError, match=r"^t\.jinja: is no chat template \("):
        as_template(text)


# Where the template is found.


def test_a_template_of_its_own_file_counts_before_that_in_the_configuration(tmp_path: Path) -> None:
    file = write_model(tmp_path, MODELS[0])
    assert dict(read_template(str(file), None).tokens) == {
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
    }
    assert read_template(str(file), None).text == MODELS[0].text(is_marked=False)
    (tmp_path / "chat_template.jinja").write_text("own")
    assert read_template(str(file), None).text == "own"
    (tmp_path / "named.jinja").write_text("named")
    assert read_template(str(file), str(tmp_path / "named.jinja")).text == "named"
    assert read_template(str(file), "chatml").text == CHATML


def test_of_several_templates_the_default_is_taken(tmp_path: Path) -> None:
    named = [{"name": "rag", "template": "other"}, {"name": "default", "template": "this"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert read_template(str(tmp_path / "tokenizer.json"), None).text == "this"


def test_no_template_and_one_that_is_too_large_are_refused(tmp_path: Path) -> None:
    file = str(tmp_path / "tokenizer.json")
    for tokenizer in (file, "bytes"):
        with pytest.raises(InputError, match=r"has no chat template beside it .* with --chat-template"):
            read_template(tokenizer, None)
    (tmp_path / "chat_template.jinja").write_text("x" * (MOST_TEMPLATE_BYTES + 1))
    with pytest.raises(InputError, match=r"chat_template\.jinja: is larger than 262,144 bytes"):
        read_template(file, None)
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"tokenizer_config\.json: is not JSON"):
        read_template(file, None)


# Rows.


@given(
    lengths=st.lists(st.integers(1, 12), max_size=200),
    seq_len=st.integers(12, 40),
)
def test_every_conversation_is_whole_in_one_row_and_there_once(lengths: list[int], seq_len: int) -> None:
    rows = Rows(seq_len)
    given_ = [flagged([number + 1] * length, [False] * length) for number, length in enumerate(lengths)]
    for words in given_:
        rows.add(words)
    rows.close()
    found: Counter[tuple[int, ...]] = Counter()
    for start in range(0, len(rows.tokens), seq_len):
        row = rows.tokens[start : start + seq_len]
        begins = [at for at, token in enumerate(row) if token & BEGINS]
        assert begins[0] == 0
        found.update(tuple(row[a:b]) for a, b in zip(begins, [*begins[1:], seq_len], strict=True))
    kept = {words: count for words, count in found.items() if words[0] != BEGINS}
    assert kept == Counter(map(tuple, given_))


def test_rows_are_filled_best_first() -> None:
    rows = Rows(10)
    for length in (6, 7, 3, 4):
        rows.add([9] * length)
    rows.close()
    assert len(rows.tokens) == 20


def test_the_first_token_of_a_conversation_is_never_trained_on() -> None:
    assert flagged([7, 8, 9], [True, True, False]) == [7 | BEGINS, 8 | TRAINED, 9]


def test_a_shard_holds_rows_of_ids_with_flags(tmp_path: Path) -> None:
    tokens, (told,) = packed(write_rows(tmp_path / "a.jsonl", CHAT), recipe(seq_len=96))
    text = b"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nho<|im_end|>\n"
    assert len(tokens) == 96
    assert bytes(token & ID_MASK for token in tokens) == text + bytes(96 - len(text))
    assert [at for at, token in enumerate(tokens) if token & BEGINS] == [0, len(text)]
    trained_on = bytes(token & ID_MASK for token in tokens if token & TRAINED)
    assert trained_on == b"ho<|im_end|>"
    assert (told.num_documents, told.num_trained, told.num_cut, told.num_left_out) == (1, 12, 0, 0)
    assert told.shard is not None
    assert (told.shard.num_tokens, told.shard.largest_id) == (96, max(text))


def test_parquet_and_jsonl_give_the_same_conversations_however_they_are_cut(tmp_path: Path) -> None:
    chats = [[CHAT[0], {"role": "assistant", "content": f"answer {number}"}] for number in range(20)]
    lines = write_rows(tmp_path / "a.jsonl", *chats)
    table = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"messages": chats}), table, row_group_size=6)
    expected = Counter(conversations_in(packed(lines, recipe())[0]))
    assert len(expected) == 20
    for path, piece_bytes in ((lines, 90), (table, 1), (table, 2**20)):
        assert Counter(conversations_in(packed(path, recipe(), piece_bytes)[0])) == expected
    again = packed(lines, recipe())[0]
    assert again == packed(lines, recipe())[0]


# Exactly once, over kills.


@pytest.fixture(scope="module")
def rows_of_64(tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    chats = [[CHAT[0], {"role": "assistant", "content": f"answer {number}"}] for number in range(64)]
    path = write_rows(tmp_path_factory.mktemp("chat") / "a.jsonl", *chats)
    return packed(path, recipe(seq_len=160), piece_bytes=900)[0]


@given(world_sizes=st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=6), seed=st.integers(0, 9))
def test_every_conversation_is_read_once_an_epoch_though_attempts_are_killed_and_resized(
    world_sizes: list[int], seed: int, rows_of_64: list[int]
) -> None:
    tokens = rows_of_64
    windows = rows_of(len(tokens), seq_len=160, num_held_out=4)
    read: list[int] = []
    num_steps = windows.num_samples // 4
    for attempt in range(num_steps):
        # Each attempt is killed in its second step, whose samples count for nothing.
        world_size = world_sizes[attempt % len(world_sizes)]
        steps = [_samples_of_step(attempt + ahead, world_size, windows.num_samples, seed) for ahead in (0, 1)]
        read += steps[0]
    for place in range(num_steps * 4, windows.num_samples):
        read.append(sample_at(place, num_samples=windows.num_samples, seed=seed))
    held_out = range(windows.num_samples, windows.num_samples + 4)
    starts = [windows.start_of(number) for number in [*read, *held_out]]
    rows = [tokens[start : start + windows.window_tokens] for start in starts]
    found = Counter(text for row in rows for text in conversations_in(row))
    assert len(found) == 64
    assert set(found.values()) == {1}


def _samples_of_step(step: int, world_size: int, num_samples: int, seed: int) -> list[int]:
    shares = [
        share_of_rank(step * 4, rank=rank, world_size=world_size, micro_batch=1, grad_accum=4 // world_size)
        for rank in range(world_size)
    ]
    places = [place for of_rank in shares for share in of_rank for place in share]
    return [sample_at(place, num_samples=num_samples, seed=seed) for place in places]


# What is refused, and where it stands.


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "line 2: 'messages' is None, expected a list of messages"),
        ([], "line 2: 'messages' is [], expected a list of messages"),
        ("hi", "line 2: 'messages' is 'hi', expected a list of messages"),
        ([3], "line 2: message 1 is 3, expected {'role': ..., 'content': ...}"),
        (
            [{"from": "human", "value": "x"}],
            "line 2: message 1 has no role (from, value), expected one of system, developer, user, assistant",
        ),
        ([{"role": "bot", "content": "x"}], "line 2: message 1 has the role 'bot', expected one of system"),
        ([*CHAT, {"role": "user"}], "line 2: message 3 has the content None, expected text"),
        ([{"role": "user", "content": [{"text": "x"}]}], "line 2: message 1 has the content [{'text': 'x'}]"),
        ([CHAT[0]], "line 2: no message is an assistant's, so there is nothing to learn; remove it"),
        ([{"role": "assistant", "content": " "}], "line 2: message 1 is an assistant's and has no words"),
        ([{"role": "assistant", "content": "x", "tool_calls": [1]}], "line 2: message 1 has tool_calls"),
        ([*CHAT, {"role": "user", "content": "\ud83d"}], "line 2: has half a character ('\\ud83d')"),
        (CHAT * 1001, "line 2: has 2,002 messages, expected at most 2,000"),
        (
            [CHAT[0], {"role": "assistant", "content": "x" * 99}],
            "line 2: has 162 tokens, but a row has 128 (--seq-len); raise that",
        ),
    ],
)  # fmt: skip
def test_a_bad_row_is_named_by_its_line_with_what_to_do(value: Any, says: str, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", CHAT, value, CHAT)
    with pytest.raises(InputError) as refused:
        packed(path, recipe())
    assert str(refused.value).startswith(f"{path}: {says}")
    assert str(refused.value).encode(), "it travels from the worker as UTF-8"


def test_a_bad_row_of_parquet_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"messages": [CHAT, CHAT, CHAT[:1]]}), path, row_group_size=2)
    with pytest.raises(InputError, match=r"a\.parquet: row 3: no message is an assistant's"):
        packed(path, recipe())


def test_files_that_can_hold_no_conversations_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    with pytest.raises(
        InputError, match=r"a\.txt: expected JSON, JSONL, Parquet or Arrow with conversations"
    ):
        packed(tmp_path / "a.txt", recipe())
    pyarrow.parquet.write_table(pyarrow.table({"messages": ["words"]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"column 'messages' holds string, expected lists of messages"):
        packed(tmp_path / "b.parquet", recipe())
    lines = write_rows(tmp_path / "c.jsonl", CHAT)
    with pytest.raises(InputError, match=r"c\.jsonl: line 1 has no 'chat' \(messages\); name another with"):
        packed(lines, recipe(), column="chat")


@pytest.mark.parametrize(
    ("too_long", "counts"), [("cut", (2, 1, 0)), ("leave-out", (1, 0, 1))], ids=["cut", "leave-out"]
)
def test_what_is_too_long_is_cut_or_left_out_where_that_is_asked_for(
    too_long: TooLong, counts: tuple[int, int, int], tmp_path: Path
) -> None:
    longer = [CHAT[0], {"role": "assistant", "content": "x" * 99}]
    tokens, (told,) = packed(write_rows(tmp_path / "a.jsonl", CHAT, longer), recipe(too_long=too_long))
    assert (told.num_documents, told.num_cut, told.num_left_out) == counts
    cut = [text for text in conversations_in(tokens) if b"xxx" in text]
    assert [len(text) for text in cut] == [128] * counts[1]


def test_what_has_no_assistants_words_left_after_a_cut_is_left_out(tmp_path: Path) -> None:
    longer = [{"role": "user", "content": "x" * 200}, CHAT[1]]
    _, (told,) = packed(write_rows(tmp_path / "a.jsonl", longer), recipe(too_long="cut"))
    assert (told.num_documents, told.num_left_out, told.shard) == (0, 1, None)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--seq-len", "8"], "--seq-len: is for conversations; add --chat"),
        (["--chat-template", "chatml"], "--chat-template: is for conversations; add --chat"),
        (["--chat", "--chat-template", "chatml"], "--chat: needs --seq-len"),
        (["--chat", "--seq-len", "1"], "--chat: needs --seq-len, the tokens of a row, at least 2"),
        (["--chat", "--seq-len", "8"], "--tokenizer bytes: has no chat template beside it"),
        (["--chat", "--seq-len", "8", "--chat-template", "no.jinja"], "no.jinja: can't be read"),
        (
            ["--chat", "--seq-len", "8", "--end-token", "x"],
            "--end-token: a chat template writes its own ends",
        ),
    ],
)
def test_flags_that_do_not_go_together_end_with_2_before_anything_is_started(
    flags: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "a.jsonl", CHAT)
    assert main(["pack", "a.jsonl", "--out", "new", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"longhaul pack: {says}")
