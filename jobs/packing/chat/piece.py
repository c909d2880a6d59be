"""Packs one piece of chat data into one shard in the store."""

from collections.abc import Iterator
from functools import lru_cache

from checkpointing.stores.contract import Store
from jobs.packing.chat.conversations import conversation
from jobs.packing.chat.masks import trained
from jobs.packing.chat.recipe import ChatRecipe, ChatTemplate
from jobs.packing.chat.rows import Rows, flagged
from jobs.packing.chat.sandbox import Template
from jobs.packing.chat.spans import rendered
from jobs.packing.documents import Place, values_of
from jobs.packing.pieces import InputError, InputPiece
from jobs.packing.shard import Packed, stored
from jobs.packing.tokenizing import Tokenizer
from jobs.training.task.token_index import ID_MASK, TRAINED


def pack_chat_piece(
    piece: InputPiece, tokenizer: Tokenizer, column: str, recipe: ChatRecipe, store: Store
) -> Packed:
    """Packs one piece, as ``pack_piece`` does with text."""
    rows = Rows(recipe.seq_len)
    counts = {"num_documents": 0, "num_trained": 0, "num_cut": 0, "num_left_out": 0}
    for where, value in _values(piece, column):
        tokens = _tokens(value, column, where, tokenizer, recipe.template)
        fitting = _fitting(tokens, recipe, where)
        num_trained = sum(token >= TRAINED for token in fitting)
        if not num_trained:
            counts["num_left_out"] += 1
            continue
        rows.add(fitting)
        counts["num_documents"] += 1
        counts["num_trained"] += num_trained
        counts["num_cut"] += len(fitting) < len(tokens)
    rows.close()
    largest_id = max((token & ID_MASK for token in rows.tokens), default=0)
    return Packed(number=piece.number, shard=stored(piece, rows.tokens, largest_id, store), **counts)


def _values(piece: InputPiece, column: str) -> Iterator[tuple[Place, object]]:
    for span in piece.spans:
        yield from values_of(span, column)


def _tokens(
    value: object, column: str, where: Place, tokenizer: Tokenizer, template: ChatTemplate
) -> list[int]:
    messages = conversation(value, column, where)
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
