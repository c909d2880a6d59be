"""What one rank raised for all is raised on all: the type says what to do, the text what was wrong."""

import pytest

from checkpointing.errors import Corrupt, Fenced, NothingToResume, Unfit
from checkpointing.stores.contract import Denied, StoreError, Unavailable
from jobs.commandline.usage_error import SpecError
from jobs.training.health.failures import failure_of
from jobs.training.health.problems import PeerFailed, Problem, error_of, problem_of
from jobs.training.ranks.typed_json import decode, encode

TYPES = [Corrupt, Fenced, NothingToResume, Unfit, StoreError, Unavailable, Denied, MemoryError]


@pytest.mark.parametrize("kind", TYPES)
def test_one_of_ours_comes_back_of_its_type_with_its_text(kind: type[Exception]) -> None:
    found = error_of(decode(Problem, encode(problem_of(kind("store: /x: is away")))))
    assert (type(found), str(found)) == (kind, "store: /x: is away")


def test_what_is_derived_from_one_of_ours_comes_back_as_that() -> None:
    class Slow(Unavailable):
        pass

    assert type(error_of(problem_of(Slow("later")))) is Unavailable


def test_a_type_that_only_the_caller_knows_comes_back_too() -> None:
    others = {"SpecError": lambda text: SpecError(text.split("\n"))}
    found = error_of(problem_of(SpecError(["a: is wrong", "b: too"]), others), others)
    assert isinstance(found, SpecError)
    assert found.problems == ["a: is wrong", "b: too"]


def test_of_all_others_the_words_are_those_of_the_rank_that_raised() -> None:
    error = ValueError("no such thing")
    found = error_of(problem_of(error))
    assert isinstance(found, PeerFailed)
    assert failure_of(found, "setup", 1).reason == failure_of(error, "setup", 1).reason


def test_no_type_can_be_asked_for_that_is_not_in_the_list() -> None:
    found = error_of(Problem(type="SystemExit", text="0"))
    assert (type(found), str(found)) == (PeerFailed, "SystemExit: 0")
