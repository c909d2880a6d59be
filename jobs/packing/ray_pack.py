"""Packs pieces on all nodes in parallel, with Ray Data. ``jobs.packing.command`` calls it."""

import logging
from typing import Any

import ray.data
import ray.exceptions

from jobs.packing.pieces import PackingFailed
from jobs.packing.shard import Packed
from jobs.packing.tokenizing import alone_on_its_core
from jobs.packing.work import Work, results_of, row_of


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
    return results_of(rows)


def _pack(row: dict[str, Any], work: Work) -> dict[str, Any]:
    alone_on_its_core()
    return row_of(row["id"], work)


def _be_quiet() -> None:
    ray.data.DataContext.get_current().enable_progress_bars = False
    # Ray Data warns that progress bars are off.
    logging.getLogger("ray.data").setLevel(logging.ERROR)
