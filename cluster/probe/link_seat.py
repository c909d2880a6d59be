"""A rank's place in a measurement of links. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """``meeting`` is an address as ``torch.distributed`` takes it; ``device`` is None on a CPU."""

    rank: int
    num_ranks: int
    meeting: str
    device: int | None
    deadline_s: float
