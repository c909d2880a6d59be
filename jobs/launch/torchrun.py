"""What ``torchrun`` says of this process, where it started it. Needs no torch."""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which of how many ranks this process is; one of one unless ``torchrun`` says otherwise."""

    rank: int
    world_size: int
    local_rank: int

    @classmethod
    def of_this_process(cls) -> "Place":
        return cls(
            rank=int(os.environ.get("RANK", "0")),
            world_size=int(os.environ.get("WORLD_SIZE", "1")),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        )


def is_under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ
