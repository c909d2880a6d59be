"""The small surface through which the training core sees the world around it. No Ray in here.

The same core runs under Ray Train, under ``torchrun`` and inline in one process, because all
it knows of them is the context that they make.
"""

import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # a driver that follows runs needs these types and no torch
    import torch

Phase = Literal["setup", "warmup", "window", "gather", "teardown", "cooldown"]


@dataclass(slots=True)
class RankStatus:
    """Where a rank is right now. The training thread writes it, a watching thread reads it.

    Plain attribute writes only, so that telling costs a step well under a microsecond.
    ``step`` counts finished optimizer steps of the phase, ``num_steps`` how many it expects. ``num_batches``
    counts those of all evaluations so far.
    ``step_s`` is the host's time between the last two step borders. ``doing`` is what a long run's ledger
    calls it, such as ``eval``. ``pace_s`` is how long its device last took for a product of its own, 0 before
    it was timed; ``utilization_pct`` how busy it was, None where nobody tells.
    """

    run_id: str = ""
    phase: Phase = "setup"
    step: int = 0
    num_steps: int = 0
    num_batches: int = 0
    step_s: float = 0.0
    memory_bytes: int = 0
    doing: str = ""
    pace_s: float = 0.0
    utilization_pct: float | None = None


@dataclass(slots=True, kw_only=True)
class Context:
    """One rank's place. The process group is up before a context exists and outlives all its jobs.

    ``node`` is the cluster's name for the machine, where there is a cluster. ``key`` is the run's, which all
    its ranks know and nobody else; empty where nobody gave them one.
    """

    rank: int
    world_size: int
    local_rank: int
    device: "torch.device"
    node: str = field(default_factory=socket.gethostname)
    pulse: RankStatus = field(default_factory=RankStatus)
    key: bytes = field(default=b"", repr=False)
