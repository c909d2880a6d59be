"""Reads every byte of a generation back and compares it with what was saved."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from checkpointing.errors import Corrupt, Unfit
from checkpointing.generations.audit import read_back
from checkpointing.generations.repository import Repository
from checkpointing.log.history import Generation
from checkpointing.stores.contract import Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareVerdict:
    """The result for one generation. ``problem`` is None if all bytes are good.

    If ``is_corrupt`` is false, a problem means only that the generation can't be read now.
    """

    generation: Generation
    num_files: int = 0
    problem: str | None = None
    is_corrupt: bool = False


def judge(repository: Repository, generations: Sequence[Generation]) -> Iterator[ShareVerdict]:
    """Verifies one generation after another. Corrupt ones that the run has deleted meanwhile are skipped."""
    for found in generations:
        try:
            yield ShareVerdict(generation=found, num_files=read_back(repository, found))
        except (Unavailable, Unfit) as error:
            yield ShareVerdict(generation=found, problem=str(error))
        except Corrupt as error:
            if repository.refresh().generation(found.name):
                yield ShareVerdict(generation=found, problem=str(error), is_corrupt=True)
