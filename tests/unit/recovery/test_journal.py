"""What a driver that comes later knows of the attempts before it."""

from dataclasses import replace

from checkpointing.generations.repository import Repository
from checkpointing.log.history import Commit, Quarantine
from checkpointing.stores.memory import MemoryStore
from jobs.recovery.journal import AttemptNote, leave_note, read_failed_attempts
from jobs.recovery.policy import FailedAttempt, since_progress
from tests.unit.small_generations import RUN, generation


def save(repository: Repository, step: int, *, term: int) -> str:
    found = generation(1, term=term, step=step)
    repository.append(Commit(generation=found), term=term)
    return found.name


def test_what_a_former_life_saved_is_no_progress_of_a_run_begun_afresh() -> None:
    repository = Repository(MemoryStore(), RUN)
    save(repository, 50_000, term=repository.take_over("of the former life"))
    repository.take_over("killed before its first save", fresh=True)
    term = repository.take_over("gets on, and hangs")
    save(repository, 100, term=term)
    hang = FailedAttempt(term=term, cause="hang", reason="no step", ended_s=9.0, step=120, durable_step=100)
    leave_note(repository.store, RUN, AttemptNote(term=term, how="failed", ending=hang))
    past = read_failed_attempts(repository.store, RUN, repository.refresh())
    assert [(one.cause, one.durable_step) for one in past] == [("driver died", 0), ("hang", 100)]
    assert since_progress(past) == [hang]
    parted = replace(hang, cause="partition", nodes=("b",), all_nodes=("a", "b"))
    leave_note(repository.store, RUN, AttemptNote(term=term, how="failed", ending=parted))
    assert read_failed_attempts(repository.store, RUN, repository.refresh())[1] == parted


def test_what_is_not_gone_on_from_is_no_progress_either() -> None:
    repository = Repository(MemoryStore(), RUN)
    term = repository.take_over("killed")
    save(repository, 10, term=term)
    repository.append(Quarantine(name=save(repository, 20, term=term), reason="spoilt"), term=term)
    (died,) = read_failed_attempts(repository.store, RUN, repository.refresh())
    assert (died.step, died.durable_step) == (10, 10)


def test_a_branch_is_measured_by_its_own_steps_not_by_those_of_the_one_that_was_left() -> None:
    repository = Repository(MemoryStore(), RUN)
    save(repository, 1000, term=repository.take_over("killed on the branch that was left"))
    save(repository, 200, term=repository.take_over("killed on the new one"))
    past = read_failed_attempts(repository.store, RUN, repository.refresh())
    assert [one.durable_step for one in past] == [1000, 200]
