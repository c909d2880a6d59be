"""How often the gate of ``longhaul compare`` is right, on simulated results."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from jobs.reports.gate import Gate, gate_of, whole
from reporting.analysis.comparing import compare_sets
from reporting.results.rows import Row
from tests.unit.result_rows import row, rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """``truths``: by how much each cell's true throughput changed. ``wanted`` is the right answer."""

    name: str
    truths: Sequence[float]
    wanted: Gate
    share: float
    run_noise: float = 0.01
    step_noise: float = 0.0
    num_runs: int = 5


CASES = (
    Case(name="50 unchanged cells", truths=(1.0,) * 50, wanted="passes", share=0.95),
    Case(name="the same, steps 10 % noisy", truths=(1.0,) * 50, wanted="passes", share=0.95, step_noise=0.1),
    Case(name="the same, runs 2 % noisy", truths=(1.0,) * 50, wanted="passes", share=0.95, run_noise=0.02),
    Case(name="one of 50 cells 5 % slower", truths=(0.95, *(1.0,) * 49), wanted="worse", share=0.90),
    Case(name="four of 50 cells 5 % slower", truths=(*(0.95,) * 4, *(1.0,) * 46), wanted="worse", share=0.90),
    Case(name="four cells 5 % slower, noisy steps", truths=(0.95,) * 4, wanted="worse", share=0.85,
         step_noise=0.1),
)  # fmt: skip
_NUM_STEPS = 40


def results(dice: np.random.RandomState, case: Case, truths: Sequence[float]) -> list[Row]:
    found = []
    for number, truth in enumerate(truths):
        for repeat in range(case.num_runs):
            step_s = np.exp(case.run_noise * dice.standard_normal()) / truth
            times = step_s * np.exp(case.step_noise * dice.standard_normal(_NUM_STEPS))
            found.append(
                row(float(1000 / times.mean()), cell_id=f"{number}", seq_len=64 + number,
                    run_id=f"{number}-{repeat}")
            )  # fmt: skip
    return found


def answers(case: Case, num_trials: int) -> Counter[Gate]:
    dice = np.random.RandomState(5)
    unchanged = (1.0,) * len(case.truths)
    return Counter(
        whole(compare_sets(results(dice, case, unchanged), results(dice, case, case.truths)), 0.02)
        for _ in range(num_trials)
    )


@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=lambda case: case.name)
def test_the_gate_is_right_as_often_as_promised(case: Case) -> None:
    assert answers(case, 60)[case.wanted] >= case.share * 60


@pytest.mark.soak
def test_the_gates_answers_in_200_trials_of_each_case() -> None:
    print()
    for case in CASES:
        found = answers(case, 200)
        told = ", ".join(f"{gate} {count / 200:.1%}" for gate, count in found.most_common())
        print(f"{case.name}: {told}; wanted: {case.wanted} in {case.share:.0%}")
        assert found[case.wanted] >= case.share * 200


def test_an_interval_that_chance_may_put_there_among_many_cells_is_not_worse() -> None:
    noise = (0.995, 1.0, 1.002, 1.005, 0.998)
    slower = [0.95 * part for part in noise]
    (found,) = compare_sets(rows(*noise), rows(*slower)).comparisons
    assert gate_of(found, 0.02) == "worse"
    assert gate_of(replace(found, p_slower_adjusted=0.05), 0.02) == "passes"
