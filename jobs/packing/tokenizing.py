"""Turns text into ids: bytes, or the ids of a tokenizer's file, such as a ``tokenizer.json``."""

import hashlib
import os
import re
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from cluster.yaml_file import read_named
from jobs.packing.models.sentencepiece_model import SentencePieceTokenizer
from jobs.packing.models.telling import TokenizerKind, file_in, kind_of
from jobs.packing.models.tiktoken_file import TiktokenTokenizer
from jobs.packing.pieces import InputError
from jobs.training.task.token_index import Vocabulary

# The names of the end token in known tokenizers, the most specific names first.
_USUAL_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>")
_BYTES_END = 256
# The largest tokenizers known have some thirty megabytes.
_MOST_BYTES = 256 << 20


class Tokenizer(Protocol):
    """Turns text into ids. ``begin_ids`` stand before each document. ``end_id`` is appended to it; with None
    nothing is appended.
    """

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def begin_ids(self) -> Sequence[int]: ...

    @property
    def end_id(self) -> int | None: ...

    def ids(self, text: str) -> Sequence[int]: ...

    def ids_of_each(self, texts: Sequence[str]) -> Iterable[Sequence[int]]:
        """As ``ids`` of each, on as many cores as there are, unless ``alone_on_its_core`` was called."""

    def num_special(self, text: str) -> int:
        """How often ``text`` spells a special token."""

    def text(self, ids: Sequence[int]) -> str:
        """What the ids stand for. Ids of half a character, or of none, become something."""

    def ids_with_offsets(self, text: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        """The ids, and for each the characters of ``text`` that it stands for: the first, and the next one
        behind the last.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerRecipe:
    """Opens the same tokenizer on any node. ``content`` is that of the tokenizer's file; None means bytes.

    Chat templates write their ends themselves, so without ``needs_end`` a tokenizer may have none. A text
    that spells a special token becomes that token only then, or with ``reads_special``.
    """

    name: str
    content: bytes | None = None
    kind: TokenizerKind = "json"
    end_token: str | None = None
    needs_end: bool = True
    reads_special: bool = False

    def open(self) -> Tokenizer:
        return _opened(self)


@lru_cache(maxsize=1)
def _opened(recipe: TokenizerRecipe) -> Tokenizer:
    """Once per process: a worker packs many pieces, and a large vocabulary takes seconds."""
    if recipe.content is None:
        return ByteTokenizer()
    name, content, end_token = recipe.name, recipe.content, recipe.end_token
    match recipe.kind:
        case "json":
            return FileTokenizer(recipe)
        case "sentencepiece":
            return SentencePieceTokenizer(name, content, end_token, needs_end=recipe.needs_end)
        case "tiktoken":
            return TiktokenTokenizer(name, content, end_token, reads_special=recipe.reads_special)


def tokenizer_file(name: str) -> str:
    """The tokenizer's file, where ``name`` may be a folder that holds it, such as a downloaded model's."""
    folder = Path(name)
    return str(file_in(folder)) if name != "bytes" and folder.is_dir() else name


def read_recipe(
    name: str, end_token: str | None, *, needs_end: bool = True, reads_special: bool = False
) -> TokenizerRecipe:
    """Reads a tokenizer. Raises ``InputError`` if ``name`` is no usable tokenizer, or has no end token."""
    if name == "bytes":
        if end_token is not None:
            raise InputError(f"--end-token {end_token}: bytes have an end of their own; leave it out")
        return TokenizerRecipe(name=name)
    path = Path(name)
    if not path.name.isprintable():
        # It stands in the index, which is refused with such a name.
        raise InputError(f"--tokenizer {name!r}: has control characters in its name; rename the file")
    try:
        content = read_named(path, _MOST_BYTES)
    except OSError as error:
        raise InputError(
            f"--tokenizer {name}: can't be read ({error.strerror}); expected 'bytes' or a tokenizer.json"
        ) from None
    if len(content) > _MOST_BYTES:
        raise InputError(
            f"--tokenizer {name}: has more than the {_MOST_BYTES:,} bytes that are read; expected a "
            "tokenizer.json"
        )
    kind = kind_of(path, content)
    if kind == "sentencepiece" and reads_special:
        raise InputError("--special-tokens: sentencepiece reads none in text; leave it out")
    recipe = TokenizerRecipe(
        name=path.name,
        content=content,
        kind=kind,
        end_token=end_token,
        needs_end=needs_end,
        reads_special=reads_special,
    )
    recipe.open()
    return recipe


def alone_on_its_core() -> None:
    """Says that there is a worker on each core already. To be called before a tokenizer's first text."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class ByteTokenizer:
    """Each byte of UTF-8 is an id; 256 ends a document."""

    vocabulary = Vocabulary(
        tokenizer="bytes",
        digest=hashlib.sha256(b"longhaul bytes 1").hexdigest(),
        size=_BYTES_END + 1,
        end_id=_BYTES_END,
    )
    begin_ids: Sequence[int] = ()
    end_id: int | None = _BYTES_END

    def ids(self, text: str) -> Sequence[int]:
        # Widens each byte to two without a Python loop.
        return array("H", text.encode().decode("latin-1").encode("utf-16-le"))

    def ids_of_each(self, texts: Sequence[str]) -> Iterable[Sequence[int]]:
        return map(self.ids, texts)

    def num_special(self, text: str) -> int:
        return 0

    def text(self, ids: Sequence[int]) -> str:
        return bytes(number for number in ids if number < _BYTES_END).decode(errors="replace")

    def ids_with_offsets(self, text: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        offsets = [(at, at + 1) for at, character in enumerate(text) for _ in character.encode()]
        return self.ids(text), offsets


class FileTokenizer:
    """Uses a ``tokenizer.json``, without its special tokens except the one that ends a document.

    A text is encoded completely: the file's truncation and padding are switched off.
    """

    def __init__(self, recipe: TokenizerRecipe) -> None:
        self._tokenizer = _load(recipe)
        self.end_id = self._end_id(recipe)
        self.vocabulary = Vocabulary(
            tokenizer=recipe.name,
            digest=hashlib.sha256(recipe.content or b"").hexdigest(),
            size=max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
            end_id=self.end_id,
        )
        self.begin_ids = self._begin_ids()
        if (largest := max(self.begin_ids, default=-1)) >= self.vocabulary.size:
            raise InputError(
                f"--tokenizer {recipe.name}: puts the id {largest:,} before a text, but has only "
                f"{self.vocabulary.size:,}; fetch it again"
            )
        self._tokenizer.encode_special_tokens = recipe.needs_end and not recipe.reads_special
        added = self._tokenizer.get_added_tokens_decoder().values()
        special = sorted((one.content for one in added if one.special), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special))) if special else None

    def ids(self, text: str) -> Sequence[int]:
        [ids] = self.ids_of_each([text])
        return ids

    def ids_of_each(self, texts: Sequence[str]) -> Iterable[Sequence[int]]:
        try:
            # It has the same ids as ``encode_batch``, and finds no places of them in the text.
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except Exception as error:  # the library raises plain Exception, such as of an unknown word
            raise InputError(
                f"--tokenizer {self.vocabulary.tokenizer}: can't take a text ({error!s:.80}); fetch it again"
            ) from None
        return (encoding.ids for encoding in encodings)

    def num_special(self, text: str) -> int:
        return len(self._special.findall(text)) if self._special else 0

    def text(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def ids_with_offsets(self, text: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def _begin_ids(self) -> Sequence[int]:
        """The special tokens that the file puts before a text, such as a bos. One that is the end as well
        would make a document of its own.
        """
        with suppress(Exception):  # the library raises plain Exception, such as of an unknown word
            some = self._tokenizer.encode("a", add_special_tokens=True)
            num_before = some.special_tokens_mask.index(0)
            return [number for number in some.ids[:num_before] if number != self.end_id]
        return ()

    def _end_id(self, recipe: TokenizerRecipe) -> int | None:
        candidates = (recipe.end_token,) if recipe.end_token else _USUAL_ENDS
        found = (self._tokenizer.token_to_id(token) for token in candidates)
        end_id: int | None = next((number for number in found if number is not None), None)
        if end_id is None and recipe.end_token:
            raise InputError(f"--end-token {recipe.end_token}: {recipe.name} has no such token")
        if end_id is None and recipe.needs_end:
            raise InputError(
                f"--tokenizer {recipe.name}: has none of the usual tokens that end a document "
                f"({', '.join(_USUAL_ENDS)}); name its own with --end-token"
            )
        return end_id


def _load(recipe: TokenizerRecipe) -> Any:
    try:
        from tokenizers import Tokenizer as HuggingFaceTokenizer
    except ImportError:
        raise InputError(
            f"--tokenizer {recipe.name}: needs the package tokenizers; install it, or use bytes"
        ) from None
    try:
        tokenizer = HuggingFaceTokenizer.from_str((recipe.content or b"").decode())
    except BaseException as error:  # the library raises plain Exception for a bad file, or panics
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise InputError(f"--tokenizer {recipe.name}: is no tokenizer.json ({error})") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
