"""Exceptions in the form in which ranks send them to each other: the type's name and the text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from checkpointing.errors import Corrupt, Fenced, NothingToResume, Unfit
from checkpointing.stores.contract import Conflict, Denied, Full, Missing, StoreError, Unavailable
from jobs.training.health.failures import AgreedFailure

# Types that callers tell apart. Of any other type only the name is sent, and the peer gets ``PeerFailed``.
_TYPES = {
    kind.__name__: kind
    for kind in (
        Corrupt, Fenced, NothingToResume, Unfit, StoreError, Unavailable, Full, Denied, Conflict, Missing,
        MemoryError,
    )
}  # fmt: skip


class PeerFailed(AgreedFailure):
    """A peer raised, for all ranks, an error of a type that is not sent as such; the text names the type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    type: str
    text: str


def problem_of(error: Exception, others: Mapping[str, object] | None = None) -> Problem:
    known = {*_TYPES, *(others or {})}
    names = (kind.__name__ for kind in type(error).__mro__)
    return Problem(
        type=next((name for name in names if name in known), type(error).__name__), text=str(error)
    )


def error_of(problem: Problem, others: Mapping[str, Callable[[str], Exception]] | None = None) -> Exception:
    """The exception again: same type and text if the type is known or in ``others``, else ``PeerFailed``."""
    make = {**_TYPES, **(others or {})}.get(problem.type)
    if make is not None:
        return make(problem.text)
    return PeerFailed(f"{problem.type}: {problem.text}" if problem.text else problem.type)
