"""A sender of copies rests for as long as the training needs it to, and no longer."""

from checkpointing.saving.pace import MOST_REST, Pace


class Training:
    def __init__(self) -> None:
        self.step, self.step_s = 0, 0.0

    def does_a_step(self, step_s: float) -> None:
        self.step, self.step_s = self.step + 1, step_s

    def last_step(self) -> tuple[int, float]:
        return self.step, self.step_s


def begun(training: Training) -> Pace:
    pace = Pace(training.last_step)
    training.does_a_step(1.0)
    pace.begin()
    return pace


def rests(pace: Pace, training: Training, *steps_s: float) -> list[float]:
    found = []
    for step_s in steps_s:
        training.does_a_step(step_s)
        found.append(pace.rest_s(8.0))
    return found


def test_it_begins_with_half_of_the_time_and_changes_after_steps_alone() -> None:
    pace = begun(Training())
    assert [pace.rest_s(2.0) for _ in range(9)] == [2.0 * MOST_REST] * 9


def test_where_no_step_takes_longer_nothing_is_left_free_in_the_end() -> None:
    training = Training()
    found = rests(begun(training), training, *[1.04] * 6)
    assert found == [4.0, 2.0, 1.0, 0.5, 0.0, 0.0]


def test_of_one_step_the_pieces_rest_equally_long() -> None:
    training = Training()
    pace = begun(training)
    assert rests(pace, training, 1.0) == [4.0]
    assert [pace.rest_s(8.0) for _ in range(3)] == [4.0] * 3


def test_steps_that_take_longer_bring_the_rest_back_up_to_half_of_the_time() -> None:
    training = Training()
    pace = begun(training)
    rests(pace, training, *[1.0] * 9)
    assert rests(pace, training, *[1.06] * 6) == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0]


def test_what_is_usual_is_a_step_in_which_nothing_was_sent() -> None:
    """Else steps that are slow because of copies would be the measure of later ones."""
    training = Training()
    pace = begun(training)
    assert rests(pace, training, *[3.0] * 20) == [8.0] * 20
    for step_s in (1.0, 9.0):
        # A single slow one, such as an evaluation's, changes little.
        training.does_a_step(step_s)
        pace.begin()
    assert rests(pace, training, 1.5) == [8.0]


def test_before_any_step_is_timed_the_way_is_left_free_for_half_of_the_time() -> None:
    training = Training()
    pace = Pace(training.last_step)
    pace.begin()
    assert rests(pace, training, 0.1, 0.1) == [8.0, 8.0]
