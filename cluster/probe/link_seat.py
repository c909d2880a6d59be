"""The place of one rank in a measurement of links. Pure."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSeat:
    """One rank's place. ``meeting`` comes from ``cluster.probe.meeting``; ``device`` is None on a CPU.

    All ranks of one measurement know its ``key``.
    """

    rank: int
    num_ranks: int
    meeting: str
    device: int | None
    deadline_s: float
    key: str = field(default="", repr=False)
