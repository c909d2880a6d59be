"""Packs one piece of chat data into one shard in the store."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from checkpointing.stores.contract import Store
from jobs.packing.chat.conversations import Message, conversation
from jobs.packing.chat.masks import trained
from jobs.packing.chat.recipe import ChatRecipe, ChatTemplate
from jobs.packing.chat.rows import Rows, flagged
from jobs.packing.chat.sandbox import Template
from jobs.packing.chat.spans import rendered
from jobs.packing.documents import Place, values_of
from jobs.packing.hold_out import HELD_OUT, HoldOut
from jobs.packing.pieces import InputError, InputPiece
from jobs.packing.shard import Packed, stored
from jobs.packing.tokenizing import Tokenizer
from jobs.training.task.token_index import ID_MASK, TRAINED


def pack_chat_piece(
    piece: InputPiece,
    tokenizer: Tokenizer,
    column: str,
    recipe: ChatRecipe,
    store: Store,
    hold_out: HoldOut | None = None,
) -> Packed:
    """Packs one piece, as ``pack_piece`` does with text."""
    to_train_on, held_out = _Side(recipe), _Side(recipe)
    for where, value in _values(piece, column):
        messages = conversation(value, column, where)
        side = held_out if hold_out and hold_out.takes(_head_of(messages)) else to_train_on
        side.add(_tokens(messages, where, tokenizer, recipe.template), where)
    packed = to_train_on.packed(piece, store)
    return replace(packed, held_out=held_out.packed(piece, store, f"{HELD_OUT}/")) if hold_out else packed


class _Side:
    """The conversations of a piece that are trained on, or those that are held out."""

    def __init__(self, recipe: ChatRecipe) -> None:
        self._recipe = recipe
        self._rows = Rows(recipe.seq_len)
        self._counts: dict[str, Any] = {"num_documents": 0, "num_trained": 0, "num_cut": 0, "num_left_out": 0}

    def add(self, tokens: list[int], where: Place) -> None:
        fitting = _fitting(tokens, self._recipe, where)
        num_trained = sum(token >= TRAINED for token in fitting)
        if not num_trained:
            self._counts["num_left_out"] += 1
            return
        self._rows.add(fitting)
        self._counts["num_documents"] += 1
        self._counts["num_trained"] += num_trained
        self._counts["num_cut"] += len(fitting) < len(tokens)

    def packed(self, piece: InputPiece, store: Store, folder: str = "") -> Packed:
        self._rows.close()
        tokens = self._rows.tokens
        largest_id = max((token & ID_MASK for token in tokens), default=0)
        shard = stored(piece, tokens, largest_id, store, folder)
        return Packed(number=piece.number, shard=shard, **self._counts)


def _head_of(messages: list[Message]) -> bytes:
    """Stands for the whole conversation: many may begin with the same long words of a system's.

    Who speaks and what is said alone count: ids, weights and dates of messages make no other conversation,
    nor does the format or the order of keys.
    """
    spoken = [(message.get("role"), message.get("content")) for message in messages]
    return hashlib.sha256(json.dumps(spoken, sort_keys=True, default=str).encode()).digest()


def _values(piece: InputPiece, column: str) -> Iterator[tuple[Place, object]]:
    for span in piece.spans:
        yield from values_of(span, column)


def _tokens(messages: list[Message], where: Place, tokenizer: Tokenizer, template: ChatTemplate) -> list[int]:
    found = rendered(_compiled(template), messages, where)
    ids, offsets = tokenizer.ids_with_offsets(found.text)
    tokens = flagged(ids, trained(found, offsets)) if ids else []
    if not any(token >= TRAINED for token in tokens):
        raise InputError(
            f"{where}: the chat template writes no words of an assistant's; use another with --chat-template"
        )
    return tokens


def _fitting(tokens: list[int], recipe: ChatRecipe, where: Place) -> list[int]:
    """What is used of a conversation: all, its beginning, or nothing."""
    if len(tokens) <= recipe.seq_len:
        return tokens
    if recipe.too_long == "refuse":
        raise InputError(
            f"{where}: has {len(tokens):,} tokens, but a row has {recipe.seq_len:,} (--seq-len); raise that, "
            "shorten the conversation, or use --too-long cut or --too-long leave-out"
        )
    return tokens[: recipe.seq_len] if recipe.too_long == "cut" else []


@lru_cache(maxsize=1)
def _compiled(template: ChatTemplate) -> Template:
    return Template(template)
