"""Before anything is loaded: each rank has a device of the right kind, and all see the same store."""

import torch.distributed as dist

from checkpointing.repository import Repository
from checkpointing.store import StoreError
from jobs.training.context import Context
from jobs.training.devices import check_ranks
from jobs.training.identities import Expected
from jobs.training.task import Task


def prove_devices(task: Task, context: Context) -> None:
    expected = Expected(
        world_size=task.recipe.world_size,
        vendor="cpu" if task.simulated else task.vendor,
        may_mix_devices=task.may_mix_devices,
    )
    check_ranks(context, expected)


def prove_store(task: Task, context: Context, repository: Repository) -> None:
    """Every rank must see this attempt's lease: a directory of one node's own is no store for several."""
    terms = [repository.refresh().term] * context.world_size
    dist.all_gather_object(terms, terms[context.rank])
    if blind := [rank for rank, term in enumerate(terms) if term < task.term]:
        raise StoreError(
            f"store: {repository.store.url}: ranks {blind} do not see what rank 0 sees there; a run over "
            "several nodes needs object storage, or a directory that all of them share"
        )
