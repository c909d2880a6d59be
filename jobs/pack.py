"""Packs pieces on all nodes at once, with Ray Data. The story is ``jobs.packing.story``."""

import logging
from dataclasses import asdict, dataclass
from typing import Any

import ray.data

from checkpointing.store import StoreError, open_store
from jobs.packing.pieces import InputError, Piece
from jobs.packing.shard import Packed, pack_piece
from jobs.packing.tokenizing import Recipe
from jobs.training.token_index import TokenShard


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """``store`` is absolute."""

    pieces: tuple[Piece, ...]
    tokenizer: Recipe
    column: str
    store: str


def pack_pieces(work: Work) -> list[Packed]:
    """In the order of the pieces. Raises ``InputError`` or ``StoreError``: of several, the first piece's.

    Call it from a driver that is connected to Ray. A piece whose worker died is packed again.
    """
    _be_quiet()
    numbers = ray.data.range(len(work.pieces), override_num_blocks=len(work.pieces))
    rows = sorted(numbers.map(_pack, fn_kwargs={"work": work}).take_all(), key=lambda row: row["number"])
    for row in rows:
        if row["problem"]:
            raise (InputError if row["is_input"] else StoreError)(row["problem"])
    return [_packed(row) for row in rows]


def _pack(row: dict[str, Any], work: Work) -> dict[str, Any]:
    """What goes wrong travels as a value: raised, Ray would try again, and wrap it in its own words."""
    piece = work.pieces[row["id"]]
    answer = {"number": piece.number, "num_documents": 0, "problem": "", "is_input": False, **_NO_SHARD}
    try:
        packed = pack_piece(piece, work.tokenizer.open(), work.column, open_store(work.store))
    except (InputError, StoreError, OSError) as error:
        return {**answer, "problem": str(error), "is_input": not isinstance(error, StoreError)}
    shard = asdict(packed.shard) if packed.shard else {}
    return {**answer, "num_documents": packed.num_documents, **shard}


# Each column has one type in all rows.
_NO_SHARD = {"name": "", "num_tokens": 0, "sha256": "", "largest_id": 0}


def _packed(row: dict[str, Any]) -> Packed:
    shard = TokenShard(**{key: row[key] for key in _NO_SHARD}) if row["name"] else None
    return Packed(number=row["number"], num_documents=row["num_documents"], shard=shard)


def _be_quiet() -> None:
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
