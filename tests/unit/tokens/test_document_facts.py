"""What reading all tokens tells of documents: the same as counting them one by one, however they lie."""

import struct
import tracemalloc
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from unittest.mock import patch

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from checkpointing.stores.memory import MemoryStore
from jobs.dataset.excerpt import excerpt
from jobs.packing.chat.rows import Rows, flagged
from jobs.packing.tokenizing import ByteTokenizer
from jobs.runs.data_read import documents
from jobs.runs.data_read.documents import Place, read_documents
from jobs.training.task.token_index import Chat, DataError, TokenDtype, TokenIndex, TokenShard
from jobs.training.task.windows import Windows, cut_into_windows, rows_of
from reporting.recording.read_data import DocumentFacts

CODES: dict[TokenDtype, str] = {"uint16": "H", "uint32": "I"}
DTYPES: st.SearchStrategy[TokenDtype] = st.sampled_from(["uint16", "uint32"])
# Of these, two side by side may have the bytes of an end token in their middle.
IDS = st.sampled_from([0, 1, 2, 255, 256, 257, 512, 65535])


def place(
    tokens: Sequence[int],
    *,
    dtype: TokenDtype = "uint16",
    ends: Sequence[int] = (),
    end_id: int | None = None,
    chat: Chat | None = None,
    windows: Windows | None = None,
    num_held_out: int = 0,
) -> Place:
    """The tokens in shards that end before the tokens number ``ends``."""
    store, shards = MemoryStore(), []
    for number, (first, end) in enumerate(zip([0, *ends], [*ends, len(tokens)], strict=True)):
        part = tokens[first:end]
        store.put(f"{number}.bin", struct.pack(f"<{len(part)}{CODES[dtype]}", *part))
        shards.append(TokenShard(name=f"{number}.bin", num_tokens=len(part)))
    index = TokenIndex(dtype=dtype, shards=tuple(shards), chat=chat)
    return Place(store=store, index=index, end_id=end_id, windows=windows, num_held_out=num_held_out)


def read(place: Place, *, read_bytes: int = 8) -> DocumentFacts:
    with patch.object(documents, "READ_BYTES", read_bytes):
        return read_documents(place)


def in_bars(found: DocumentFacts, lengths: Sequence[int]) -> list[int]:
    """How many of ``lengths`` are within each of the bounds."""
    counts = Counter(bisect_right(found.length_bounds, length) - 1 for length in lengths)
    return [counts[number] for number in range(len(found.length_bounds) - 1)]


def num_copies(texts: Sequence[tuple[int, ...]]) -> int:
    with_words = [text for text in texts if text]
    return len(with_words) - len(set(with_words))


@given(data=st.data(), dtype=DTYPES, end_id=IDS, read_bytes=st.sampled_from([4, 8, 20]))
def test_documents_are_told_as_if_counted_one_by_one(
    data: st.DataObject, dtype: TokenDtype, end_id: int, read_bytes: int
) -> None:
    texts = data.draw(st.lists(st.lists(IDS.filter(lambda one: one != end_id), max_size=9), max_size=12))
    rest = data.draw(st.lists(IDS.filter(lambda one: one != end_id), max_size=3))
    tokens = [number for text in texts for number in [*text, end_id]] + rest
    ends = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=3)))
    seq_len, num_held_out = data.draw(st.integers(1, 12)), data.draw(st.integers(0, 2))
    windows = cut_into_windows(len(tokens), seq_len=seq_len, num_held_out=num_held_out)
    # Without a sample to train on there is no run.
    assume(windows.num_samples)

    found = read(
        place(tokens, dtype=dtype, ends=ends, end_id=end_id, windows=windows, num_held_out=num_held_out),
        read_bytes=read_bytes,
    )

    everything = [*map(tuple, texts), *([tuple(rest)] if rest else [])]
    assert (found.num_tokens, found.num_documents) == (len(tokens), len(everything))
    assert found.longest == max(map(len, everything), default=0)
    assert found.length_counts == in_bars(found, [len(text) for text in everything])
    assert sum(found.length_counts) == found.num_documents
    assert (found.num_compared, found.num_copies) == (sum(map(bool, everything)), num_copies(everything))
    assert found.num_padding_tokens == 0
    # By all samples, as those who read them cut them.
    numbers = range(windows.num_samples + num_held_out)
    starts = map(windows.start_of, numbers)
    samples = [range(start, start + windows.window_tokens) for start in starts]
    first, num_cut = 0, 0
    for at, text in enumerate(everything):
        end = first + len(text) + (at < len(texts))
        num_cut += not any(sample.start <= first and end <= sample.stop for sample in samples)
        first = end
    assert found.num_cut == num_cut


