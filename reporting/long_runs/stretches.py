"""Stretches say where a long run trained: attempts one after another in the same group of nodes. Pure.

Their times are the ledger's, so a stretch has what was lost in it, also until a failure was noticed. Pauses
between attempts belong to none: no device was held.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from reporting.long_runs.ledger import Ledger
from reporting.recording.attempts import RecordedAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What an attempt did: steps that count, and the tokens of those that rank 0 recorded in ``seconds``."""

    num_steps: int
    num_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A group's turn, ``at_s`` seconds after the run's first start, which did ``num_steps`` steps that count.

    ``held_s`` is how long its attempts took, and ``device_s`` the same over all devices that they had.
    """

    group: str
    vendor: str
    at_s: float
    num_attempts: int
    num_steps: int
    tokens_per_sec: float | None
    held_s: float
    device_s: float
    simulated: bool = False


def stretches(
    attempts: Iterable[RecordedAttempt], done: Mapping[int, Done], spent: Ledger, *, begin_s: float
) -> Iterator[Stretch]:
    """``attempts`` are in order; ``done`` is by term, as far as it is known."""
    for (group, vendor), found in groupby(attempts, key=lambda one: (one.group, one.vendor)):
        turn = list(found)
        held = {one.term: _held_s(spent, one.term) for one in turn}
        own = [done[one.term] for one in turn if one.term in done]
        seconds, tokens = sum(one.seconds for one in own), sum(one.num_tokens for one in own)
        yield Stretch(
            group=group,
            vendor=vendor,
            at_s=max(0.0, turn[0].leased_s - begin_s),
            num_attempts=len(turn),
            num_steps=sum(one.num_steps for one in own),
            tokens_per_sec=tokens / seconds if seconds > 0 and tokens > 0 else None,
            held_s=sum(held.values()),
            device_s=sum(held[one.term] * one.world_size for one in turn),
            simulated=any(one.simulated for one in turn),
        )


def _held_s(spent: Ledger, term: int) -> float:
    return sum(spent.by_term.get(term, {}).values()) + spent.after.get(term, {}).get("detect", 0.0)
