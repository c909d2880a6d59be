"""When a long run's saves are reported to Ray Train, and what the reports say."""

from dataclasses import replace

import pytest

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


@pytest.mark.parametrize(("world_size", "due_s"), [(2, 10.0), (4096, 10.0), (16_384, 32.0)])
def test_no_report_waits_for_a_controller_that_asks_many_ranks_more_seldom(
    world_size: int, due_s: float
) -> None:
    """Ray keeps one report of a rank until its controller fetches it, and the next one waits for that."""
    now, tally, small = 0.0, Tally(), task(1, MemoryStore())
    large = replace(small, recipe=replace(small.recipe, world_size=world_size))
    reporting = ProgressReporter(large, lambda event: None, lambda *_: None, tally, 0, ticks=lambda: now)
    tally.durable(generation(1))
    now = due_s - 0.1
    assert not reporting.is_checkpoint_report_due()
    now = due_s
    assert reporting.is_checkpoint_report_due()
