"""Clock alignment puts the times that several clocks recorded for a run on one time line. Pure.

Drivers record leases, failures and restarts; rank 0 of each attempt records everything else. Nobody knows by
how much two clocks differ, but some events must come before others. All times are moved by as little as that
order requires.

Suppose that two clocks agree to a second. Then the phases at a border between them (schedule and detect) are
wrong by up to a second, and their sum is exact.
"""

from collections.abc import Sequence
from dataclasses import replace

from reporting.long_runs.ledger import AttemptStory

# The longest believable delay until the driver hears of a step. Workers report at most once a second, and a
# driver looks four times as often.
_HEARD_WITHIN_S = 2.0


def aligned(stories: Sequence[AttemptStory]) -> list[AttemptStory]:
    """Returns the stories ordered by term, all on the driver's clock, moved by as little as possible.

    An attempt's workers begin after its lease, and the driver hears of a step soon after it ended. If the
    workers' times contradict that, their clock is wrong, and all their times are moved. Leases follow one
    another. If a driver's clock went back between two leases, all later times are moved behind the last known
    event of the attempt before.
    """
    found: list[AttemptStory] = []
    shift_s = 0.0
    for story in sorted(stories, key=lambda story: story.term):
        moved = _moved(story, shift_s)
        if found and moved.leased_s < found[-1].leased_s:
            known_s = max(found[-1].last_heard_s, found[-1].noticed_s or 0.0)
            shift_s += known_s - moved.leased_s
            moved = _moved(story, shift_s)
        found.append(_on_drivers_clock(moved))
    return found


def _moved(story: AttemptStory, seconds: float) -> AttemptStory:
    if not seconds:
        return story
    return replace(
        _told_later(story, seconds),
        leased_s=story.leased_s + seconds,
        noticed_s=_later(story.noticed_s, seconds),
        heard_s=_later(story.heard_s, seconds),
        driver_shift_s=story.driver_shift_s + seconds,
    )


def _on_drivers_clock(story: AttemptStory) -> AttemptStory:
    seconds = 0.0
    if story.heard_s is not None and story.told_s is not None:
        late_s = story.heard_s - story.told_s
        seconds = 0.0 if 0 <= late_s <= _HEARD_WITHIN_S else late_s
    least = story.leased_s - min((span.start_s for span in story.spans), default=story.leased_s)
    return _told_later(story, max(least, seconds))


def _told_later(story: AttemptStory, seconds: float) -> AttemptStory:
    """Moves the times that the attempt's workers recorded."""
    spans = (
        replace(span, start_s=span.start_s + seconds, end_s=span.end_s + seconds) for span in story.spans
    )
    return replace(
        story,
        spans=tuple(spans) if seconds else story.spans,
        failed_s=_later(story.failed_s, seconds),
        told_s=_later(story.told_s, seconds),
        last_step_s=_later(story.last_step_s, seconds),
        worker_shift_s=story.worker_shift_s + seconds,
    )


def _later(at_s: float | None, seconds: float) -> float | None:
    return None if at_s is None else at_s + seconds
