"""Chooses the generation that a run resumes, and says why. Pure. A decision carries the trail of its
reasons.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from checkpointing.errors import NothingToResume
from checkpointing.generations.retention import Retention, backup, best, of_this_life
from checkpointing.log.history import Generation, LogView

# This many loads without a finished step mean that the state itself makes the training crash.
_POISON_LOADS = 2
Spoilt = tuple[tuple[int, int], ...]
"""Pairs (term, step): saves without a commit, by attempts up to ``term``, are not trusted after ``step``."""
WORDS = "latest, backup, best, epoch:N, step:N or a generation's name"


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDisk:
    """A generation of which every rank has all that it needs on its own node's disk, or in the hosts' memory.

    ``is_in_memory`` is False unless nothing of it is read from a disk.
    """

    name: str
    step: int
    term: int
    number: int
    is_in_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A generation that may be resumed. ``is_stored`` is True if the log names it, and False if it is only
    on nodes' disks.
    """

    name: str
    step: int
    is_stored: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The chosen generation. ``chosen`` is None if the run has no generation yet and begins at step 0.

    ``poison`` names generations to quarantine, because loading them ended in crashes.
    """

    chosen: Candidate | None
    trail: tuple[str, ...]
    poison: tuple[str, ...] = ()


def choose(
    view: LogView,
    on_disk: Sequence[OnDisk] = (),
    *,
    what: str = "latest",
    policy: Retention | None = None,
    refused: Mapping[str, str] | None = None,
    spoilt: Spoilt = (),
) -> Decision:
    """Chooses a generation. ``refused`` maps those that this start already tried to their problems.

    ``latest`` steps back over generations that cannot be used. It begins at step 0 only if no generation
    ever existed outside the hosts' memory: what is damaged there is lost, as it would be with the hosts. Any
    other ``what`` names one generation; ``NothingToResume`` is raised if that one cannot be used.
    """
    refused = refused or {}
    if what != "latest":
        return _named(view, what, policy or Retention(), refused)
    trail: list[str] = []
    poison: list[str] = []
    trusted = [one for one in on_disk if is_trusted(one.term, one.step, spoilt)]
    candidates = _newest_first(view, trusted)
    for place, (candidate, generation) in enumerate(candidates):
        problem = _known_problem(candidate, generation, refused)
        is_last = all(_known_problem(older, one, refused) for older, one in candidates[place + 1 :])
        if problem is None and _is_poison(view, candidate) and not is_last:
            problem = f"{view.loads[candidate.name]} loads ended before one step was finished"
            poison.append(candidate.name)
        if problem is None:
            trail.append(f"{candidate.name}: chosen, {_where(candidate, on_disk)}")
            return Decision(chosen=candidate, trail=tuple(trail), poison=tuple(poison))
        trail.append(f"{candidate.name}: passed over, {problem}")
    in_memory = {one.name for one in on_disk if one.is_in_memory}
    if any(candidate.is_stored or candidate.name not in in_memory for candidate, _ in candidates):
        raise NothingToResume("none of its generations can be used:\n  " + "\n  ".join(trail))
    none = (
        "the hosts' memory alone had a generation, and it is damaged" if candidates else "no generation yet"
    )
    return Decision(chosen=None, trail=(*trail, f"{none}: begins at step 0"))


def is_trusted(term: int, step: int, spoilt: Spoilt) -> bool:
    """Says whether a save without a commit comes before all steps that went wrong."""
    return all(term > last_term or step <= last_step for last_term, last_step in spoilt)


def find(view: LogView, what: str, policy: Retention) -> Generation:
    """Returns the generation that ``what`` names; raises ``NothingToResume`` if there is none."""
    generations = of_this_life(view)
    kind, _, number = what.partition(":")
    match kind:
        case "backup":
            found = backup(generations)
        case "best":
            found = next(iter(best(generations, policy)), None)
        case "epoch" | "step" if number.isdecimal():
            field = "epoch_end" if kind == "epoch" else "step"
            same = [one for one in generations if getattr(one, field) == int(number)]
            found = same[-1] if same else None
        case "latest":
            found = next((one for one in reversed(generations) if one.quarantined is None), None)
        case _:
            found = view.generation(what)
    if found is None:
        known = ", ".join(one.name for one in view.generations[-5:]) or "none"
        raise NothingToResume(f"{what!r} is none of its generations (newest: {known}); expected {WORDS}")
    return found


def _named(view: LogView, what: str, policy: Retention, refused: Mapping[str, str]) -> Decision:
    found = find(view, what, policy)
    if problem := refused.get(found.name) or found.quarantined:
        raise NothingToResume(f"{what} is {found.name}, which can't be used: {problem}")
    candidate = Candidate(name=found.name, step=found.step, is_stored=True)
    return Decision(chosen=candidate, trail=(f"{found.name}: chosen, it is {what}",))


def _newest_first(view: LogView, on_disk: Sequence[OnDisk]) -> list[tuple[Candidate, Generation | None]]:
    """Sorts by term, then by the order of saves within a term. Steps are only used among the last states of
    an attempt's survivors, which have one number: a rollback lowers them.
    """
    stored = of_this_life(view)
    known = {found.name for found in view.generations}
    found: list[tuple[tuple[int, int, int], Candidate, Generation | None]] = [
        ((one.term, one.number, one.step), Candidate(name=one.name, step=one.step, is_stored=True), one)
        for one in stored
    ]
    found += [
        ((one.term, one.number, one.step), Candidate(name=one.name, step=one.step, is_stored=False), None)
        for one in on_disk
        if one.name not in known and one.term >= view.life_term
    ]
    return [(candidate, one) for _, candidate, one in sorted(found, key=lambda row: row[0], reverse=True)]


def _known_problem(
    candidate: Candidate, generation: Generation | None, refused: Mapping[str, str]
) -> str | None:
    return refused.get(candidate.name) or (generation.quarantined if generation else None)


def _is_poison(view: LogView, candidate: Candidate) -> bool:
    return view.loads.get(candidate.name, 0) >= _POISON_LOADS


def _where(candidate: Candidate, on_disk: Sequence[OnDisk]) -> str:
    near = next((one for one in on_disk if one.name == candidate.name), None)
    if near is None:
        return "from the store"
    place = "the hosts' memory" if near.is_in_memory else "the nodes' disks"
    preposition = "in" if near.is_in_memory else "on"
    return f"from {place}" if candidate.is_stored else f"{preposition} {place} alone"
