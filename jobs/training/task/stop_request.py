"""That a run is to save and end before its last step. Pure.

Anybody may wish it at any moment; the ranks agree on the step border at which they follow.
"""

from dataclasses import dataclass
from typing import Literal

# "move on": save, end, and go on elsewhere or otherwise. "stop": save, end, and leave it at that.
Aim = Literal["move on", "stop"]
_BY_STRENGTH: tuple[Aim, ...] = ("move on", "stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """``why`` says for people who wishes it, such as "Ctrl-C"."""

    aim: Aim
    why: str


def strength(wish: StopRequest | None) -> int:
    """0 for none; of two wishes the one that asks for more is followed."""
    return 0 if wish is None else 1 + _BY_STRENGTH.index(wish.aim)


def aim_of(strength: int) -> Aim | None:
    return _BY_STRENGTH[strength - 1] if strength else None


def stronger(one: StopRequest | None, other: StopRequest | None) -> StopRequest | None:
    """Of equals the first."""
    return other if strength(other) > strength(one) else one