@given(data=st.data(), read_bytes=st.sampled_from([4, 12, 64]))
def test_conversations_are_told_as_if_counted_one_by_one(data: st.DataObject, read_bytes: int) -> None:
    seq_len = data.draw(st.integers(1, 8))
    conversation = st.lists(st.integers(1, 300), min_size=1, max_size=seq_len)
    conversations = data.draw(st.lists(conversation, min_size=1, max_size=12))
    rows = Rows(seq_len)
    for one in conversations:
        mask = data.draw(st.lists(st.booleans(), min_size=len(one), max_size=len(one)))
        rows.add(flagged(one, [False, *mask[1:]]))
    rows.close()
    chat = Chat(seq_len=seq_len, num_trained=0, template="t")
    windows = rows_of(len(rows.tokens), seq_len=seq_len, num_held_out=0)

    found = read(place(rows.tokens, dtype="uint32", chat=chat, windows=windows), read_bytes=read_bytes)

    assert found.num_documents == len(conversations)
    assert found.num_padding_tokens == len(rows.tokens) - sum(map(len, conversations))
    assert found.length_counts == in_bars(found, list(map(len, conversations)))
    assert found.longest == max(map(len, conversations))
    assert found.num_cut is None


def test_copies_are_looked_for_among_as_many_documents_as_memory_is_kept_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(documents, "MOST_COMPARED", 3)
    found = read(place([1, 9, 2, 9, 1, 9, 1, 9, 2, 9], end_id=9))
    assert (found.num_documents, found.num_compared, found.num_copies) == (5, 3, 1)


def test_a_document_of_any_length_takes_no_more_memory_than_what_is_read_at_once() -> None:
    long = place([1] * 2**21, end_id=9)
    tracemalloc.start()
    try:
        assert read(long, read_bytes=2**16).longest == 2**21
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_reading_tells_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(documents, "PROGRESS_S", 0.0)
    found = place([1, 2, 3, 9, 5, 9], end_id=9)
    read(found)
    lines = capsys.readouterr().err.splitlines()
    said = f"longhaul data: {found.store.url}: read"
    assert lines == [f"{said} 4 of 6 tokens", f"{said} 6 of 6 tokens"]


def test_a_shard_that_is_gone_or_short_is_named() -> None:
    short = place([1, 2, 3, 9], end_id=9)
    short.store.put("0.bin", b"\1\0")
    with pytest.raises(DataError, match=r"0\.bin: is not there, or shorter than its index says"):
        read(short)
    short.store.delete("0.bin")
    with pytest.raises(DataError, match=r"0\.bin: is not there, or shorter"):
        read(short)
    assert excerpt(short, ByteTokenizer()) is None


def test_an_excerpt_is_the_beginning_of_the_first_document_and_steers_no_terminal() -> None:
    text = 'a "b"\x1b[2J\n\u202e\u00e9'
    tokens = [*text.encode(), 256, *b"other", 256]
    assert excerpt(place(tokens, end_id=256), ByteTokenizer()) == r'a "b"\x1b[2J\n\u202e' + "\u00e9"
    assert excerpt(place([*b"x" * 1000], end_id=256), ByteTokenizer()) == "x" * 64
    assert excerpt(place(tokens, end_id=256), None) is None
    rows = Rows(8)
    rows.add(flagged([*b"hi"], [False, True]))
    rows.add(flagged([*b"ho"], [False, True]))
    rows.close()
    chat = Chat(seq_len=8, num_trained=2, template="t")
    assert excerpt(place(rows.tokens, dtype="uint32", chat=chat), ByteTokenizer()) == "hi"
