"""``checkpoints adopt`` and ``fsck --rebuild``: whole generations go back into the log."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from checkpointing.errors import NothingToResume
from checkpointing.generations.adoption import Adoption, adopt, adoptable, rebuild
from checkpointing.generations.repository import Repository, no_such_run
from checkpointing.log.history import Generation
from jobs.checkpoints.text import size_text
from jobs.commandline.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_UNDECIDED
from reporting.analysis.formatting import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """What a command took back. ``exit_code`` is 1 if something is damaged, 3 if it could not be read now."""

    adoptions: tuple[Adoption, ...]

    @property
    def exit_code(self) -> int:
        problems = [one for one in self.adoptions if one.problem]
        if any(one.is_corrupt for one in problems):
            return EXIT_FAILED
        return EXIT_UNDECIDED if problems else EXIT_OK

    @property
    def text(self) -> str:
        num_problems = sum(one.problem is not None for one in self.adoptions)
        num_adopted = counted(len(self.adoptions) - num_problems, "generation")
        return f"{num_adopted} adopted and pinned, {num_problems} with a problem"

    def as_data(self, run: str) -> dict[str, object]:
        return {"run": run, "generations": [asdict(one) for one in self.adoptions]}


def adopt_named(repository: Repository, names: Sequence[str], say: Callable[[str], None]) -> Adopted:
    """Takes back those that are named, or all of this life."""
    if repository.refresh().term == 0:
        raise _without_log(repository)
    found = adoptable(repository)
    chosen = [one for one in found if one.name in names] if names else found
    if unknown := sorted({*names} - {one.name for one in found}):
        known = ", ".join(one.name for one in found) or "none"
        raise NothingToResume(
            f"{unknown[0]!r} is no whole generation outside of the log (these are: {known})"
        )
    return _told(adopt(repository, chosen, is_named=bool(names)), say)


def rebuild_log(repository: Repository, where: str, say: Callable[[str], None]) -> Adopted:
    if repository.refresh().term == 0 and not repository.stored_generations():
        raise no_such_run(repository.store, repository.run)
    return _told(rebuild(repository, where), say)


def _told(adoptions: Iterable[Adoption], say: Callable[[str], None]) -> Adopted:
    told = []
    for one in adoptions:
        told.append(one)
        say(_line(one.generation, one))
    return Adopted(adoptions=tuple(told))


def _line(generation: Generation, one: Adoption) -> str:
    if one.problem is None:
        return f"{generation.name}: whole, {size_text(generation.num_bytes)}, adopted and pinned"
    what = "corrupt" if one.is_corrupt else "not adopted"
    return f"{generation.name}: {what}: {one.problem}"


def _without_log(repository: Repository) -> NothingToResume:
    if not (found := repository.stored_generations()):
        return no_such_run(repository.store, repository.run)
    return NothingToResume(
        f"{repository.store.url}: runs/{repository.run} has {counted(len(found), 'generation')} and no log; "
        "`longhaul checkpoints fsck --rebuild` makes one from what is there"
    )
