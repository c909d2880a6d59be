"""What saves cost a training: one run, in which 5 s with a save and 5 s without take turns.

Both kinds of blocks share the processes and the machine's mood, so that what is left is the save.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from checkpointing.stores.local import LocalStore
from reporting.analysis.findings import Estimate
from reporting.analysis.statistics import estimate
from reporting.long_runs.reading import one_run, read_parts
from reporting.results.skipped import Skipped
from tests.bench.recovery.stock import Done
from tests.bench.recovery.systems import Ours
from tests.hosts import hosts_on, wait_until
from tests.hosts_tier.clusters import Cluster

EVERY_S = 10.0
BLOCK_S = EVERY_S / 2
_START_S = 600.0
# To look takes time from the training.
_LOOK_EVERY_S = 30.0
# No epoch ends, which would be one more save.
_NUM_SAMPLES = 10**7
# Ranks agree on a save before it is cut: that too is its block's.
_AGREED_S = 0.5


def cost_of_saving(num_saves: int) -> Estimate | None:
    """The time of a step in a block with a save over that in the block after it."""
    with TemporaryDirectory(prefix="longhaul-bench-") as name, hosts_on(Path(name) / "hosts") as lan:
        ours = Ours(Path(name), saving=f"every_s: {EVERY_S}", num_samples=_NUM_SAMPLES)
        cluster = Cluster(lan=lan, settings=ours.settings)
        cluster.start(num_workers=2)
        ours.start(cluster, 10**6, 0)
        patience_s = _START_S + EVERY_S * (num_saves + 2)
        # The first blocks have the start in them.
        wait_until(
            lambda: len(_begun_s(ours.store)) >= num_saves + 2,
            patience_s,
            "the last save",
            every_s=_LOOK_EVERY_S,
        )
        begun_s = _begun_s(ours.store)[1:]
        return estimate(ratios(ours.steps(), begun_s))


def _begun_s(store: Path) -> list[float]:
    """When each save was cut, by rank 0's clock."""
    parts, skipped = one_run(LocalStore(store), "r"), list[Skipped]()
    rows = [
        row
        for _, part in read_parts(LocalStore(store), parts.of("incidents"), skipped)
        for row in part.to_pylist()
    ]
    saves = [row for row in rows if row["kind"] == "save" and row["rank"] == 0 and row["place"] == "store"]
    return sorted({row["step"]: row["happened_s"] - row["seconds"] for row in saves}.values())


def ratios(steps: Sequence[Done], begun_s: Sequence[float]) -> list[float]:
    """Of each save but the last one."""
    ended_s = [done.ended_s for done in steps]
    return [
        _step_s(ended_s, at, at + BLOCK_S) / _step_s(ended_s, at + BLOCK_S, next_s)
        for at, next_s in pairwise(cut_s - _AGREED_S for cut_s in begun_s)
    ]


def _step_s(ended_s: Sequence[float], start_s: float, end_s: float) -> float:
    """From the end of the last step before the block: a save is cut between two steps."""
    first, last = (bisect_right(ended_s, at) - 1 for at in (start_s, end_s))
    return (ended_s[last] - ended_s[first]) / (last - first)
