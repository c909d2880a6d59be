"""The context that a launcher gives to the training core. No Ray in here.

The same core runs under Ray Train, under ``torchrun`` and inline in one process, because it knows nothing of
its launcher but this context.
"""

import socket
from collections import deque
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Literal, Protocol

from checkpointing.saving.save import Tally

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
    * ``pace_s`` is how long the device last took for the test product of ``rank_speed``, ``copy_s`` for its
      test copy; 0 before the first.
    * ``tally`` is what the rank's saver tells of its saves; None without one.
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
    copy_s: float = 0.0
    tally: Tally | None = None
    utilization_pct: float | None = None
    power_watts: float | None = None


class Mark(Protocol):
    """An event in the work of a device."""

    def query(self) -> bool:
        """Whether the device has come to it. Does not wait."""


class DeviceMarks:
    """How far a rank's device is in its steps, which may be far behind what the host has launched.

    The training thread launches marks and a watching thread asks. A CPU is always as far as its host, so
    nothing is marked there.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._open: deque[tuple[int, int, Mark]] = deque()
        self._launched = self._passed = (-1, 0)

    def launch(self, step: int, mark: Mark) -> None:
        """Adds a mark of a place at which ``step`` is done: the first one at its end, others behind it."""
        with self._lock:
            self._pass_on()
            before, number = self._launched
            self._launched = (step, number + 1 if step == before else 0)
            self._open.append((*self._launched, mark))

    def passed(self) -> tuple[int, int] | None:
        """The last step that the device has done, and how many marks after it. None before the first."""
        with self._lock:
            self._pass_on()
            return None if self._passed[0] < 0 else self._passed

    def _pass_on(self) -> None:
        while self._open and self._open[0][2].query():
            *place, _ = self._open.popleft()
            self._passed = (place[0], place[1])


@dataclass(slots=True, kw_only=True)
class Context:
    """One rank's place. The process group is up before a context exists and outlives all its jobs.

    ``node`` is the cluster's name for the machine, or the host name without a cluster. ``domain`` is what
    fails together with it, by its label; empty if it has none. ``key`` is the run's secret key, which only
    its ranks know; empty if the launcher gave none.
    """

    rank: int
    world_size: int
    local_rank: int
    device: "torch.device"
    node: str = field(default_factory=socket.gethostname)
    domain: str = ""
    status: RankStatus = field(default_factory=RankStatus)
    marks: DeviceMarks = field(default_factory=DeviceMarks)
    key: bytes = field(default=b"", repr=False)
