"""Where a long run stands between its steps, and where the next one ends."""

from typing import Any

from jobs.spec_schema.run_spec import RunSpec
from jobs.training.task.position import Position
from jobs.training.task.task import Task

STEP_SAMPLES, NUM_SAMPLES = 4, 8


def course(**changes: Any) -> Position:
    task: dict[str, Any] = {
        "run": "r",
        "store": "memory:",
        "recipe": RunSpec(name="r", model="llama-tiny", steps=9, micro_batch=STEP_SAMPLES).recipe(),
        "vendor": "cpu",
        "simulated": False,
        "num_steps": 9,
        "num_samples": NUM_SAMPLES,
        "saving": None,
        "term": 1,
        "attempt": "word",
        "lineage": "line",
        "resume": "latest",
    }
    return Position(Task(**task | changes), step=0, position=0)


def test_each_step_goes_on_where_the_one_before_ended_and_knows_what_ends_with_it() -> None:
    run = course(eval_every=3)
    found = []
    for _ in range(4):
        point = run.next()
        assert run.next() == point, "asking takes no step"
        run.reach(point)
        found.append((point.step, run.first_of(point), point.position, point.epoch_end, point.is_evaluated))
    assert found == [
        (1, 0, 4, None, False),
        (2, 4, 8, 1, False),
        (3, 8, 12, None, True),
        (4, 12, 16, 2, False),
    ]


def test_a_step_keeps_its_number_and_its_size_where_samples_are_skipped() -> None:
    run = course(skips=((4, 6),))
    run.reach(run.next())
    point = run.next()
    assert (point.step, run.first_of(point), point.position, point.epoch_end) == (2, 6, 10, 1)
    assert run.begin_after(4) == 6


def test_where_it_stands_it_knows_which_epoch_has_ended_there() -> None:
    run = course()
    run.reach(run.next())
    assert run.here().epoch_end is None
    run.reach(run.next())
    here = run.here(is_evaluation_due=True)
    assert (here.step, here.position, here.epoch_end, here.is_evaluation_due) == (2, 8, 1, True)
