"""Takes whole generations that the log does not name back into it, after every byte was read.

``adopt`` adds them to the log that there is. ``rebuild`` first begins a term above all that any name in the
store tells of, so that a log that is gone or has gone back can be gone on from. It fences a driver at work,
but where the hint is gone too; so a run is stopped first.

What a signed run did not sign, anybody may have planted: it is adopted only if the user names it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from checkpointing.errors import Corrupt
from checkpointing.generations.audit import read_back
from checkpointing.generations.repository import Repository
from checkpointing.log.history import Generation, Pin, Verified
from checkpointing.stores.contract import Unavailable

# How the leases of rebuilds name their owners.
_REBUILDS = "fsck --rebuild on "
_GIVEN_UP = "was given up meanwhile"
_NOT_SIGNED = "its manifest is not signed with the store's key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """What became of one generation. ``problem`` is None if the log names it now; ``is_corrupt`` says that
    its bytes are not what was saved.
    """

    generation: Generation
    problem: str | None = None
    is_corrupt: bool = False


def adoptable(repository: Repository) -> list[Generation]:
    """Returns the whole generations of this life that the log neither names nor gave up, oldest first. Call
    it after ``refresh``.
    """
    life_term = repository.view.life_term
    return [one for one in repository.unnamed() if one.term >= life_term]


def adopt(
    repository: Repository, chosen: Sequence[Generation], *, is_named: bool = False
) -> Iterator[Adoption]:
    """Reads every byte of each, and pins those that are whole: no rule deletes them before somebody looks."""
    believed = repository.signed_ones(chosen) if repository.is_signed and not is_named else chosen
    yield from _adopt(repository, chosen, believed)


def _adopt(
    repository: Repository, chosen: Sequence[Generation], believed: Sequence[Generation]
) -> Iterator[Adoption]:
    for generation in chosen:
        if generation not in believed:
            yield Adoption(generation=generation, problem=_NOT_SIGNED)
            continue
        try:
            read_back(repository, generation)
        except Corrupt as error:
            repository.refresh()
            # What is deleted while it is read has no damage.
            gone = generation.name in repository.given_up()
            yield Adoption(
                generation=generation, problem=_GIVEN_UP if gone else str(error), is_corrupt=not gone
            )
            continue
        except Unavailable as error:
            yield Adoption(generation=generation, problem=str(error))
            continue
        yield Adoption(
            generation=generation, problem=None if _is_taken_in(repository, generation) else _GIVEN_UP
        )


def _is_taken_in(repository: Repository, generation: Generation) -> bool:
    """Appends what names and pins it; False if the log has given it up meanwhile."""
    while True:
        if not repository.commit_again(generation):
            return False
        for entry in (Verified(name=generation.name), Pin(name=generation.name)):
            repository.append(entry)
        # Who rebuilds the log meanwhile begins behind the records that are gone, and knows nothing of what is
        # appended where they were.
        repository.refresh()
        if repository.view.generation(generation.name) or generation.name in repository.given_up():
            return True


def rebuild(repository: Repository, where: str) -> Iterator[Adoption]:
    """Begins a term above all others, and adopts all that is whole. Call it after ``refresh``.

    If one that was cut off began the log, and a life with it, this one adopts what that one would have.
    """
    is_begun = repository.is_only_of(_REBUILDS)
    chosen = repository.unnamed() if is_begun else adoptable(repository)
    # The lease signs the log, or begins one with another id than the saves name. Where all was lost, what
    # else is signed tells that the run had a key.
    known = [*chosen, *repository.view.generations] if is_begun else chosen
    signed = repository.signed_ones(known, of_any_log=is_begun)
    believed = signed if signed or (repository.is_signed and not is_begun) else chosen
    repository.lease(f"{_REBUILDS}{where}")
    yield from _adopt(repository, chosen, believed)
