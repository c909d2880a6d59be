"""What the attempts of one start begin with: what was asked for counts until they have saved themselves."""

import pytest

from checkpointing.history import Lease
from jobs.run_tasks import Beginning
from tests.unit.generations import good, view_of


def asked(what: str = "best", *, fresh: bool = False, term: int = 2) -> Beginning:
    return Beginning(origin=None, what=what, fresh=fresh, term=term)


@pytest.mark.parametrize(("num_leases", "expected"), [(0, True), (1, True), (2, False), (3, False)])
def test_only_the_first_attempt_of_a_fresh_start_is_fresh(num_leases: int, expected: bool) -> None:
    view = view_of(*(Lease(owner="driver") for _ in range(num_leases)))
    assert asked(fresh=True).is_fresh(view) is expected
    assert asked(fresh=False).is_fresh(view) is False


def test_what_was_asked_for_is_gone_on_from_until_an_attempt_of_this_start_has_saved() -> None:
    assert asked("step:10").resume(view_of(*good(1, term=1))) == "step:10"
    assert asked("step:10").resume(view_of(*good(1, term=1), *good(2, term=2))) == "latest"
    assert asked("step:10").resume(view_of(*good(1, term=1), *good(2, term=5))) == "latest"
