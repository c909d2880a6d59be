"""Decides which generations are kept and why, and so which may be deleted. Pure: the same view and policy
always give the same answer.

Most rules count only good generations, so that a rule is never met by a generation that cannot be loaded.
An unverified generation stays as long as no good one is newer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from checkpointing.log.history import Generation, LogView

# The minimum whatever the policy says: one to resume and one to step back to.
LEAST_GOOD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Rules that add up. ``best`` counts the generations with the best ``metric``. None and 0 switch a rule
    off.

    ``every_s``, ``every_steps`` and ``every_epochs`` keep one generation of each such span for ever;
    ``epochs`` means ``every_epochs`` of 1. The field metadata bounds what a spec may say.
    """

    last: int = field(default=10, metadata={"ge": 0})
    epochs: bool = True
    best: int = field(default=1, metadata={"ge": 0})
    metric: str = field(default="val_loss", metadata={"min_length": 1})
    mode: Literal["min", "max"] = "min"
    every_s: float | None = field(default=None, metadata={"gt": 0})
    every_steps: int | None = field(default=None, metadata={"ge": 1})
    every_epochs: int | None = field(default=None, metadata={"ge": 1})

    @property
    def keeps_epochs(self) -> bool:
        """Whether it keeps the end of any epoch."""
        return self.epochs or self.every_epochs is not None


def reasons(view: LogView, policy: Retention) -> dict[str, tuple[str, ...]]:
    """Returns why each generation is kept; those with an empty tuple may be deleted.

    Generations from before a fresh start stay until the new life has ``LEAST_GOOD`` good ones.
    """
    generations = of_this_life(view)
    found: dict[str, list[str]] = {generation.name: [] for generation in view.generations}
    good = [generation for generation in generations if generation.is_good]
    for rule, kept in _rules(generations, good, policy):
        for generation in kept:
            found[generation.name].append(rule)
    for generation in good[-LEAST_GOOD:]:
        found[generation.name] = found[generation.name] or ["least"]
    for generation in (old for old in view.generations if old.life != view.life):
        if generation.is_pinned:
            found[generation.name].append("pin")
        if len(good) < LEAST_GOOD:
            found[generation.name].append("former life")
    return {name: tuple(rules) for name, rules in found.items()}


def may_go(view: LogView, policy: Retention) -> tuple[str, ...]:
    """Returns the names that no rule keeps, oldest first."""
    return tuple(name for name, rules in reasons(view, policy).items() if not rules)


def of_this_life(view: LogView) -> list[Generation]:
    """Returns the generations since the last fresh start, in the order of their saves. Commits may come in
    another order, as of those that were adopted.
    """
    found = [one for one in view.generations if one.life == view.life]
    return sorted(found, key=lambda one: (one.term, one.number))


def latest(generations: Sequence[Generation]) -> Generation | None:
    """Returns the newest generation that is not quarantined, verified or not."""
    return next((found for found in reversed(generations) if found.quarantined is None), None)


def backup(generations: Sequence[Generation]) -> Generation | None:
    """Returns the newest good generation other than the latest."""
    newest = latest(generations)
    return next((found for found in reversed(generations) if found.is_good and found is not newest), None)


def newest_good(view: LogView) -> Generation | None:
    """Returns the newest good generation of this life."""
    return next((found for found in reversed(of_this_life(view)) if found.is_good), None)


def best(generations: Sequence[Generation], policy: Retention) -> list[Generation]:
    """Returns the good generations that have the metric, best first. Among equals the older one comes
    first.
    """
    sign = 1 if policy.mode == "min" else -1
    scored = [found for found in generations if found.is_good and policy.metric in found.metrics]
    return sorted(scored, key=lambda found: sign * found.metrics[policy.metric])


def _rules(
    generations: Sequence[Generation], good: Sequence[Generation], policy: Retention
) -> Iterator[tuple[str, Sequence[Generation]]]:
    yield "latest", [found for found in [latest(generations)] if found]
    yield "backup", [found for found in [backup(generations)] if found]
    yield "last", good[-policy.last :] if policy.last else []
    yield "pending", _unverified_after(generations, good)
    yield "best", best(generations, policy)[: policy.best]
    yield "pin", [found for found in generations if found.is_pinned]
    # Rules that keep for ever also keep poisoned generations: a bad node can make any state look guilty.
    whole = [found for found in generations if found.is_whole]
    ends = [found for found in whole if found.epoch_end is not None]
    every_epochs = policy.every_epochs or (1 if policy.epochs else None)
    yield "epoch", [found for found in ends if every_epochs and (found.epoch_end or 0) % every_epochs == 0]
    yield "every_s", _spaced(whole, policy.every_s, lambda found: found.committed_s)
    yield "every_steps", _spaced(whole, policy.every_steps, lambda found: found.step)


def _unverified_after(generations: Sequence[Generation], good: Sequence[Generation]) -> list[Generation]:
    newest_good = generations.index(good[-1]) if good else -1
    behind = generations[newest_good + 1 :]
    return [found for found in behind if found.quarantined is None and not found.is_verified]


def _spaced(
    whole: Sequence[Generation], span: float | None, position: Callable[[Generation], float]
) -> list[Generation]:
    """Keeps the oldest, then each that is at least ``span`` after the last one kept.

    One whose position lies before the last one kept also stays: a clock was set back, or the run was rolled
    back. Removing others never changes which of the kept ones stay.
    """
    kept: list[Generation] = []
    for found in whole if span else ():
        if not kept or not 0 <= position(found) - position(kept[-1]) < (span or 0):
            kept.append(found)
    return kept
