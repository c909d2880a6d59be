"""Clock alignment puts the times that several clocks recorded for a run on one time line. Pure.

Drivers record leases, failures and restarts; rank 0 of each attempt records everything else. Nobody knows by
how much two clocks differ, but some events must come before others. All times are moved by as little as that
order requires.

Suppose that two clocks agree to a second. Then the phases at a border between them (schedule and detect) are
wrong by up to a second, and their sum is exact.
"""

from collections.abc import Sequence
from dataclasses import replace

from reporting.long_runs.ledger import AttemptTiming

# The longest believable delay until the driver hears of a step. Workers report at most once a second, and a
# driver looks four times as often.
_HEARD_WITHIN_S = 2.0


def aligned(timings: Sequence[AttemptTiming]) -> list[AttemptTiming]:
    """Returns the attempts ordered by term, all on the driver's clock, moved by as little as possible.

    An attempt's workers begin after its lease, and the driver hears of a step soon after it ended. If the
    workers' times contradict that, their clock is wrong, and all their times are moved. Leases follow one
    another. If a driver's clock went back between two leases, all later times are moved behind the last known
    event of the attempt before.
    """
    found: list[AttemptTiming] = []
    shift_s = 0.0
    for timing in sorted(timings, key=lambda timing: timing.term):
        moved = _moved(timing, shift_s)
        if found and moved.leased_s < found[-1].leased_s:
            known_s = max(found[-1].last_recorded_s, found[-1].noticed_s or 0.0)
            shift_s += known_s - moved.leased_s
            moved = _moved(timing, shift_s)
        found.append(_on_drivers_clock(moved))
    return found


def _moved(timing: AttemptTiming, seconds: float) -> AttemptTiming:
    return replace(
        _workers_moved(timing, seconds),
        leased_s=timing.leased_s + seconds,
        noticed_s=_plus(timing.noticed_s, seconds),
        heard_s=_plus(timing.heard_s, seconds),
        driver_shift_s=timing.driver_shift_s + seconds,
    )


def _on_drivers_clock(timing: AttemptTiming) -> AttemptTiming:
    seconds = 0.0
    if timing.heard_s is not None and timing.heard_step_ended_s is not None:
        late_s = timing.heard_s - timing.heard_step_ended_s
        seconds = 0.0 if 0 <= late_s <= _HEARD_WITHIN_S else late_s
    least = timing.leased_s - min((span.start_s for span in timing.spans), default=timing.leased_s)
    return _workers_moved(timing, max(least, seconds))


def _workers_moved(timing: AttemptTiming, seconds: float) -> AttemptTiming:
    """Moves the times that the attempt's workers recorded."""
    if not seconds:
        return timing
    spans = (
        replace(span, start_s=span.start_s + seconds, end_s=span.end_s + seconds) for span in timing.spans
    )
    return replace(
        timing,
        spans=tuple(spans),
        failed_s=_plus(timing.failed_s, seconds),
        heard_step_ended_s=_plus(timing.heard_step_ended_s, seconds),
        last_step_s=_plus(timing.last_step_s, seconds),
        worker_shift_s=timing.worker_shift_s + seconds,
    )


def _plus(at_s: float | None, seconds: float) -> float | None:
    return None if at_s is None else at_s + seconds
