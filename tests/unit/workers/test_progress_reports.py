"""When a long run's saves are reported to Ray Train, and what the reports say."""

from checkpointing.saving.save import Tally
from checkpointing.stores.memory import MemoryStore
from jobs.training.loop.progress_reports import ProgressReporter
from tests.unit.recovery.test_loop import task
from tests.unit.small_generations import generation


def reporter(tally: Tally | None, reports: list[tuple[str | None, int]]) -> ProgressReporter:
    def report_checkpoint(name: str | None, step: int, _loss: float) -> None:
        reports.append((name, step))

    return ProgressReporter(task(1, MemoryStore()), lambda event: None, report_checkpoint, tally, 0)


def test_each_generation_is_reported_once_and_every_report_is_made() -> None:
    tally, reports = Tally(), list[tuple[str | None, int]]()
    reporting = reporter(tally, reports)
    reporting.report_checkpoint(1, 0.5)
    first, second = generation(1), generation(2)
    tally.durable(first)
    reporting.report_checkpoint(2, 0.5)
    reporting.report_checkpoint(3, 0.5)
    tally.durable(second)
    reporting.report_checkpoint(4, 0.5)
    assert reports == [(None, 1), (first.name, 2), (None, 3), (second.name, 4)]


def test_where_nothing_is_saved_nothing_is_reported_to_ray() -> None:
    reports = list[tuple[str | None, int]]()
    reporting = reporter(None, reports)
    reporting.report_checkpoint(1, 0.5)
    assert not reporting.is_checkpoint_report_due()
    assert reports == []
