"""What is shown while a sweep runs: lines with a sign of life, or a table that fits a narrow terminal."""

import re
import time

import pytest

from jobs.execution.messages import Heartbeat
from jobs.sweeps import live_view
from jobs.sweeps.live_view import open_display
from tests.unit.builders import plans_of, run_of, sweep

DEADLINE_S = 60
SPEC = sweep()
RUN, PLANS = run_of(SPEC), plans_of(SPEC)


def test_where_there_is_no_terminal_a_silence_is_broken_within_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert live_view._SILENCE_S < 10
    monkeypatch.setattr(live_view, "_SILENCE_S", 0.01)
    said, deadline = "", time.monotonic() + DEADLINE_S
    with open_display([RUN], PLANS, quiet=False) as display:
        display.started(RUN)
        while said.count("0/1 runs, ") < 2 and time.monotonic() < deadline:
            said += capsys.readouterr().out
    assert said.count("0/1 runs, ") >= 2


def test_no_line_of_a_narrow_terminal_is_wider_than_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that wraps would not be erased as a whole, and leaves a line behind at each renewal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    beat = Heartbeat(
        run_id=RUN.run_id, rank=0, phase="window", step=7, num_steps=9, step_s=1.5, memory_bytes=0
    )
    with open_display([RUN], PLANS, quiet=False) as display:
        display.started(RUN)
        display.beat(RUN, beat)
        shown, deadline = "", time.monotonic() + DEADLINE_S
        while "window 7/9" not in shown and time.monotonic() < deadline:
            shown += capsys.readouterr().out
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    lines = [line for line in re.split(r"[\r\n]", shown) if line]
    # What is cut off is the end of the name.
    assert any(line.startswith("window 7/9, 1.500 s: ") and line.rstrip().endswith("…") for line in lines)
    assert max(map(len, lines)) <= 60
