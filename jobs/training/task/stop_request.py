"""A request that a run saves and ends before its last step. Pure.

A stop request may come at any moment; the ranks agree on the step boundary at which they follow it.
"""

from dataclasses import dataclass
from typing import Literal

# "move on": save and end; another attempt continues the run. "stop": save and end; no attempt follows.
Aim = Literal["move on", "stop"]
_BY_STRENGTH: tuple[Aim, ...] = ("move on", "stop")
STRONGEST = len(_BY_STRENGTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """``why`` tells people where the request came from, such as "Ctrl-C"."""

    aim: Aim
    why: str


def strength(stop_request: StopRequest | None) -> int:
    """A number that grows with what the request asks for, 0 without a request; the strongest is followed."""
    return 0 if stop_request is None else 1 + _BY_STRENGTH.index(stop_request.aim)


def aim_of(strength: int) -> Aim | None:
    return _BY_STRENGTH[strength - 1] if strength else None


def stronger(one: StopRequest | None, other: StopRequest | None) -> StopRequest | None:
    """The stronger of two requests; the first if both are equally strong."""
    return other if strength(other) > strength(one) else one
