"""The place of this process among the ranks that the user's own launcher has started."""

import os

import torch
import torch.distributed as dist

from jobs.training.task.context import Context


class NoGroup(Exception):
    """The launcher has started several ranks, and they have no process group."""


def this_rank(device: torch.device, key: bytes = b"") -> Context:
    """This process's context: as in the default process group, or alone without one."""
    if not dist.is_initialized():
        num_ranks = int(os.environ.get("WORLD_SIZE", "1"))
        if num_ranks > 1:
            raise NoGroup(
                f"this is one of {num_ranks} ranks, and they have no process group; call "
                "torch.distributed.init_process_group first"
            )
        return Context(rank=0, world_size=1, local_rank=0, device=device, key=key)
    return Context(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        device=device,
        key=key,
    )
