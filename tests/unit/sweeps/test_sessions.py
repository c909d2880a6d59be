"""Sessions of a sweep: which repeats belong to which, and what a description that was tampered with means."""

from typing import Any

import pytest

from jobs.sweeps.grid import schedule
from jobs.sweeps.sessions import Sessions
from tests.unit.builders import cells_of, sweep


def test_another_session_has_as_many_further_repeats() -> None:
    found = Sessions.first(3).again(highest=3)
    assert list(found.repeats()) == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2)]


def test_a_description_gives_the_sessions_back() -> None:
    found = Sessions.first(3).again(highest=3).again(highest=6)
    assert Sessions.of(found.as_data(), 3) == found


def test_an_extended_spec_extends_the_last_session_alone() -> None:
    stored = Sessions.first(3).again(highest=3).as_data()
    assert list(Sessions.of(stored, 5).repeats())[3:] == [(4, 2), (5, 2), (6, 2), (7, 2), (8, 2)]


def test_a_spec_with_fewer_repeats_never_measures_a_repeat_in_two_sessions() -> None:
    found = Sessions.of(Sessions.first(5).as_data(), 3).again(highest=5)
    assert list(found.repeats()) == [(1, 1), (2, 1), (3, 1), (6, 2), (7, 2), (8, 2)]


@pytest.mark.parametrize(
    "stored",
    [
        None, 7, "x", {}, [], [5], [[1]], [[1, 2, 3]], [["1", 2]], [[1, 0]], [[0, 5]], [[1, 5], [5, 5]],
        [[6, 5], [1, 5]], [[1, 10**9]], [[10**9, 1]], [[1.0, 5]], [[1, 5]] * 2,
        [[number, 1] for number in range(1, 1_002)],
    ],
)  # fmt: skip
def test_what_is_no_list_of_sessions_is_one_session(stored: Any) -> None:
    assert Sessions.of(stored, 4) == Sessions.first(4)


def test_runs_know_their_session_and_keep_the_identity_of_their_repeat() -> None:
    spec = sweep(repeats=2)
    first, both = (
        schedule(spec, cells_of(spec)),
        schedule(spec, cells_of(spec), Sessions.first(2).again(highest=2)),
    )
    assert [run.run_id for run in both[: len(first)]] == [run.run_id for run in first]
    assert {(run.repeat, run.session) for run in both} == {(1, 1), (2, 1), (3, 2), (4, 2)}
    assert [run.order for run in both] == list(range(1, len(both) + 1))
