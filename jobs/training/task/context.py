"""The context that a launcher gives to the training core. No Ray in here.

The same core runs under Ray Train, under ``torchrun`` and inline in one process, because it knows nothing of
its launcher but this context.
"""

import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # A driver that follows runs needs these types without importing torch.
    import torch

Phase = Literal["setup", "warmup", "window", "gather", "profile", "trace", "teardown", "cooldown"]
# What ``RankStatus.doing`` says in the part of a cell's ``setup`` that grows with the model.
BUILDING = "building the model"


@dataclass(slots=True)
class RankStatus:
    """Where a rank is right now. The training thread writes it, a watching thread reads it.

    The training thread only writes plain attributes, so an update costs well under a microsecond.

    * ``step`` counts finished optimizer steps of the phase; ``num_steps`` is how many the phase expects.
    * ``num_batches`` counts the batches of all evaluations so far.
    * ``step_s`` is the host's time between the last two step boundaries.
    * ``doing`` is the phase's name in a long run's ledger, such as ``eval``. In a cell it is ``BUILDING``, or
      empty.
    * ``pace_s`` is how long the device last took for the test product of ``rank_speed``; 0 before the first.
    * ``utilization_pct`` is how busy the device was, ``power_watts`` its power; None without telemetry.
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
    power_watts: float | None = None


@dataclass(slots=True, kw_only=True)
class Context:
    """One rank's place. The process group is up before a context exists and outlives all its jobs.

    ``node`` is the cluster's name for the machine, or the host name without a cluster. ``key`` is the run's
    secret key, which only its ranks know; empty if the launcher gave none.
    """

    rank: int
    world_size: int
    local_rank: int
    device: "torch.device"
    node: str = field(default_factory=socket.gethostname)
    status: RankStatus = field(default_factory=RankStatus)
    key: bytes = field(default=b"", repr=False)
