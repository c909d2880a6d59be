"""The parsers of what ``longhaul pack`` reads: data in each format, conversations and their templates."""

import base64
import gzip
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import sentencepiece

from checkpointing.stores.memory import MemoryStore
from jobs.packing.chat.piece import pack_chat_piece
from jobs.packing.chat.recipe import ChatRecipe, ChatTemplate
from jobs.packing.chat.sandbox import Template
from jobs.packing.chat.spans import rendered
from jobs.packing.chat.template_file import CHATML, read_template
from jobs.packing.inputs.splits import DICT, INFO, INFOS, README, STATE, Wanted
from jobs.packing.pieces import InputError, cut_into_pieces
from jobs.packing.shard import pack_piece
from jobs.packing.sources import find_sources, in_split
from jobs.packing.tokenizing import ByteTokenizer, read_recipe
from tests.unit.chat_templates import MODELS
from tests.unit.fuzzing.child import Parser

SMALL_PIECE = 64
TABLE = {"id": [1, 2, 3], "text": ["one, two", 'a "quote"\nand a line', "ü € 😀"]}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "So."},
    {"role": "user", "content": "How?"},
    {"role": "assistant", "content": "Thus."},
]
RECORDS = [dict(zip(TABLE, row, strict=True)) for row in zip(*TABLE.values(), strict=True)]
CSV = b'id,text\r\n1,"one, two"\r\n2,"a ""quote""\nand a line"\r\n3,\xc3\xbc\r\n'
CHAT = b"\n".join(json.dumps({"messages": MESSAGES}).encode() for _ in range(2))
CONFIG = {"chat_template": CHATML, "eos_token": {"content": "</s>"}, "bos_token": "<s>"}
FIRST = "data-00000-of-00001.arrow"
STATES = json.dumps({"_data_files": [{"filename": FIRST}], "_indices_files": [], "_split": "train"}).encode()
INFO_OF_DATA = {"splits": {"train": {"name": "train", "num_bytes": 1}, "test": {"name": "test"}}}
CARD = b"""---
configs:
- {config_name: default, data_dir: data, data_files: [{split: train, path: [train-*, "**/*.csv"]}]}
- config_name: other
  data_files: test.jsonl
dataset_info: {splits: [{name: train}, {name: test}]}
---
# A data set
"""
CARD_NASTY: tuple[bytes, ...] = (
    b"../", b"/etc/passwd", b"**", b"*a*a*a*a*a*b", b"[", b"[!", b"&a ", b"*a", b"<<: ", b"!!python/name:x",
    b"---\n", b"data_files", b"split: ", b"path: ", b"{", b"null", b"1e999", b"\\", b"://",
)  # fmt: skip
RANKS = b"".join(
    base64.b64encode(token) + b" %d\n" % rank
    for rank, token in enumerate([*(bytes([byte]) for byte in range(256)), b"on", b"one", b" t", b" tw"])
)
RANKS_NASTY: tuple[bytes, ...] = (
    b"AA== 0\n", b" 100257\n", b" -1\n", b" 99999999999\n", b"= 1\n", b"b25l 300\n", b" \n", b"\r\n",
)  # fmt: skip
# What makes a template work for long, grow, or reach for what it must not have.
JINJA: tuple[bytes, ...] = (
    b"{% for a in range(99999) %}", b"{% endfor %}", b"{{ 'a' * 999999999 }}", b"{{ 10 ** 10 ** 10 }}",
    b"{% set ns = namespace(a='aa') %}", b"{% set ns.a = ns.a + ns.a %}",
    b"{% macro m() %}{{ m() }}{{ m() }}", b"{% endmacro %}{{ m() }}", b"{{ messages | tojson }}",
    b"{{ messages | sort(attribute='content') }}", b"{{ ''.__class__.__mro__ }}",
    b"{{ self.__init__.__globals__ }}", b"{{ cycler('a').next }}", b"{% include '/etc/passwd' %}",
    b"{% extends 'x' %}", b"{% generation %}", b"{% endgeneration %}", b"{{ '%99999999d' % 1 }}",
    b"{{ '{:>99999999}'.format(1) }}", b"{{ 'a'.center(99999999) }}", b"{{ x", b"{%", b"{#",
    b"{{ 'a' | indent(9999999) }}", b"{{ range(99999) | list | join(',') }}", b"{% if 1 %}", b"{% endif %}",
    b"{{ loop(messages) }}", b"{% for m in messages recursive %}", b"{% break %}", b"{{ lipsum(999) }}",
    b"{% set x = messages * 9999 %}", b"{% filter upper %}", b"{% call m() %}", b"{% raw %}",
    b"| reverse | list",
)  # fmt: skip


def packed(name: str, change: Callable[[bytes], bytes] = bytes) -> Callable[[bytes, Path], object]:
    """The bytes as a file of that name, in one piece and in as many as can be."""

    def written_and_packed(data: bytes, folder: Path) -> object:
        (folder / name).write_bytes(change(data))
        for piece_bytes in (2**20, SMALL_PIECE):
            for piece in cut_into_pieces(find_sources([folder / name], "text"), piece_bytes):
                pack_piece(piece, ByteTokenizer(), "text", MemoryStore())
        return None

    return written_and_packed


def as_chat(name: str) -> Callable[[bytes, Path], object]:
    """The bytes as a file of conversations."""
    recipe = ChatRecipe(template=ChatTemplate(where="chatml", text=CHATML), seq_len=64, too_long="cut")

    def written_and_packed(data: bytes, folder: Path) -> object:
        (folder / name).write_bytes(data)
        for piece in cut_into_pieces(find_sources([folder / name], "messages", is_chat=True)):
            pack_chat_piece(piece, ByteTokenizer(), "messages", recipe, MemoryStore())
        return None

    return written_and_packed


