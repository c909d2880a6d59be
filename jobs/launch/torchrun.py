"""What ``torchrun`` says about this process, if it started it. Needs no torch."""

import os
from dataclasses import dataclass, field

_KEY = "LONGHAUL_RUN_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherPlace:
    """The rank of this process and the number of ranks; rank 0 of 1 unless ``torchrun`` says otherwise.

    The rendezvous is torchrun's, open to every process that can connect to it. The user's launcher may give
    all ranks one random text in ``LONGHAUL_RUN_KEY``: their ``key``. A rank that does not know the key is
    rejected before anything it sends is used. Without a key, the network must keep all others from the
    rendezvous.
    """

    rank: int
    world_size: int
    local_rank: int
    is_of_one_machine: bool = True
    key: bytes = field(default=b"", repr=False)

    @classmethod
    def of_this_process(cls) -> "LauncherPlace":
        return cls(
            rank=int(os.environ.get("RANK", "0")),
            world_size=int(os.environ.get("WORLD_SIZE", "1")),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            is_of_one_machine=os.environ.get("LOCAL_WORLD_SIZE", "1") == os.environ.get("WORLD_SIZE", "1"),
            key=os.environ.get(_KEY, "").encode(),
        )


def is_under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ
