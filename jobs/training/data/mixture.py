"""Says which source of a mixture has the sample at a position. Needs no torch.

A position alone decides that, so a mixture is the same at every world size and after every stop. Among the
first p samples, for every p, a source has its share of p by weight, rounded up or down.

Each source is a stream of its own: one epoch after another, each in an order of its own. The order does not
depend on the other sources or on weights.

A run that is resumed with other weights begins a *stretch* at its position. What stands before it stays as it
was: each source goes on behind its own last sample. Every save holds the run's stretches.
"""

import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from heapq import heapify, heappop, heappush
from math import gcd, lcm
from typing import Any

from jobs.training.ranks.typed_json import typed
from jobs.training.task.sample_order import NEWEST_ORDER, SampleOrder, sample_at
from jobs.training.task.skipping import RecordedStretches, Skips
from jobs.training.task.task import Mixture

# Weights repeat after as many samples. The table of these takes half a second and 0.8 MB.
MOST_IN_TURN = 100_000
MOST_STRETCHES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A source as its mixture sees it; ``num_samples`` make its epoch."""

    name: str
    weight: int
    num_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """From the position ``first`` on, sources have their shares by ``weights``. ``drawn`` is how many samples
    of each source stand before.
    """

    first: int
    weights: tuple[int, ...]
    drawn: tuple[int, ...]


def weights_text(mixture: Mixture) -> str:
    return ", ".join(f"{one.name} {one.weight}" for one in mixture.sources)


def names_in(text: str) -> list[str]:
    """The sources that a ``weights_text`` names, in their order."""
    return [one.rpartition(" ")[0] for one in text.split(", ")]


def continued(recorded: RecordedStretches, mixture: Mixture, position: int) -> RecordedStretches:
    """The stretches of a run that goes on at ``position``, where ``recorded`` are those of its save. Raises
    ``ValueError`` if they are more than ``MOST_STRETCHES``.

    Other sources begin anew: only a run that starts from another run's generation can have such.
    """
    now = weights_text(mixture)
    kept = tuple(one for one in recorded if one[0] < position)
    if not kept or names_in(kept[-1][1]) != names_in(now):
        return ((0, now),)
    if kept[-1][1] == now:
        return kept
    if len(kept) == MOST_STRETCHES:
        raise ValueError(
            f"weights have changed {len(kept) - 1} times, which is the most; expected {kept[-1][1]:.200}"
        )
    return (*kept, (position, now))


def check_left_out(skips: Skips, found_in: RecordedStretches, now: RecordedStretches, position: int) -> None:
    """Checks that a run which goes on at ``position`` leaves out the same samples ``now`` as in the stretches
    ``found_in``. Raises ``ValueError``.
    """
    for first, end in skips:
        before, after = ([one for one in stretches if one[0] < end] for stretches in (found_in, now))
        if end > position and before and before != after:
            raise ValueError(
                f"samples {first:,} to {end - 1:,} are left out after a wrong loss, but would be others now: "
                f"their weights are {_told(after[-1])}, and were {_told(before[-1])}; set those back until "
                f"the run is past sample {end:,}, or begin anew with --fresh"
            )


def _told(stretch: tuple[int, str]) -> str:
    return f"{stretch[1]:.200} from sample {stretch[0]:,} on"


def recorded_in(state: Mapping[str, Any]) -> RecordedStretches:
    """What a save's ``state`` holds. Raises ``ValueError`` if this version can't know it."""
    # Saves of older versions hold the weights in their spec alone.
    spec = typed(Mapping[str, Any] | None, state.get("spec")) or {}
    weights = (typed(Mapping[str, Any] | None, spec.get("data")) or {}).get("mixture")
    recorded: RecordedStretches = typed(
        RecordedStretches, state.get("stretches", [[0, weights]] if weights else [])
    )
    stretches_of(recorded)
    return recorded


def stretches_of(recorded: RecordedStretches) -> tuple[Stretch, ...]:
    """Raises ``ValueError`` if they are not as ``continued`` makes them."""
    if len(recorded) > MOST_STRETCHES:
        raise ValueError(f"{len(recorded):,} changes of weights")
    stretches: list[Stretch] = []
    for first, text in recorded:
        weights = tuple(int(one.rpartition(" ")[2]) for one in text.split(", "))
        is_alike = names_in(text) == names_in(recorded[0][1])
        if min(weights) < 1 or sum(weights) > MOST_IN_TURN or not is_alike:
            raise ValueError(f"{text!r:.80} from {first!r} on")
        drawn = tuple(_num_before(first, stretches[-1])) if stretches else (0,) * len(weights)
        is_next = first > stretches[-1].first if stretches else first == 0
        if not is_next:
            raise ValueError(f"{text!r:.80} from {first!r} on")
        stretches.append(Stretch(first=first, weights=weights, drawn=drawn))
    return tuple(stretches)


def shares_of(mixture: Mixture) -> list[Share]:
    return [
        Share(name=one.name, weight=one.weight, num_samples=one.tokens.windows.num_samples)
        for one in mixture.sources
    ]


def whole_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """The smallest whole numbers with the same ratios, as the weights are written in decimals.

    Raises ``ValueError`` if their sum is beyond ``MOST_IN_TURN``.
    """
    exact = [Fraction(str(weight)) for weight in weights]
    whole = [int(one * lcm(*(other.denominator for other in exact))) for one in exact]
    smallest = tuple(one // gcd(*whole) for one in whole)
    if sum(smallest) > MOST_IN_TURN:
        raise ValueError(
            f"weights {', '.join(f'{float(one):.8g}' for one in weights[:4])} in whole numbers are together "
            f"more than {MOST_IN_TURN:,}; round them"
        )
    return smallest


def mixed_at(
    position: int,
    shares: Sequence[Share],
    *,
    seed: int,
    order: SampleOrder = NEWEST_ORDER,
    stretches: Sequence[Stretch] = (),
) -> tuple[int, int]:
    """The source at ``position``, by its place in ``shares``, and the number of the sample in that source.

    Without ``stretches`` the weights are those of ``shares`` all along.
    """
    if stretches:
        stretch = stretches[bisect_right(stretches, position, key=lambda one: one.first) - 1]
        source, before = drawn_at(position - stretch.first, stretch.weights)
        before += stretch.drawn[source]
    else:
        source, before = drawn_at(position, tuple(share.weight for share in shares))
    share = shares[source]
    number = sample_at(before, num_samples=share.num_samples, seed=_seed_of(share.name, seed), order=order)
    return source, number


def drawn_at(position: int, weights: tuple[int, ...]) -> tuple[int, int]:
    """The source at ``position``, and how many samples of it stand before."""
    turn, place = divmod(position, sum(weights))
    sources, before = _turn(weights)
    source = sources[place]
    return source, turn * weights[source] + before[place]


def num_drawn(end: int, weights: tuple[int, ...]) -> list[int]:
    """How many samples each source has among the first ``end``."""
    turns, rest = divmod(end, sum(weights))
    drawn = [turns * weight for weight in weights]
    for source in _turn(weights)[0][:rest]:
        drawn[source] += 1
    return drawn


def _num_before(end: int, stretch: Stretch) -> list[int]:
    drawn = num_drawn(end - stretch.first, stretch.weights)
    return [before + one for before, one in zip(stretch.drawn, drawn, strict=True)]


@lru_cache(maxsize=MOST_STRETCHES)
def _turn(weights: tuple[int, ...]) -> tuple[Sequence[int], Sequence[int]]:
    """The source of each sample of a turn, and for each how many samples of its source stand before.

    Each sample is of the source whose next one is due first: Tijdeman's rule for the chairman assignment
    problem (1980), by which no source is ever a whole sample away from its share.
    """
    total, slack, whole = sum(weights), max(2, 2 * len(weights) - 2), lcm(*weights)
    drawn, sources, before = [0] * len(weights), array("I"), array("I")
    # The next sample of each source: not yet to be taken, by the place from which on it may be, and to be
    # taken, by when it must be. Both are whole numbers, so that no rounding decides.
    early = [(-(-total // (slack * weight)), source) for source, weight in enumerate(weights)]
    due: list[tuple[int, int]] = []
    heapify(early)
    for place in range(1, total + 1):
        while early and early[0][0] <= place:
            source = heappop(early)[1]
            end = (slack * (drawn[source] + 1) - 1) * (whole // weights[source])
            heappush(due, (end, source))
        source = heappop(due)[1]
        sources.append(source)
        before.append(drawn[source])
        drawn[source] += 1
        first = -(-total * (1 + slack * drawn[source]) // (slack * weights[source]))
        heappush(early, (first, source))
    return sources, before


def _seed_of(name: str, seed: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
