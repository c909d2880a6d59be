"""A recovery second by second: ``python -m tests.bench.recovery.timeline [--picture FILE]``.

A host is killed that trains under ddp with snapshots in memory, and a spare one is there. Prints when who
heard of what and when the next step was done, and draws that.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.bench.recovery.systems import Ours
from tests.bench.recovery.trials import SETTLED, power_off, training, wait_for_step
from tests.hosts import wait_until, why_not
from tests.hosts_tier.clusters import Cluster

_NUM_RANKS = 2
_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    what: str
    begin_s: float
    end_s: float


class Told(Ours):
    """Its driver also notes when it hears of what."""

    @property
    def moments(self) -> Path:
        return self._folder / "moments"

    def command(self, spec: Path) -> list[str]:
        words = super().command(spec)
        return [sys.executable, "-m", "tests.bench.recovery.telling", str(self.moments), *words[3:]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.recovery.timeline")
    parser.add_argument("--picture", type=Path, help="an SVG file to draw it into")
    picture = parser.parse_args().picture
    if reason := why_not():
        print(f"no recovery is looked at: {reason}")
        return 0
    stretches = _stretches()
    for one in stretches:
        print(f"{one.begin_s:6.2f} s  to {one.end_s:6.2f} s  {one.what}")
    if picture:
        _draw(stretches, picture)
    return 0


def _stretches() -> list[Stretch]:
    with training(Told, num_steps=10**6, num_workers=3) as (system, cluster, _):
        wait_for_step(system, SETTLED, 600)
        killed_s, first_s = _killed(system, cluster)
        lines = [line.split() for line in system.moments.read_text().splitlines()]
    after = [(float(at) - killed_s, what) for at, what, *_ in lines if float(at) > killed_s]
    moment = partial(_moment, after)
    moments = [
        (
            "the survivor hears in a collective that its peer is gone, and leaves its last state",
            moment("Raised"),
        ),
        ("the driver finds that the host takes no connection, and ends the attempt", moment("begin")),
        ("Ray Train's controller and its workers begin in processes that wait", moment("Assembled")),
        ("the ranks meet", moment("Ready", _NUM_RANKS)),
        ("they choose the last state, bring it to the new host and load it", moment("Resumption")),
        ("the interrupted step is done again", first_s - killed_s),
    ]
    # The driver hears of the last ones a quarter of a second late, after the step.
    ends = [min(end, first_s - killed_s) for _, end in moments]
    return [
        Stretch(what=what, begin_s=begin, end_s=end)
        for (what, _), begin, end in zip(moments, [0.0, *ends], ends, strict=False)
    ]


def _killed(system: Told, cluster: Cluster) -> tuple[float, float]:
    """When a host was killed, and when the next attempt's first step was done."""
    killed_s = time.time()
    power_off(cluster)
    before = {done.worker for done in system.steps() if done.ended_s <= killed_s}

    def first() -> list[float]:
        return [done.ended_s for done in system.steps() if done.worker not in before]

    wait_until(lambda: bool(first()), _PATIENCE_S, "a new step", every_s=1.0)
    return killed_s, min(first())


def _moment(after: Sequence[tuple[float, str]], what: str, number: int = 1) -> float:
    """When it was told for the ``number``th time."""
    return [at for at, told in after if told == what][number - 1]


def _draw(stretches: Sequence[Stretch], picture: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "timeline", "font.size": 9})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 2.6), layout="constrained")
    for row, one in enumerate(stretches):
        axes.barh(row, one.end_s - one.begin_s, left=one.begin_s, color="#0072b2")
        axes.annotate(f"{one.what} ({one.end_s - one.begin_s:.2f} s)", (0.0, row - 0.42), va="bottom")
    axes.set(yticks=[], xlabel="seconds since the host was killed", xlim=(0, None))
    axes.invert_yaxis()
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(picture, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main())
