"""What ``torchrun`` says of this process, where it started it. Needs no torch."""

import os
from dataclasses import dataclass, field

_KEY = "LONGHAUL_RUN_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherPlace:
    """Which of how many ranks this process is; one of one unless ``torchrun`` says otherwise.

    The rendezvous is torchrun's, open to whoever can connect to it. If the user's launcher gives all ranks
    one random text in ``LONGHAUL_RUN_KEY``, it is their ``key``: a rank that does not know it is found out
    before it is listened to. Without it, nobody else may be able to connect to the rendezvous.
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
