"""Packs pieces one by one: in the driver if there is but one, in the workers of ``ray_pack`` otherwise."""

import socket
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from checkpointing.stores.contract import StoreError, Unavailable
from checkpointing.stores.opening import open_store
from jobs.packing.chat.recipe import ChatRecipe
from jobs.packing.hold_out import HoldOut
from jobs.packing.pieces import InputError, InputPiece, PackingFailed
from jobs.packing.shard import Packed, pack_piece
from jobs.packing.tokenizing import TokenizerRecipe
from jobs.training.task.token_index import TokenShard


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The task of all workers. ``store`` is an absolute URL. ``chat`` None means text."""

    pieces: tuple[InputPiece, ...]
    tokenizer: TokenizerRecipe
    column: str
    store: str
    chat: ChatRecipe | None = None
    hold_out: HoldOut | None = None


def pack_here(work: Work) -> list[Packed]:
    """Packs all pieces in this process; returns and raises what ``ray_pack.pack_pieces`` does."""
    try:
        rows = [row_of(number, work) for number in range(len(work.pieces))]
    except Exception as error:  # whatever would have ended a worker
        raise PackingFailed(f"packing failed: {type(error).__name__}: {error}".splitlines()[0]) from error
    return results_of(rows)


def row_of(number: int, work: Work) -> dict[str, Any]:
    """Packs one piece. Returns problems as values: Ray would retry a raised error and wrap its message."""
    piece = work.pieces[number]
    answer = {"number": piece.number, "problem": "", "is_input": False, "is_split": False, **_NOTHING}
    try:
        packed = _packed_piece(piece, work)
    except OSError as error:
        where = f"{error.filename}: can't be read on {socket.gethostname()} ({error.strerror})"
        return {**answer, "problem": f"{where}; every node must see it there", "is_input": True}
    except (InputError, StoreError) as error:
        return {**answer, "problem": str(error), "is_input": isinstance(error, InputError)}
    held_out = {_OF_HELD_OUT + name: value for name, value in _values(packed.held_out).items()}
    return {**answer, "is_split": packed.held_out is not None, **_values(packed), **held_out}


def results_of(rows: Iterable[dict[str, Any]]) -> list[Packed]:
    """The results in the order of the pieces; raises the problem of the first piece that failed."""
    in_order = sorted(rows, key=lambda row: int(row["number"]))
    for row in in_order:
        if row["problem"]:
            raise (InputError if row["is_input"] else Unavailable)(row["problem"])
    return [_packed(row) for row in in_order]


def _packed_piece(piece: InputPiece, work: Work) -> Packed:
    tokenizer, store = work.tokenizer.open(), open_store(work.store)
    if work.chat:
        from jobs.packing.chat.piece import pack_chat_piece

        return pack_chat_piece(piece, tokenizer, work.column, work.chat, store, work.hold_out)
    return pack_piece(piece, tokenizer, work.column, store, work.hold_out)


# Ray Data needs the same type in all rows of a column.
_NO_COUNTS = {"num_documents": 0, "num_trained": 0, "num_cut": 0, "num_left_out": 0, "num_special": 0}
_NO_SHARD = {"name": "", "num_tokens": 0, "sha256": "", "largest_id": 0}


_OF_HELD_OUT = "held_out_"
_NOTHING = {
    prefix + name: value
    for prefix in ("", _OF_HELD_OUT)
    for name, value in {**_NO_COUNTS, **_NO_SHARD}.items()
}


def _values(packed: Packed | None) -> dict[str, Any]:
    if packed is None:
        return {}
    shard = asdict(packed.shard) if packed.shard else {}
    return {**{name: getattr(packed, name) for name in _NO_COUNTS}, **shard}


def _packed(row: dict[str, Any], prefix: str = "") -> Packed:
    shard = TokenShard(**{key: row[prefix + key] for key in _NO_SHARD}) if row[prefix + "name"] else None
    return Packed(
        number=row["number"],
        shard=shard,
        held_out=_packed(row, _OF_HELD_OUT) if row["is_split"] and not prefix else None,
        **{name: row[prefix + name] for name in _NO_COUNTS},
    )
