"""Whether a generation's bytes are still what was saved: every one of them is read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from checkpointing.errors import Corrupt
from checkpointing.generations.audit import read_back
from checkpointing.generations.repository import Repository
from checkpointing.log.history import Generation
from checkpointing.stores.contract import Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareVerdict:
    """``problem`` is None if all is well. It may also be that it can't be read now: no reason to despair."""

    generation: Generation
    num_files: int = 0
    problem: str | None = None
    is_corrupt: bool = False


def judge(repository: Repository, generations: Sequence[Generation]) -> Iterator[ShareVerdict]:
    """One after the other, but for those that the run gives up meanwhile."""
    for found in generations:
        try:
            yield ShareVerdict(generation=found, num_files=read_back(repository, found))
        except Unavailable as error:
            yield ShareVerdict(generation=found, problem=str(error))
        except Corrupt as error:
            if repository.refresh().generation(found.name):
                yield ShareVerdict(generation=found, problem=str(error), is_corrupt=True)
