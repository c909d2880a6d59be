"""Waits, without a pause, until what is written next has a later time than what was written before."""

from pathlib import Path


def let_the_clock_tick(place: Path, files: str = "*.bin") -> None:
    """A file system dates changes by a clock that ticks some hundred times a second."""
    probe, newest = place / "probe", max(path.stat().st_ctime_ns for path in place.rglob(files))
    probe.touch()
    while probe.stat().st_ctime_ns <= newest:
        probe.touch()
