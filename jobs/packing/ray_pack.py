"""Packs pieces on all nodes in parallel, with Ray Data. ``jobs.packing.command`` calls it."""

import logging
import socket
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import ray.data
import ray.exceptions

from checkpointing.stores.contract import StoreError, Unavailable
from checkpointing.stores.opening import open_store
from jobs.packing.chat.piece import pack_chat_piece
from jobs.packing.chat.recipe import ChatRecipe
from jobs.packing.pieces import InputError, InputPiece, PackingFailed
from jobs.packing.shard import Packed, pack_piece
from jobs.packing.tokenizing import Tokenizer, TokenizerRecipe
from jobs.training.task.token_index import TokenShard


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The task of all workers. ``store`` is an absolute URL. ``chat`` None means text."""

    pieces: tuple[InputPiece, ...]
    tokenizer: TokenizerRecipe
    column: str
    store: str
    chat: ChatRecipe | None = None


def pack_pieces(work: Work, *, verbose: bool = False) -> list[Packed]:
    """Packs all pieces and returns the results in the order of the pieces.

    Raises ``InputError`` or ``Unavailable`` with the problem of the first piece that failed, or
    ``PackingFailed`` if Ray fails. Call it from a driver that is connected to Ray. A piece whose worker died
    is packed again.
    """
    if not verbose:
        _be_quiet()
    numbers = ray.data.range(len(work.pieces), override_num_blocks=len(work.pieces))
    try:
        rows = numbers.map(_pack, fn_kwargs={"work": work}).take_all()
    except ray.exceptions.RayError as error:
        raise PackingFailed(f"a worker failed: {str(error).strip().splitlines()[-1]}") from error
    rows.sort(key=lambda row: row["number"])
    for row in rows:
        if row["problem"]:
            raise (InputError if row["is_input"] else Unavailable)(row["problem"])
    return [_packed(row) for row in rows]


def _pack(row: dict[str, Any], work: Work) -> dict[str, Any]:
    """Packs one piece. Returns problems as values: Ray would retry a raised error and wrap its message."""
    piece = work.pieces[row["id"]]
    answer = {"number": piece.number, "problem": "", "is_input": False, **_NO_COUNTS, **_NO_SHARD}
    try:
        packed = _packed_piece(piece, work)
    except OSError as error:
        where = f"{error.filename}: can't be read on {socket.gethostname()} ({error.strerror})"
        return {**answer, "problem": f"{where}; every node must see it there", "is_input": True}
    except (InputError, StoreError) as error:
        return {**answer, "problem": str(error), "is_input": isinstance(error, InputError)}
    shard = asdict(packed.shard) if packed.shard else {}
    return {**answer, **{name: getattr(packed, name) for name in _NO_COUNTS}, **shard}


def _packed_piece(piece: InputPiece, work: Work) -> Packed:
    tokenizer, store = _tokenizer(work.tokenizer), open_store(work.store)
    if work.chat:
        return pack_chat_piece(piece, tokenizer, work.column, work.chat, store)
    return pack_piece(piece, tokenizer, work.column, store)


@lru_cache(maxsize=1)
def _tokenizer(recipe: TokenizerRecipe) -> Tokenizer:
    """Opens a tokenizer once per worker: a worker packs many pieces, and a large vocabulary takes seconds."""
    return recipe.open()


# Ray Data needs the same type in all rows of a column.
_NO_COUNTS = {"num_documents": 0, "num_trained": 0, "num_cut": 0, "num_left_out": 0, "num_special": 0}
_NO_SHARD = {"name": "", "num_tokens": 0, "sha256": "", "largest_id": 0}


def _packed(row: dict[str, Any]) -> Packed:
    shard = TokenShard(**{key: row[key] for key in _NO_SHARD}) if row["name"] else None
    return Packed(number=row["number"], shard=shard, **{name: row[name] for name in _NO_COUNTS})


def _be_quiet() -> None:
    ray.data.DataContext.get_current().enable_progress_bars = False
    # Ray Data warns that progress bars are off.
    logging.getLogger("ray.data").setLevel(logging.ERROR)
