"""What is done once with a run that has finished."""

from pathlib import Path

import pytest

from checkpointing.generations.repository import Repository
from checkpointing.log.history import Commit, Finish
from checkpointing.stores.memory import MemoryStore
from jobs.checkpoints.export import export_once
from tests.unit.small_generations import RUN, generation


@pytest.fixture
def repository() -> Repository:
    """A run with one generation, which has not finished."""
    repository = Repository(MemoryStore(), RUN)
    term = repository.take_over("me")
    repository.append(Commit(generation=generation(1)), term=term)
    return repository


def test_of_a_run_that_has_not_finished_nothing_is_exported(repository: Repository, tmp_path: Path) -> None:
    assert export_once(repository, tmp_path / "out") is None
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_already_stays(repository: Repository, tmp_path: Path) -> None:
    repository.append(Finish(step=1), term=repository.view.term)
    (tmp_path / "mine.txt").write_text("mine")
    assert export_once(repository, tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
