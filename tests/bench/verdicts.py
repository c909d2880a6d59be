"""How often a verdict is wrong, beside two obvious ways to decide: Welch's test on all steps pooled, and the
exact rank test on runs. Simulated: no device has a say.
"""

import sys
from collections import Counter
from dataclasses import dataclass
from math import exp, sqrt
from random import Random
from statistics import fmean, variance

from reporting.analysis.statistics import contrasts, mann_whitney, over_sessions

NUM_TRIALS, NUM_STEPS, STEP_NOISE = 1_000, 20, 0.02
MOST_FALSE, LEAST_FOUND, LEAST_HELD = 0.05, 0.90, 0.93
_SIGNIFICANT = 0.05
_NORMAL = 1.96
# Half a percent of luck for a thousand trials.
_LUCK = 0.012


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """Two arms of ``num_runs`` each in every session; noises are between runs, and between sessions."""

    name: str
    num_runs: int = 5
    noises: tuple[float, float] = (0.01, 0.01)
    edge: float = 1.0
    num_sessions: int = 1
    of_sessions: float = 0.0


_CASES = (
    _Case(name="equal, 4 runs", num_runs=4),
    _Case(name="equal, 5 runs"),
    _Case(name="equal, 10 runs", num_runs=10),
    _Case(name="equal, 20 runs", num_runs=20),
    _Case(name="equal, noise 1 and 3 %", noises=(0.01, 0.03)),
    _Case(name="equal, noise 1 and 10 %", noises=(0.01, 0.10)),
    _Case(name="equal, 2 sessions 1 % apart", num_sessions=2, of_sessions=0.01),
    _Case(name="equal, 3 sessions 1 % apart", num_sessions=3, of_sessions=0.01),
    _Case(name="+3 %, 5 runs", edge=1.03),
    _Case(name="-3 %, 5 runs", edge=0.97),
    _Case(name="+5 %, 3 sessions 1 % apart", num_sessions=3, of_sessions=0.01, edge=1.05),
)


def main() -> bool:
    print(f"verdicts       simulated, {NUM_TRIALS:,} trials of {NUM_STEPS} steps 2 % noisy; in each line:")
    print("               called different | the truth is held | all steps pooled | ranks of runs")
    are_good = [_line(case, Random(case.name)) for case in _CASES]
    return all(are_good)


def _line(case: _Case, random: Random) -> bool:
    counts: Counter[str] = Counter()
    for _ in range(NUM_TRIALS):
        speeds = zip(case.noises, (1.0, case.edge), strict=True)
        arms = [_arm(case, noise, speed, random) for noise, speed in speeds]
        runs = [[run for session in arm for run in session] for arm in arms]
        (found,) = contrasts([(runs[0], runs[1])])
        found = over_sessions(found, *arms)
        assert found.low is not None and found.high is not None, "every case has enough runs"
        counts["different"] += found.verdict in ("faster", "slower")
        counts["held"] += found.low <= case.edge <= found.high
        counts["pooled"] += _differs_by_steps(*runs, random)
        counts["ranks"] += (mann_whitney(*runs) or 1.0) < _SIGNIFICANT
    names = ("different", "held", "pooled", "ranks")
    different, held, pooled, ranks = (counts[name] / NUM_TRIALS for name in names)
    is_good = held >= LEAST_HELD - _LUCK and (
        different <= MOST_FALSE + _LUCK if case.edge == 1.0 else different >= LEAST_FOUND - _LUCK
    )
    mark = "" if is_good else "  MISSED"
    print(f"  {case.name:30} {different:6.1%} | {held:6.1%} | {pooled:6.1%} | {ranks:6.1%}{mark}")
    return is_good


def _arm(case: _Case, noise: float, speed: float, random: Random) -> list[list[float]]:
    return [
        [1_000 * speed * exp(day + random.gauss(0, noise)) for _ in range(case.num_runs)]
        for day in (random.gauss(0, case.of_sessions) for _ in range(case.num_sessions))
    ]


def _differs_by_steps(ours: list[float], theirs: list[float], random: Random) -> bool:
    """Welch's test on all steps, as if each were a measurement of its own."""
    steps = [
        [speed * (1 + random.gauss(0, STEP_NOISE)) for speed in arm for _ in range(NUM_STEPS)]
        for arm in (ours, theirs)
    ]
    error = sqrt(sum(variance(arm) / len(arm) for arm in steps))
    return abs(fmean(steps[1]) - fmean(steps[0])) > _NORMAL * error


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