def as_template(data: bytes, folder: Path) -> object:
    """The bytes as the template of a small conversation."""
    (folder / "chat_template.jinja").write_bytes(data)
    found = read_template("bytes", str(folder / "chat_template.jinja"))
    template = replace(found, tokens=(("bos_token", "<s>"), ("eos_token", "</s>")))
    return rendered(Template(template), list(map(dict, MESSAGES)), "row 1")


def as_config(data: bytes, folder: Path) -> object:
    """The bytes as the configuration beside a tokenizer, with the template in it."""
    (folder / "tokenizer_config.json").write_bytes(data)
    template = read_template(str(folder / "tokenizer.json"), None)
    return rendered(Template(template), list(map(dict, MESSAGES)), "row 1")


def as_tokenizer(name: str) -> Callable[[bytes, Path], object]:
    """The bytes as a tokenizer's file, with which a text is encoded."""

    def written_and_used(data: bytes, folder: Path) -> object:
        (folder / name).write_bytes(data)
        tokenizer = read_recipe(str(folder / name), None).open()
        texts = ["", "one, two </s><|endoftext|>", 'a  "quote"\n\u00fc\u20ac\U0001f600\x00' * 20]
        return [tokenizer.text(list(ids)) for ids in tokenizer.ids_of_each(texts)]

    return written_and_used


def sentencepiece_model(kind: str) -> bytes:
    """A small model, without the tables of Unicode, which are most of a usual one."""
    sink = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["one, two and a quote", "and a line, and two lines"] * 20), model_writer=sink,
        vocab_size=300, hard_vocab_limit=False, byte_fallback=True, model_type=kind, minloglevel=2,
        normalization_rule_name="identity", num_threads=1,
    )  # fmt: skip
    return sink.getvalue()


def beside_data(name: str) -> Callable[[bytes, Path], object]:
    """The bytes as a file that tells which files of a data set are which split."""

    def written_and_read(data: bytes, folder: Path) -> object:
        for path in ("data/train-0.jsonl", "test.jsonl", "train/state.json", FIRST, f"train/{FIRST}"):
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_bytes(STATES)
        (folder / name).write_bytes(data)
        found = in_split(folder, Wanted())
        (folder / name).unlink()
        return found

    return written_and_read


def arrow(new: Callable[..., pyarrow.ipc.RecordBatchFileWriter]) -> bytes:
    table, sink = pyarrow.table(TABLE), pyarrow.BufferOutputStream()
    with new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return bytes(sink.getvalue().to_pybytes())


def parquet(table: pyarrow.Table) -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink, row_group_size=2)
    return bytes(sink.getvalue().to_pybytes())


def zstd(data: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())


def _parser(read: Callable[[bytes, Path], object], *samples: bytes, nasty: tuple[bytes, ...] = ()) -> Parser:
    return Parser(read=read, refusals=(InputError,), samples=samples, nasty=nasty)


_lines = b"\n".join(json.dumps(record).encode() for record in RECORDS)
_array = json.dumps(RECORDS).encode()
_file, _stream = arrow(pyarrow.ipc.new_file), arrow(pyarrow.ipc.new_stream)
_templates = [
    model.text(is_marked=is_marked).encode()
    for model in MODELS
    if model.has_system
    for is_marked in (False, True)
]

PACKING: Mapping[str, Parser] = {
    "packed-text": _parser(packed("a.txt"), "\n".join(TABLE["text"]).encode()),
    "packed-jsonl": _parser(packed("a.jsonl"), _lines),
    "packed-json": _parser(packed("a.json"), _array, json.dumps(RECORDS, indent=1).encode(), _lines),
    "packed-csv": _parser(packed("a.csv"), CSV),
    "packed-arrow": _parser(packed("a.arrow"), _file, _stream),
    "packed-parquet": _parser(packed("a.parquet"), parquet(pyarrow.table(TABLE))),
    "packed-gz": _parser(packed("a.jsonl.gz"), gzip.compress(_lines)),
    "packed-zst": _parser(packed("a.csv.zst"), zstd(CSV)),
    "in-gz": _parser(packed("a.json.gz", partial(gzip.compress, compresslevel=1)), _array),
    "in-zst": _parser(packed("a.csv.zst", zstd), CSV),
    "chat-jsonl": _parser(as_chat("a.jsonl"), CHAT),
    "chat-json": _parser(as_chat("a.json"), json.dumps([{"messages": MESSAGES}] * 2).encode()),
    "chat-parquet": _parser(as_chat("a.parquet"), parquet(pyarrow.table({"messages": [MESSAGES] * 3}))),
    "split-card": _parser(beside_data(README), CARD, CARD.replace(b"configs", b"x"), nasty=CARD_NASTY),
    "split-info": _parser(beside_data(INFO), json.dumps(INFO_OF_DATA).encode(), nasty=CARD_NASTY),
    "split-infos": _parser(
        beside_data(INFOS),
        json.dumps({"a": INFO_OF_DATA, "default": INFO_OF_DATA}).encode(),
        nasty=CARD_NASTY,
    ),
    "split-state": _parser(beside_data(STATE), STATES, nasty=CARD_NASTY),
    "split-dict": _parser(beside_data(DICT), b'{"splits": ["train", "test"]}', nasty=CARD_NASTY),
    "sentencepiece": _parser(
        as_tokenizer("tokenizer.model"), sentencepiece_model("bpe"), sentencepiece_model("unigram")
    ),
    "tiktoken": _parser(as_tokenizer("cl100k_base.tiktoken"), RANKS, nasty=RANKS_NASTY),
    "template": _parser(as_template, CHATML.encode(), *_templates, nasty=JINJA),
    "template-config": _parser(as_config, json.dumps(CONFIG).encode(), nasty=JINJA),
}
