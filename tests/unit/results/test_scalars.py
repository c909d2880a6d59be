"""What is watched while a run trains follows from what was recorded."""

from typing import Any

from reporting.recording.scalars import RecordedWindow, Scalar, Scalars
from tests.unit.recorded import attempt


def a_step(step: int, **changes: Any) -> dict[str, Any]:
    values = {"step": step, "ended_s": float(step), "step_s": 1.0, "loss": 2.0, "val_loss": None}
    return {**values, "grad_norm": None, "learning_rate": None, **changes}


def of(found: list[Scalar], tag: str) -> list[tuple[int, float]]:
    return [(one.step, one.value) for one in found if one.tag == tag]


def test_each_step_has_its_loss_and_what_was_not_recorded_is_left_out() -> None:
    window = RecordedWindow(
        attempt=attempt(), rows={"steps": [a_step(1), a_step(2, loss=None, grad_norm=3.0)]}
    )
    found = Scalars().of(window)
    assert of(found, "train/loss") == [(1, 2.0)]
    assert of(found, "train/grad_norm") == [(2, 3.0)]
    assert of(found, "train/learning_rate") == []


def test_tokens_per_second_are_of_all_ranks_by_the_wall_clock() -> None:
    scalars = Scalars()
    windows = [
        RecordedWindow(attempt=attempt(tokens_per_step=100), rows={"steps": steps})
        for steps in ([a_step(1), a_step(2)], [a_step(3, ended_s=12.0)])
    ]
    found = [of(scalars.of(window), "train/tokens_per_s") for window in windows]
    assert found == [[(2, 100.0)], [(3, 10.0)]]


def test_the_checkpoints_age_is_that_of_the_newest_in_the_store() -> None:
    scalars = Scalars()
    saves = [
        {"kind": "save", "place": "store", "happened_s": 4.0},
        {"kind": "save", "place": "disk", "happened_s": 9.0},
        {"kind": "failed save", "place": "store", "happened_s": 9.5},
    ]
    before = RecordedWindow(attempt=attempt(), rows={"steps": [a_step(1)]})
    after = RecordedWindow(attempt=attempt(), rows={"incidents": saves, "steps": [a_step(10)]})
    assert of(scalars.of(before), "checkpoint/age_s") == []
    assert of(scalars.of(after), "checkpoint/age_s") == [(10, 6.0)]


def test_the_device_is_as_it_was_seen_last() -> None:
    samples = [
        {"utilization_pct": share, "power_watts": None, "memory_bytes": 7_000} for share in (10.0, 90.0)
    ]
    found = Scalars().of(RecordedWindow(attempt=attempt(), rows={"steps": [a_step(5)], "samples": samples}))
    assert of(found, "device/utilization_pct") == [(5, 90.0)]
    assert of(found, "device/memory_bytes") == [(5, 7_000)]
    assert of(found, "device/power_watts") == []


def test_a_window_without_a_step_shows_nothing() -> None:
    assert Scalars().of(RecordedWindow(attempt=attempt())) == []
