"""A rank's place in a measurement of links. Pure."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSeat:
    """``meeting`` is as ``cluster.probe.meeting`` gives it; ``device`` is None on a CPU. All ranks of one
    measurement know its ``key``.
    """

    rank: int
    num_ranks: int
    meeting: str
    device: int | None
    deadline_s: float
    key: str = field(default="", repr=False)
