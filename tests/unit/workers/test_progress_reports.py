"""What Ray Train is told of a long run's saves, and when."""

from checkpointing.saving.save import Tally
from checkpointing.stores.memory import MemoryStore
from jobs.training.loop.progress_reports import ProgressReporter
from tests.unit.recovery.test_loop import task
from tests.unit.small_generations import generation


def teller(tally: Tally | None, pointed: list[tuple[str | None, int]]) -> ProgressReporter:
    def point_at(name: str | None, step: int, _loss: float) -> None:
        pointed.append((name, step))

    return ProgressReporter(task(1, MemoryStore()), lambda told: None, point_at, tally, 0)


def test_each_generation_is_pointed_at_once_and_every_report_is_made() -> None:
    tally, pointed = Tally(), list[tuple[str | None, int]]()
    told = teller(tally, pointed)
    told.point(1, 0.5)
    first, second = generation(1), generation(2)
    tally.durable(first)
    told.point(2, 0.5)
    told.point(3, 0.5)
    tally.durable(second)
    told.point(4, 0.5)
    assert pointed == [(None, 1), (first.name, 2), (None, 3), (second.name, 4)]


def test_where_nothing_is_saved_ray_is_told_of_nothing() -> None:
    pointed = list[tuple[str | None, int]]()
    told = teller(None, pointed)
    told.point(1, 0.5)
    assert not told.is_checkpoint_report_due()
    assert pointed == []
