"""Documents are held out of the training by a hash of their text, and by nothing else."""

import gzip
import json
from fractions import Fraction
from math import sqrt
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpointing.stores.contract import Unavailable
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from jobs.cli.__main__ import main
from jobs.packing import command
from jobs.packing.chat.piece import pack_chat_piece
from jobs.packing.chat.recipe import ChatRecipe, ChatTemplate
from jobs.packing.chat.template_file import CHATML
from jobs.packing.hold_out import HEAD_BYTES, HELD_OUT, HoldOut, as_hold_out
from jobs.packing.pieces import cut_into_pieces
from jobs.packing.shard import pack_piece
from jobs.packing.sources import find_sources
from jobs.packing.tokenizing import ByteTokenizer
from jobs.training.task.token_index import INDEX, DataError, Split, TokenIndex, from_json, to_json
from tests.unit.printed import checked
from tests.unit.tokens.test_packing import write_tokenizer

HALF = HoldOut(share=Fraction(1, 2))
Sides = tuple[list[bytes], list[bytes]]


def documents_in(data: bytes) -> list[bytes]:
    """The documents in ids of bytes, of uint16."""
    texts = data[::2]
    ends = [at for at in range(len(data) // 2) if data[2 * at + 1]]
    return [texts[first:end] for first, end in zip([0, *(at + 1 for at in ends)], ends, strict=False)]


def sides_of(inputs: list[Path], hold_out: HoldOut = HALF, piece_bytes: int = 2**20) -> Sides:
    """What is trained on, and what is held out."""
    store, data = MemoryStore(), (bytearray(), bytearray())
    for piece in cut_into_pieces(find_sources(inputs, "text"), piece_bytes):
        packed = pack_piece(piece, ByteTokenizer(), "text", store, hold_out)
        assert packed.held_out is not None
        if packed.shard:
            data[0].extend(store.get(packed.shard.name))
        if packed.held_out.shard:
            data[1].extend(store.get(f"{HELD_OUT}/{packed.held_out.shard.name}"))
    to_train_on, held_out = map(documents_in, map(bytes, data))
    return to_train_on, held_out


def write_lines(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def stories(count: int, salt: str = "") -> list[str]:
    return [f"story {salt}{number}: {number * number}" for number in range(count)]


def test_the_share_is_right_and_no_document_is_on_both_sides(tmp_path: Path) -> None:
    count, share = 20_000, Fraction(5, 100)
    texts = stories(count)
    to_train_on, held_out = sides_of([write_lines(tmp_path / "a.jsonl", texts)], HoldOut(share=share))
    assert sorted([*to_train_on, *held_out]) == sorted(text.encode() for text in texts)
    assert not set(to_train_on) & set(held_out)
    # Five standard deviations of the binomial distribution.
    assert abs(len(held_out) - count * share) < 5 * sqrt(count * share * (1 - share))


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), piece_bytes=st.integers(1, 3000))
def test_what_a_document_is_packed_with_and_how_it_is_cut_decides_nothing(
    seed: int, piece_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, texts = tmp_path_factory.mktemp("texts"), stories(40, f"{seed}-")
    table = pyarrow.table({"text": texts[20:]})
    pyarrow.parquet.write_table(table, folder / "b.parquet", row_group_size=7)
    first = write_lines(folder / "a.jsonl", texts[:30])
    (folder / "c.txt").write_text(texts[0], encoding="utf-8")
    (folder / "d.txt.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + texts[39].encode()))
    alone = sides_of([first])
    together = sides_of(
        [folder / "d.txt.gz", folder / "b.parquet", first, folder / "c.txt"], HALF, piece_bytes
    )
    for side in (0, 1):
        assert set(alone[side]) <= set(together[side])
        assert not set(alone[side]) & set(together[1 - side])
    assert not set(together[0]) & set(together[1])
    assert len(together[0]) + len(together[1]) == 52


def test_a_text_in_many_pieces_is_on_the_side_of_its_first_bytes(tmp_path: Path) -> None:
    for number in range(8):
        text = f"{number}\n" * HEAD_BYTES
        (tmp_path / "a.txt").write_text(text, encoding="utf-8")
        as_line = sides_of([write_lines(tmp_path / "a.jsonl", [text])])
        assert sides_of([tmp_path / "a.txt"], piece_bytes=30_000) == as_line
        # What stands behind the first bytes does not count, so documents that only grow stay on their side.
        other = sides_of([write_lines(tmp_path / "a.jsonl", [text + "more"])])
        assert [len(side) for side in other] == [len(side) for side in as_line]


def test_all_of_the_first_bytes_count_and_none_behind_them() -> None:
    heads = [b"a" * (HEAD_BYTES - 1) + bytes([number]) for number in range(32)]
    assert {HALF.takes(head) for head in heads} == {True, False}
    assert [HALF.takes(head + b"more") for head in heads] == [HALF.takes(head) for head in heads]


def test_a_larger_share_takes_all_that_a_smaller_one_does() -> None:
    shares = [HoldOut(share=Fraction(number, 100)) for number in (1, 5, 50)]
    taken = [{text for text in stories(2000) if one.takes(text.encode())} for one in shares]
    assert taken[0] < taken[1] < taken[2]


@pytest.mark.parametrize("text", ["0%", "0.005", "100%", "-1%", "1e9%", "5 %", "0.0000000001%", "%", ""])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no share of documents, such as"):
        as_hold_out(text)
    assert as_hold_out("0.5%") == HoldOut(share=Fraction(1, 200))


# The command.


@pytest.fixture
def books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    return write_lines(tmp_path / "a.jsonl", stories(200))


def files_in(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*.*") if path.is_file()}


def test_a_packing_that_was_killed_anywhere_gives_the_same_bytes(
    books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", "a.jsonl", "--out", "whole", "--hold-out", "25%"]) == 0
    told = capsys.readouterr().out.splitlines()
    whole = files_in(tmp_path / "whole")
    assert told[-1] == f"evaluate on them with eval: {{path: {tmp_path}/whole/held-out}}"
    indexes = [from_json(whole[name], name) for name in (INDEX, f"{HELD_OUT}/{INDEX}")]
    share = Fraction(1, 4)
    assert [one.split for one in indexes] == [Split.of(share, is_held_out=side) for side in (False, True)]

    writes: list[str] = []
    for number in range(len(whole)):
        with monkeypatch.context() as patched:
            kill_before(patched, number, writes)
            assert main(["pack", "a.jsonl", "--out", f"cut-{number}", "--hold-out", "25%"]) == 1
        assert INDEX not in files_in(tmp_path / f"cut-{number}")
        assert main(["pack", "a.jsonl", "--out", f"cut-{number}", "--hold-out", "25%"]) == 0
        assert files_in(tmp_path / f"cut-{number}") == whole
    assert writes[-2:] == [f"{HELD_OUT}/{INDEX}", INDEX]


def kill_before(monkeypatch: pytest.MonkeyPatch, write: int, writes: list[str]) -> None:
    """Ends the packing before its write of this number."""
    done: list[str] = []

    def killing(verb: str) -> None:
        real = getattr(LocalStore, verb)

        def write_or_die(self: LocalStore, name: str, data: bytes) -> object:
            if name.endswith((".bin", ".json")):
                done.append(name)
                writes[:] = done
                if len(done) > write:
                    raise Unavailable("killed")
            return real(self, name, data)

        monkeypatch.setattr(LocalStore, verb, write_or_die)

    killing("put")
    killing("create")


def test_what_a_killed_packing_held_out_is_not_trained_on_by_another(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", "a.jsonl", "--out", "new", "--hold-out", "25%"]) == 0
    (tmp_path / "new" / INDEX).unlink()
    capsys.readouterr()
    assert main(["pack", "a.jsonl", "--out", "new"]) == 2
    assert f"delete {HELD_OUT}/{INDEX}" in capsys.readouterr().err
    assert main(["pack", "a.jsonl", "--out", "new", "--hold-out", "30%"]) == 2
    told = capsys.readouterr().err
    assert "--hold-out: another share was held out at" in told
    assert f"name another place, or delete {HELD_OUT}/{INDEX}" in told


@pytest.mark.parametrize("change", [{"begin_ids": [3]}, {"begin_ids": None}, {"digest": "d" * 64}])
def test_what_a_killed_packing_held_out_with_other_beginnings_or_another_tokenizer_is_told_first(
    change: dict[str, Any],
    books: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(["pack", "a.jsonl", "--out", "new", "--hold-out", "25%"]) == 0
    (tmp_path / "new" / INDEX).unlink()
    index = tmp_path / "new" / HELD_OUT / INDEX
    body = json.loads(index.read_bytes())
    body["vocabulary"] |= change
    index.write_text(json.dumps(body))
    before = files_in(tmp_path / "new")
    capsys.readouterr()
    monkeypatch.delattr(command, "_pack")  # Hours may pass before it ends.
    assert main(["pack", "a.jsonl", "--out", "new", "--hold-out", "25%"]) == 2
    told = capsys.readouterr().err
    assert "held-out was packed with another tokenizer, or begins its documents otherwise; name" in told
    assert files_in(tmp_path / "new") == before


def test_a_share_of_few_documents_may_be_none_or_all_of_them(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(tmp_path / "one.jsonl", ["one"])
    # The hash of this text is in the lower half.
    shares = [share for share in ("1%", "99%") if as_hold_out(share).takes(b"one")]
    assert shares == ["99%"]
    assert main(["pack", "one.jsonl", "--out", "all", "--hold-out", "99%"]) == 2
    assert "--hold-out: takes all documents" in capsys.readouterr().err
    assert main(["pack", "one.jsonl", "--out", "none", "--hold-out", "1%", "--json"]) == 0
    told = checked("pack", capsys.readouterr().out)
    nothing = {"url": None, "num_documents": 0, "num_tokens": 0, "num_special_tokens": 0}
    assert told["held_out"] == nothing


def test_what_held_out_documents_spell_stays_text_and_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in those that are trained on: no text of a document ends it."""
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json", "</s>")
    texts = write_lines(tmp_path / "texts.jsonl", [f"a </s> b {'c ' * number}" for number in range(40)])
    target = tmp_path / "packed"
    command = ["pack", str(texts), "--tokenizer", str(tokenizer), "--hold-out", "50%", "--out", str(target)]
    assert main(command) == 0
    said = "40 times the text spells special tokens of the tokenizer, which stayed text"
    assert said in capsys.readouterr().out
    for side in (target, target / HELD_OUT):
        index = from_json((side / INDEX).read_bytes(), "index")
        assert index.vocabulary and index.vocabulary.end_id == 3
        ids = [number for shard in index.shards for number in (side / shard.name).read_bytes()[::2]]
        ends = [at for at, number in enumerate(ids) if number == 3]
        # Each text has one "b".
        assert len(ends) == ids.count(1) > 10


def test_data_tells_which_side_it_is(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", "a.jsonl", "--out", "new", "--hold-out", "0.5%"]) == 0
    assert main(["pack", "a.jsonl", "--out", "other", "--hold-out", "25%"]) == 0
    capsys.readouterr()
    for place, said in (
        ("new", "documents that are trained on: by their hash, 0.5% are held out"),
        ("other/held-out", "documents that are held out: by their hash, 25% are held out"),
    ):
        assert main(["data", place]) == 0
        assert said in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    "split",
    [
        5,
        {},
        {"share": "1/0", "is_held_out": True},
        {"share": "1/2", "is_held_out": 1},
        {"share": "5/4", "is_held_out": True},
    ],
)
def test_an_index_with_another_split_is_refused(split: object) -> None:
    body = json.loads(to_json(TokenIndex(dtype="uint16", shards=())))
    with pytest.raises(DataError, match="is no index of tokens"):
        from_json(json.dumps({**body, "split": split}).encode(), "index.json")


# Conversations.


def test_conversations_are_held_out_by_all_their_words(tmp_path: Path) -> None:
    chats = [
        [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": f"{number}."}]
        for number in range(400)
    ]
    lines, table = tmp_path / "a.jsonl", tmp_path / "a.parquet"
    lines.write_text("\n".join(json.dumps({"messages": chat}) for chat in chats), encoding="utf-8")
    pyarrow.parquet.write_table(pyarrow.table({"messages": chats}), table, row_group_size=50)
    template = ChatTemplate(where="t.jinja", text=CHATML)
    recipe = ChatRecipe(template=template, seq_len=128, too_long="refuse")

    def held_out(path: Path, piece_bytes: int) -> tuple[int, int, bytes]:
        store, counts = MemoryStore(), [0, 0]
        for piece in cut_into_pieces(find_sources([path], "messages", is_chat=True), piece_bytes):
            packed = pack_chat_piece(piece, ByteTokenizer(), "messages", recipe, store, HALF)
            assert packed.held_out is not None
            counts[0] += packed.num_documents
            counts[1] += packed.held_out.num_documents
        names = sorted(name for name in store.contents() if name.startswith(HELD_OUT))
        return counts[0], counts[1], b"".join(map(store.get, names))

    counts = {held_out(path, size)[:2] for path in (lines, table) for size in (2**10, 2**20)}
    ((num_to_train_on, num_held_out),) = counts
    assert num_to_train_on + num_held_out == 400
    assert abs(num_held_out - 200) < 5 * sqrt(100)
    assert held_out(lines, 2**20)[2] == held_out(table, 2**20)[2]


def test_copies_of_a_conversation_lie_on_one_side_whatever_else_its_messages_have(tmp_path: Path) -> None:
    chats = [
        [{"role": "user", "content": f"{number}?", **more}, {"role": "assistant", "content": f"{number}."}]
        for number in range(100)
        for more in ({}, {"id": number}, {"id": -number}, {"weight": 1}, {"weight": 1.0})
    ]
    lines = tmp_path / "a.jsonl"
    lines.write_text("\n".join(json.dumps({"messages": chat}) for chat in chats), encoding="utf-8")
    recipe = ChatRecipe(template=ChatTemplate(where="t.jinja", text=CHATML), seq_len=128, too_long="refuse")
    (piece,) = cut_into_pieces(find_sources([lines], "messages", is_chat=True), 2**20)
    packed = pack_chat_piece(piece, ByteTokenizer(), "messages", recipe, MemoryStore(), HALF)
    assert packed.held_out is not None
    assert packed.num_documents > 0
    assert packed.num_documents % 5 == packed.held_out.num_documents % 5 == 0


def test_nothing_else_of_packing_depends_on_holding_out(books: Path, tmp_path: Path) -> None:
    assert main(["pack", "a.jsonl", "--out", "new"]) == 0
    assert [name for name in files_in(tmp_path / "new") if name.startswith(HELD_OUT)] == []
    index = from_json((tmp_path / "new" / INDEX).read_bytes(), "new")
    assert index.split is None
