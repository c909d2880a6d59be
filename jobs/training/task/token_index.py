"""The index file beside token shards: names the shards, their order and the tokenizer. Pure.

``index.json`` is written last, so if it exists, its shards are complete. All shards together are one long row
of tokens, in the order of the index. Every field of an index is checked before it is used.

Chat data lie in rows of ``seq_len`` tokens, each an id and two flags in 32 bits. A conversation is whole in
one row. Its first token has ``BEGINS``. Tokens that a model should learn to say have ``TRAINED``. What fills
a row up begins with ``BEGINS`` too and is never trained on.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any, Literal

from checkpointing.stores.bounded import excess_of
from checkpointing.stores.contract import is_name

INDEX = "index.json"
# The end of the names of Parquet files of ids, which are shards too.
PARQUET = ".parquet"
# Those of MDS shards: as they are, and compressed.
MDS = (".mds", ".mds.zstd")
# Shards whose ids are decoded.
DECODED = (PARQUET, *MDS)
TokenDtype = Literal["uint16", "uint32"]
DTYPE_BYTES: Mapping[TokenDtype, int] = {"uint16": 2, "uint32": 4}
_FORMAT = "longhaul tokens 1"
# As 1, but of chat data, whose tokens have flags.
_CHAT_FORMAT = "longhaul tokens 2"
TRAINED = 1 << 31
BEGINS = 1 << 30
ID_MASK = BEGINS - 1
# A million shards have half of the bytes, and nine keys and values each.
MOST_INDEX_BYTES, _MOST_INDEX_VALUES = 256 << 20, 10_000_000
_SHARE = re.compile("[0-9]{1,15}/[1-9][0-9]{0,15}")
# Of all tokens together, so that each number fits whatever counts with it.
_MOST_COUNT = 2**63
# The name of a tokenizer is that of a file.
_MOST_CHARS = 255

# Errors that a value of the wrong type raises where it is first used.
_NOT_AS_EXPECTED = (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError)


class DataError(Exception):
    """The data are not as described; the message says where, what was found and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShard:
    """One file of tokens; ``name`` is relative to the index. ``sha256`` and ``largest_id`` may be unknown."""

    name: str
    num_tokens: int
    sha256: str | None = None
    largest_id: int | None = None

    @property
    def is_named_by_its_bytes(self) -> bool:
        """Whether ``sha256`` is that of the file. That of a Parquet file is its footer's."""
        return self.sha256 is not None and not self.name.endswith(DECODED)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownShard:
    """What a run knows of a shard since its bytes were hashed: their SHA-256, and the versions under which
    the store had these bytes (see ``checkpointing.stores.versions``).
    """

    name: str
    sha256: str
    versions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The tokenizer that made the ids; all ids are below ``size``. Of text, ``begin_ids`` stand before each
    document, and ``end_id`` behind it; None if that is unknown.
    """

    tokenizer: str
    digest: str
    size: int
    end_id: int | None = None
    begin_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """Of chat data: the length of its rows, how many tokens are trained on, and the template's digest."""

    seq_len: int
    num_trained: int
    template: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Which side of a packing these are. ``share`` of all documents are held out, by their hash: those of a
    smaller share are among those of a larger one.

    Its fields are plain data, since ranks tell each other of their task.
    """

    numerator: int
    denominator: int
    is_held_out: bool

    @classmethod
    def of(cls, share: Fraction, *, is_held_out: bool) -> "Split":
        return cls(numerator=share.numerator, denominator=share.denominator, is_held_out=is_held_out)

    @property
    def share(self) -> Fraction:
        return Fraction(self.numerator, self.denominator)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIndex:
    """The shards in their order. ``vocabulary`` is None if the tokenizer that made the ids is unknown.

    ``chat`` is None if the shards are one row of plain ids, and ``split`` if nothing was held out.
    """

    dtype: TokenDtype
    shards: tuple[TokenShard, ...]
    vocabulary: Vocabulary | None = None
    chat: Chat | None = None
    split: Split | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # One by one, ten thousand shards take as long to pickle as to read.
        columns = tuple([getattr(shard, field.name) for shard in self.shards] for field in fields(TokenShard))
        return _from_columns, (columns, self.dtype, self.vocabulary, self.chat, self.split)

    @property
    def num_tokens(self) -> int:
        return sum(shard.num_tokens for shard in self.shards)

    @property
    def digest(self) -> str:
        """A digest that is the same for the same tokens in the same shards, wherever the shards lie."""
        parts = [f"{shard.name} {shard.num_tokens} {shard.sha256}" for shard in self.shards]
        kind = f"{self.dtype} chat {self.chat.seq_len}" if self.chat else self.dtype
        return hashlib.sha256("\n".join([kind, *parts]).encode()).hexdigest()


def _from_columns(columns: Sequence[Sequence[Any]], dtype: TokenDtype, *others: Any) -> TokenIndex:
    names = [field.name for field in fields(TokenShard)]
    shards = tuple(TokenShard(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True))
    vocabulary, chat, split = others
    return TokenIndex(dtype=dtype, shards=shards, vocabulary=vocabulary, chat=chat, split=split)


def to_json(index: TokenIndex) -> bytes:
    """Encodes an index; the same index gives the same bytes."""
    body: dict[str, Any] = {
        "format": _CHAT_FORMAT if index.chat else _FORMAT,
        "dtype": index.dtype,
        "num_tokens": index.num_tokens,
        "vocabulary": index.vocabulary and asdict(index.vocabulary),
        **({"chat": asdict(index.chat)} if index.chat else {}),
        **({"split": _described(index.split)} if index.split else {}),
        "shards": [asdict(shard) for shard in index.shards],
    }
    return json.dumps(body, indent=1).encode() + b"\n"


def from_json(data: bytes, where: str) -> TokenIndex:
    """Decodes and checks an index. A shard needs only its name and its number of tokens.

    Raises ``DataError``, whose message begins with ``where``.
    """
    if excess := excess_of(data, most_values=_MOST_INDEX_VALUES):
        raise DataError(f"{where}: is no index of tokens (it holds {excess}); pack the data again")
    try:
        body = json.loads(data)
        version = body.get("format")
        if version not in (_FORMAT, _CHAT_FORMAT):
            raise DataError(
                f"{where}: its format is {version!r:.60}, expected {_FORMAT!r} or {_CHAT_FORMAT!r}; "
                "pack the data again"
            )
        index = TokenIndex(
            dtype=_dtype(body["dtype"]),
            shards=tuple(_shard(shard) for shard in body["shards"]),
            vocabulary=_vocabulary(body.get("vocabulary")),
            chat=_chat(body["chat"]) if version == _CHAT_FORMAT else None,
            split=_split(body.get("split")),
        )
        _check_whole(index, body.get("num_tokens"))
    except _NOT_AS_EXPECTED as error:
        raise DataError(
            f"{where}: is no index of tokens ({_text_of(error)}); pack the data again, "
            "or see docs/data.md for what belongs in it"
        ) from None
    return index


def _text_of(error: Exception) -> str:
    """Bounded, since it repeats what stands there."""
    return (f"{error} is missing" if isinstance(error, KeyError) else str(error))[:_MOST_CHARS]


def _dtype(value: object) -> TokenDtype:
    for known in DTYPE_BYTES:
        if value == known:
            return known
    raise ValueError(f"its dtype is {value!r:.60}, expected {' or '.join(DTYPE_BYTES)}")


def _shard(body: Mapping[str, Any]) -> TokenShard:
    shard = TokenShard(
        name=body["name"],
        num_tokens=body["num_tokens"],
        sha256=body.get("sha256"),
        largest_id=body.get("largest_id"),
    )
    if not isinstance(shard.name, str) or not is_name(shard.name):
        raise ValueError(f"{shard.name!r:.80} is not the name of a file below it")
    if not _is_count(shard.num_tokens):
        raise ValueError(f"{shard.name} has {shard.num_tokens!r} tokens")
    if shard.largest_id is not None and not _is_count(shard.largest_id):
        raise ValueError(f"{shard.name}'s largest id is {shard.largest_id!r}")
    if shard.sha256 is not None and not _is_line(shard.sha256):
        raise ValueError(f"{shard.name}'s sha256 is {shard.sha256!r:.80}")
    return shard


def _check_whole(index: TokenIndex, num_tokens: object) -> None:
    counts = Counter(shard.name for shard in index.shards)
    if repeated := sorted(name for name, count in counts.items() if count > 1):
        raise ValueError(f"{repeated[0]} is there twice")
    if not _is_count(index.num_tokens):
        raise ValueError(f"its shards have more than {_MOST_COUNT:,} tokens together")
    if num_tokens is not None and num_tokens != index.num_tokens:
        raise ValueError(f"its shards have {index.num_tokens} tokens together, but it says {num_tokens!r}")
    if index.chat:
        _check_rows(index, index.chat)


def _check_rows(index: TokenIndex, chat: Chat) -> None:
    if index.dtype != "uint32":
        raise ValueError(f"its dtype is {index.dtype!r}, expected 'uint32' of chat data")
    if chat.num_trained > index.num_tokens:
        raise ValueError(f"it is trained on {chat.num_trained:,} of its {index.num_tokens:,} tokens")
    for shard in index.shards:
        if shard.num_tokens % chat.seq_len:
            raise ValueError(f"{shard.name} has {shard.num_tokens} tokens, not whole rows of {chat.seq_len}")


def _chat(body: Mapping[str, Any]) -> Chat:
    chat = Chat(seq_len=body["seq_len"], num_trained=body["num_trained"], template=body["template"])
    if not _is_count(chat.seq_len) or chat.seq_len < 1 or not _is_count(chat.num_trained):
        raise ValueError(f"its chat is {dict(body)}")
    if not _is_line(chat.template):
        raise ValueError(f"the digest of its template is {chat.template!r}")
    return chat


def _described(split: Split) -> Mapping[str, object]:
    return {"share": str(split.share), "is_held_out": split.is_held_out}


def _split(body: Mapping[str, Any] | None) -> Split | None:
    if body is None:
        return None
    if not (_SHARE.fullmatch(body["share"]) and isinstance(body["is_held_out"], bool)):
        raise ValueError(f"its split is {dict(body)}")
    if not 0 < (share := Fraction(body["share"])) < 1:
        raise ValueError(f"its split has the share {share}")
    return Split.of(share, is_held_out=body["is_held_out"])


def _vocabulary(body: Mapping[str, Any] | None) -> Vocabulary | None:
    if body is None:
        return None
    vocabulary = Vocabulary(
        tokenizer=body["tokenizer"],
        digest=body["digest"],
        size=body["size"],
        end_id=body.get("end_id"),
        begin_ids=_begin_ids(body.get("begin_ids")),
    )
    if not _is_count(vocabulary.size) or not _is_line(vocabulary.tokenizer):
        raise ValueError(f"its vocabulary is {dict(body)}")
    if not _is_line(vocabulary.digest):
        raise ValueError(f"the digest of its tokenizer is {vocabulary.digest!r}")
    if vocabulary.end_id is not None and not (
        _is_count(vocabulary.end_id) and vocabulary.end_id < vocabulary.size
    ):
        raise ValueError(f"the end_id of its vocabulary is {vocabulary.end_id!r}")
    if (largest := max(vocabulary.begin_ids or (-1,))) >= vocabulary.size:
        raise ValueError(
            f"the begin_ids of its vocabulary are up to {largest}, but its size is {vocabulary.size}"
        )
    return vocabulary


def _begin_ids(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not (isinstance(value, list) and all(map(_is_count, value))):
        raise ValueError(f"the begin_ids of its vocabulary are {value!r:.80}")
    return tuple(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_COUNT


def _is_line(value: object) -> bool:
    """Whether it is a short text that people may be shown: no other line, and nothing that steers a
    terminal.
    """
    return isinstance(value, str) and len(value) <= _MOST_CHARS and value.isprintable()
