"""What a group leaves with each checkpoint, so that another group can show that it computes the same. Pure.

With the weights that are saved, some micro-batches of the last step are computed once more, forward only. A
group that goes on from there computes them again before its first step, so before its first save.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from jobs.training.ranks.typed_json import typed
from jobs.training.task.job import Recipe

# Losses over all ranks are told in units of 2**-30.
SAME = 2.0**-29
# Where no sum repeats: fp32 keeps 24 bits of each, bf16 8, and a loss is the mean over many tokens.
NEAR = {"fp32": 1e-4, "bf16": 1e-2}
# Of a step with fewer micro-batches, all are computed.
MOST_BATCHES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """The ``losses`` of micro-batches of ``micro_batch`` samples from ``position`` on, as ``group`` computes
    them. Empty where nothing was computed: the checkpoint stays on the nodes of the group.
    """

    group: str
    position: int = 0
    micro_batch: int = 1
    losses: tuple[float, ...] = ()

    def as_stored(self) -> Mapping[str, Any]:
        return {**asdict(self), "losses": list(self.losses)}

    def batches(self) -> list[range]:
        """The positions of each micro-batch."""
        firsts = [self.position + number * self.micro_batch for number in range(len(self.losses))]
        return [range(first, first + self.micro_batch) for first in firsts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    text: str
    agrees: bool


def num_batches(recipe: Recipe) -> int:
    return min(MOST_BATCHES, recipe.sequences_per_step // recipe.micro_batch)


def hand_over_in(stored: object) -> HandOver | None:
    """What stands with a checkpoint; None if that is nothing that this version can read."""
    try:
        found: HandOver = typed(HandOver, stored)
    except ValueError:
        return None
    is_sound = 0 <= found.position < 2**63 and 1 <= found.micro_batch < 2**31
    return found if is_sound and len(found.losses) <= MOST_BATCHES else None


def judge(before: HandOver, now: Sequence[float], *, group: str, precision: str, step: int) -> Verdict:
    """Whether ``group`` computes the losses that were left with the checkpoint of ``step``, as far as sums in
    another order do.
    """
    relative = NEAR[precision]
    pairs = [*zip(before.losses, now, strict=True)]
    then, today = max(pairs, key=lambda pair: _difference(*pair))
    is_near = _difference(then, today) <= relative
    worst = f"the worst batch of {len(pairs)}" if len(pairs) > 1 else "a batch"
    figures = f"the loss of {worst} is {today:.7g}, and in group {before.group}, which saved it, {then:.7g}"
    if is_near:
        return Verdict(
            text=f"group {group} computes as the checkpoint of step {step}: {figures}", agrees=True
        )
    return Verdict(
        text=(
            f"group {group} does not compute as the checkpoint of step {step}: {figures}; "
            f"expected to agree within {relative:g} of it"
        ),
        agrees=False,
    )


def _difference(before: float, now: float) -> float:
    """Relative to the loss before; infinite if one is not finite."""
    if not (isfinite(before) and isfinite(now)):
        return float("inf")
    return 0.0 if abs(now - before) <= SAME else abs(now - before) / max(abs(before), SAME)
