"""Which samples a run leaves out, and that it leaves out no others and reads none twice."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from jobs.training.task.skipping import Skips, merged, start_past

STEP = 4
NUM_STEPS = 40


def steps(num_steps: int, skips: Skips) -> list[range]:
    """The positions that each step reads, as a run goes through them."""
    position, found = 0, []
    for _ in range(num_steps):
        position = start_past(position, skips, num_samples=STEP)
        found.append(range(position, position + STEP))
        position += STEP
    return found


def positions(read: list[range]) -> list[int]:
    return [position for step in read for position in step]


# As guards give them: of whole steps.
WHOLE = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 9)).map(
        lambda pair: (pair[0] * STEP, (pair[0] + pair[1]) * STEP)
    ),
    max_size=5,
).map(tuple)
ANY = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), max_size=5).map(tuple)


@given(position=st.integers(0, 10**9))
def test_without_ranges_a_step_begins_where_the_last_one_ended(position: int) -> None:
    assert start_past(position, (), num_samples=STEP) == position


@given(skips=ANY)
def test_no_step_reads_what_is_left_out_and_none_reads_again(skips: Skips) -> None:
    read = positions(steps(NUM_STEPS, skips))
    assert not [one for one in read for first, end in skips if first <= one < end]
    assert read == sorted(set(read))


@given(skips=WHOLE)
def test_of_whole_steps_nothing_else_is_left_out(skips: Skips) -> None:
    read = positions(steps(NUM_STEPS, skips))
    left_out = {one for first, end in skips for one in range(first, end)}
    assert read == [one for one in range(read[-1] + 1) if one not in left_out]


@given(skips=WHOLE, num_before=st.integers(0, NUM_STEPS))
def test_a_run_that_goes_on_reads_what_the_one_that_was_left_alone_reads(
    skips: Skips, num_before: int
) -> None:
    whole = steps(NUM_STEPS, skips)
    position = whole[num_before - 1].stop if num_before else 0
    rest = []
    for _ in range(num_before, NUM_STEPS):
        position = start_past(position, skips, num_samples=STEP)
        rest.append(range(position, position + STEP))
        position += STEP
    assert whole[num_before:] == rest


@given(skips=ANY)
def test_joined_ranges_leave_out_the_same_in_any_order(skips: Skips) -> None:
    found = merged(skips)
    assert steps(NUM_STEPS, found) == steps(NUM_STEPS, skips) == steps(NUM_STEPS, skips[::-1])
    assert all(one[1] < other[0] for one, other in pairwise(found))
