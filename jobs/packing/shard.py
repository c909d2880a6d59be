"""Packs one piece of the input into one shard in the store."""

import hashlib
from array import array
from dataclasses import dataclass

from checkpointing.stores.contract import Store
from jobs.packing.documents import texts_of
from jobs.packing.long_texts import Parts
from jobs.packing.pieces import InputPiece
from jobs.packing.tokenizing import Tokenizer
from jobs.training.task.token_index import TokenDtype, TokenShard, Vocabulary

_CODES: dict[TokenDtype, str] = {"uint16": "H", "uint32": "I"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A packed piece. ``shard`` is None if the piece holds no text.

    Of chat data, documents are conversations. ``num_trained`` tokens are an assistant's. ``num_cut``
    conversations lack their end, and ``num_left_out`` are not there. ``num_special`` times a text spells one
    of the tokenizer's special tokens.
    """

    number: int
    num_documents: int
    shard: TokenShard | None
    num_trained: int = 0
    num_cut: int = 0
    num_left_out: int = 0
    num_special: int = 0


def dtype_for(vocabulary: Vocabulary) -> TokenDtype:
    return "uint16" if vocabulary.size <= 2**16 else "uint32"


def pack_piece(piece: InputPiece, tokenizer: Tokenizer, column: str, store: Store) -> Packed:
    """Packs one piece. The shard's name contains its digest, so other bytes never overwrite it."""
    ids = array(_CODES[dtype_for(tokenizer.vocabulary)])
    num_documents = num_special = 0
    parts = Parts(tokenizer)
    for text in (text for span in piece.spans for text in texts_of(span, column)):
        num_special += tokenizer.num_special(text.text)
        for found in parts.ids(text):
            ids.extend(found)
        if text.is_end:
            num_documents += 1
            if tokenizer.end_id is not None:
                ids.append(tokenizer.end_id)
    for found in parts.close():
        ids.extend(found)
    shard = stored(piece, ids, max(ids, default=0), store)
    return Packed(
        number=piece.number,
        num_documents=num_documents if shard else 0,
        shard=shard,
        num_special=num_special,
    )


def stored(piece: InputPiece, tokens: "array[int]", largest_id: int, store: Store) -> TokenShard | None:
    """Stores the tokens of a piece; None if there are none."""
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
    store.put(shard.name, data)
    return shard
