"""Checks before anything is loaded that all ranks see the same store."""

from checkpointing.generations.repository import Repository
from checkpointing.stores.contract import StoreError
from jobs.training.ranks.gathering import gather
from jobs.training.task.context import Context


class NotThere(Exception):
    """A node does not see the run's checkpoints in the store, and other nodes do."""


def check_store(own_term: int, context: Context, repository: Repository) -> None:
    """Checks that every rank sees this attempt's lease, ``own_term``.

    A directory on one node is no store for several nodes.

    If some rank sees generations, the store was shared before, so the fault is with the nodes that don't see
    it: only their ranks raise ``NotThere``. Otherwise all ranks raise ``StoreError``.
    """
    view = repository.refresh()
    seen = gather((view.term, bool(view.generations)), tuple[int, bool])
    blind = [rank for rank, (term, _) in enumerate(seen) if term < own_term]
    if not blind:
        return
    if not any(has_generations for _, has_generations in seen):
        raise StoreError(
            f"store: {repository.store.url}: ranks {blind} do not see what the others see there; a run over "
            "several nodes needs object storage, or a directory that all of them share"
        )
    if context.rank in blind:
        raise NotThere(
            f"store: {repository.store.url}: the run's checkpoints, which other ranks see, are not there on "
            "this node; is what should be mounted there?"
        )
