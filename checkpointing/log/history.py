"""The events of a run's generations, and the view that results from them. Pure.

An ``Entry`` is one event. A ``LogView`` is the result of all events so far: ``after`` folds in one more.
Folding an entry in twice is harmless, which matters because a writer appends again after a lost answer.
Most entries change nothing the second time; ``Lease``, ``Fresh`` and ``Load`` only count once more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One committed checkpoint. ``metrics`` are those of its step, such as val_loss.

    - ``number`` counts the saves of its term.
    - ``epoch_end`` is the number of the training epoch that ended with its step, counted from 1.
    - ``life`` counts the fresh starts of the run before this generation.
    """

    name: str
    step: int
    term: int
    number: int
    committed_s: float
    num_bytes: int
    manifest_digest: str
    epoch_end: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    life: int = 0
    is_verified: bool = False
    is_pinned: bool = False
    quarantined: str | None = None
    is_poison: bool = False

    @property
    def is_good(self) -> bool:
        """True if all bytes were read back once and the generation is not quarantined."""
        return self.is_verified and self.quarantined is None

    @property
    def is_whole(self) -> bool:
        """True if the bytes are what was saved, even if resuming from them crashed."""
        return self.is_verified and (self.quarantined is None or self.is_poison)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """The state of a run. ``generations`` are those that are kept, in the order of their commits.

    - ``life_term`` is the term in which the present life began.
    - ``loads`` counts how often a generation was loaded without a ``Resumed`` after it.
    - ``num_lost`` counts the records that were damaged.
    - ``stopped_step`` is where the present attempt ended on a stop request; None if it did not.
    """

    term: int = 0
    life: int = 0
    life_term: int = 0
    owner: str = ""
    generations: tuple[Generation, ...] = ()
    loads: Mapping[str, int] = field(default_factory=dict)
    stop_asked: bool = False
    finished_step: int | None = None
    num_lost: int = 0
    stopped_step: int | None = None

    def generation(self, name: str) -> Generation | None:
        return next((found for found in self.generations if found.name == name), None)

    def has_begun_since(self, term: int) -> bool:
        """Says whether the present life began in ``term`` or later. The first lease of all begins a life;
        any other lease may land without a ``Fresh``.
        """
        return self.life_term >= term or (term == 1 and self.term >= 1)

    def has_saved_since(self, term: int) -> bool:
        """Says whether an attempt from ``term`` on has left a generation that can be resumed."""
        return any(found.term >= term and found.quarantined is None for found in self.generations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A new attempt begins; from here on every writer of an earlier term is fenced.

    ``term`` is None for the next term, and is given if the log no longer knows of terms that were used. In
    a log without any attempt a given term begins a life: nothing that was lost belongs to the new life.

    One that ``is_fresh`` is a ``Fresh`` too. Where it signs a log that anybody may have written, nothing
    can come between the two.
    """

    owner: str
    term: int | None = None
    is_fresh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """The run begins at step 0 again. Old generations stay, but are no longer resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """All bytes of the generation were read back and are what was saved."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpin:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """The generation must never be resumed again. ``is_poison`` means that its bytes are whole, but loading
    it ended in crashes.
    """

    name: str
    reason: str
    is_poison: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """The named generations are given up: their objects may be deleted from now on."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """An attempt is about to load the generation. The load is counted first, since loading itself may
    crash.
    """

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A step was finished after the load, or the failure had nothing to do with the generation."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A stop request: the present attempt must save and end. A later attempt is not bound by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The attempt ended after ``step`` steps because of a stop request; ``why`` says whose."""

    step: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The training reached its last step."""

    step: int


Entry = (
    Lease | Fresh | Commit | Verified | Pin | Unpin | Quarantine | Tombstone | Load | Resumed
    | Stop | Stopped | Finish
)  # fmt: skip


def after(view: LogView, entry: Entry) -> LogView:
    match entry:
        case Lease(owner=owner, term=given, is_fresh=is_fresh):
            view = replace(view, stop_asked=False, stopped_step=None, finished_step=None)
            term = max(given or 0, view.term + 1)
            life_term = term if given and view.term == 0 else view.life_term
            begun = replace(view, term=term, owner=owner, life_term=life_term)
            return after(begun, Fresh()) if is_fresh else begun
        case Fresh():
            return replace(view, life=view.life + 1, life_term=view.term)
        case Commit(generation=generation):
            if view.generation(generation.name):
                return view
            return replace(view, generations=(*view.generations, replace(generation, life=view.life)))
        case Verified(name=name):
            return _changed(view, name, is_verified=True)
        case Pin(name=name):
            return _changed(view, name, is_pinned=True)
        case Unpin(name=name):
            return _changed(view, name, is_pinned=False)
        case Quarantine(name=name, reason=reason, is_poison=is_poison):
            return _changed(view, name, quarantined=reason, is_poison=is_poison)
        case Tombstone(names=names):
            kept = tuple(found for found in view.generations if found.name not in names)
            return replace(view, generations=kept, loads=_without(view.loads, names))
        case Load(name=name):
            return replace(view, loads={**view.loads, name: view.loads.get(name, 0) + 1})
        case Resumed(name=name):
            return replace(view, loads=_without(view.loads, (name,)))
        case Stop():
            return replace(view, stop_asked=True)
        case Stopped(step=step):
            return replace(view, stopped_step=step)
        case Finish(step=step):
            return replace(view, finished_step=step)
        case unknown:
            assert_never(unknown)


def _changed(view: LogView, name: str, **changes: object) -> LogView:
    generations = (
        replace(found, **changes) if found.name == name else found  # type: ignore[arg-type]  # fields of it
        for found in view.generations
    )
    return replace(view, generations=tuple(generations))


def _without(loads: Mapping[str, int], names: tuple[str, ...]) -> dict[str, int]:
    return {name: count for name, count in loads.items() if name not in names}
