"""What the bench takes a save to cost: all that it holds up, the step before which it is cut too."""

import pytest

from tests.bench.recovery.saves import BLOCK_S, EVERY_S, ratios
from tests.bench.recovery.stock import Done

STEP_S, CUT_S = 0.02, 0.05


def test_the_time_in_which_a_save_is_cut_is_its_blocks() -> None:
    steps: list[Done] = []
    begun_s: list[float] = []
    now = 0.0
    for step in range(5000):
        if now >= EVERY_S * (len(begun_s) + 1):
            begun_s.append(now)
            now += CUT_S
        now += STEP_S
        steps.append(Done(ended_s=now, worker="1", step=step))
    found = ratios(steps, begun_s)
    assert len(found) == len(begun_s) - 1 >= 5
    # A block has so many steps less.
    assert found == pytest.approx([BLOCK_S / (BLOCK_S - CUT_S)] * len(found), rel=1e-4)
