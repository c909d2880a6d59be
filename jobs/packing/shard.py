"""Packs one piece of the input into one shard in the store, and what is held out of it into another."""

import hashlib
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from checkpointing.stores.contract import Store
from jobs.packing.documents import Text, head_of, texts_of
from jobs.packing.hold_out import HELD_OUT, HoldOut
from jobs.packing.long_texts import Parts
from jobs.packing.pieces import InputPiece
from jobs.packing.tokenizing import Tokenizer
from jobs.training.task.token_index import TokenDtype, TokenShard, Vocabulary

_CODES: dict[TokenDtype, str] = {"uint16": "H", "uint32": "I"}
# Enough to share among cores. A tokenizer takes some hundred bytes for each.
_TOGETHER_CHARACTERS = 2**18
# So often at once: a core that has done its share of one goes on with the next, and this thread with others.
_MOST_ASKED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A packed piece. ``shard`` is None if the piece holds no text.

    Of chat data, documents are conversations. ``num_trained`` tokens are an assistant's. ``num_cut``
    conversations lack their end, and ``num_left_out`` are not there. ``num_special`` times a text spells one
    of the tokenizer's special tokens. ``held_out`` is what of the piece is held out, if anything may be.
    """

    number: int
    num_documents: int
    shard: TokenShard | None
    num_trained: int = 0
    num_cut: int = 0
    num_left_out: int = 0
    num_special: int = 0
    held_out: "Packed | None" = None


def dtype_for(vocabulary: Vocabulary) -> TokenDtype:
    return "uint16" if vocabulary.size <= 2**16 else "uint32"


def pack_piece(
    piece: InputPiece, tokenizer: Tokenizer, column: str, store: Store, hold_out: HoldOut | None = None
) -> Packed:
    """Packs one piece. The shard's name contains its digest, so other bytes never overwrite it."""
    with ThreadPoolExecutor(_MOST_ASKED) as threads:
        to_train_on, held_out = _Side(tokenizer, threads), _Side(tokenizer, threads)
        for span in piece.spans:
            side: _Side | None = None
            # A long text may have begun in another piece.
            goes_on = span.kind == "text" and span.start > 0
            for text in texts_of(span, column):
                if side is None:
                    side = held_out if hold_out and hold_out.takes(head_of(span, text)) else to_train_on
                side.add(text, goes_on=goes_on)
                goes_on = not text.is_end
                if text.is_end:
                    side = None
        packed = to_train_on.packed(piece, store)
        return replace(packed, held_out=held_out.packed(piece, store, f"{HELD_OUT}/")) if hold_out else packed


class _Side:
    """The documents of a piece that are trained on, or those that are held out."""

    def __init__(self, tokenizer: Tokenizer, threads: Executor) -> None:
        self._tokenizer, self._threads = tokenizer, threads
        self._parts = Parts(tokenizer)
        self._ids = array(_CODES[dtype_for(tokenizer.vocabulary)])
        self._largest_id = self._num_documents = self._num_special = 0
        # Whole documents whose ids are still to be found, together; and those whose ids are being found.
        self._waiting: list[str] = []
        self._num_waiting = 0
        self._asked: deque[Future[Iterable[Sequence[int]]]] = deque()

    def add(self, text: Text, *, goes_on: bool) -> None:
        self._num_special += self._tokenizer.num_special(text.text)
        if self._num_waiting + len(text.text) > _TOGETHER_CHARACTERS:
            self._ask()
        if not goes_on and self._parts.is_whole(text):
            self._waiting.append(text.text)
            # Also of texts without a character there are not more than this.
            self._num_waiting += len(text.text) + 1
            return
        self._add_waiting()
        if not goes_on:
            self._begin()
        for ids in self._parts.ids(text):
            self._extend(ids)
        if text.is_end:
            self._end()

    def _ask(self) -> None:
        if len(self._asked) == _MOST_ASKED:
            self._add_first()
        self._asked.append(self._threads.submit(self._tokenizer.ids_of_each, self._waiting))
        self._waiting, self._num_waiting = [], 0

    def _add_first(self) -> None:
        for ids in self._asked.popleft().result():
            self._begin()
            self._extend(ids)
            self._end()

    def _add_waiting(self) -> None:
        self._ask()
        while self._asked:
            self._add_first()

    def _extend(self, ids: Sequence[int]) -> None:
        # Of a list, ``array`` makes one twice as fast as it extends one.
        self._ids += array(self._ids.typecode, ids)
        self._largest_id = max(self._largest_id, max(ids, default=0))

    def _begin(self) -> None:
        if self._tokenizer.begin_ids:
            self._extend(self._tokenizer.begin_ids)

    def _end(self) -> None:
        self._num_documents += 1
        if self._tokenizer.end_id is not None:
            self._extend([self._tokenizer.end_id])

    def packed(self, piece: InputPiece, store: Store, folder: str = "") -> Packed:
        self._add_waiting()
        for ids in self._parts.close():
            self._extend(ids)
        shard = stored(piece, self._ids, self._largest_id, store, folder)
        return Packed(
            number=piece.number,
            num_documents=self._num_documents if shard else 0,
            shard=shard,
            num_special=self._num_special,
        )


def stored(
    piece: InputPiece, tokens: "array[int]", largest_id: int, store: Store, folder: str = ""
) -> TokenShard | None:
    """Stores the tokens of a piece in ``folder``, which ends with a slash; None if there are none."""
    if not tokens:
        return None
    data = tokens.tobytes()
    digest = hashlib.sha256(data).hexdigest()
    shard = TokenShard(
        name=f"{piece.number:05}-{digest[:12]}.bin",
        num_tokens=len(tokens),
        sha256=digest,
        largest_id=largest_id,
    )
    store.put(folder + shard.name, data)
    return shard
