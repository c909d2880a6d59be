"""Exceptions as ranks tell each other of them: a word for the type, and the text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from checkpointing.errors import Corrupt, Fenced, NothingToResume, Unfit
from checkpointing.stores.contract import Conflict, Denied, Full, Missing, StoreError, Unavailable
from jobs.training.health.failures import AgreedFailure

# What the type says to the caller. Of all others only their name is told.
_TYPES = {
    kind.__name__: kind
    for kind in (
        Corrupt, Fenced, NothingToResume, Unfit, StoreError, Unavailable, Full, Denied, Conflict, Missing,
        MemoryError,
    )
}  # fmt: skip


class PeerFailed(AgreedFailure):
    """What a peer raised for all ranks and what none of our types is; the text names its type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    type: str
    text: str


def told(error: Exception, others: Mapping[str, object] | None = None) -> Problem:
    known = {*_TYPES, *(others or {})}
    names = (kind.__name__ for kind in type(error).__mro__)
    return Problem(
        type=next((name for name in names if name in known), type(error).__name__), text=str(error)
    )


def heard(problem: Problem, others: Mapping[str, Callable[[str], Exception]] | None = None) -> Exception:
    """Of the same type with the same text, where it is one of ours or in ``others``; else ``PeerFailed``."""
    make = {**_TYPES, **(others or {})}.get(problem.type)
    if make is not None:
        return make(problem.text)
    return PeerFailed(f"{problem.type}: {problem.text}" if problem.text else problem.type)
