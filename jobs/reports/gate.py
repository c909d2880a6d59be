"""The gate decides, from a comparison, whether B may replace A: cell by cell, then as a whole.

A cell is *worse* if B fails at what A does, or if its interval lies beyond the threshold. Among many cells a
few intervals do so by chance. So Welch's p that nothing is slower, adjusted over all cells, must be small,
too.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from jobs.commandline.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_UNDECIDED
from reporting.analysis.comparing import SetComparison
from reporting.analysis.findings import Comparison
from reporting.analysis.statistics import THRESHOLD
from reporting.results.skipped import Skipped

Gate = Literal["worse", "undecided", "passes"]

# A cell that may have lost so many times the threshold was measured too little to pass.
_TOO_WIDE = 5
EXIT_CODES: Mapping[Gate, int] = {"worse": EXIT_FAILED, "undecided": EXIT_UNDECIDED, "passes": EXIT_OK}
_MOST_FALSE = 0.05
# What says nothing of the code that ran, or would have run.
_NOT_TRIED = ("unschedulable", "device_mismatch", "lost")


def gate_of(found: Comparison, threshold: float) -> Gate:
    if found.other_status != "ok":
        if found.baseline_status == found.other_status:
            return "passes"
        is_new = found.baseline_status == "ok" and found.other_status not in _NOT_TRIED
        return "worse" if is_new else "undecided"
    if found.baseline_status != "ok" or found.verdict in ("faster", "equivalent"):
        return "passes"
    if found.low is None or found.high is None or found.p_slower_adjusted is None:
        return "undecided"
    if found.high < 1 - threshold and found.p_slower_adjusted < _MOST_FALSE:
        return "worse"
    return "undecided" if found.low < 1 - _TOO_WIDE * max(threshold, THRESHOLD) else "passes"


def whole(found: SetComparison, threshold: float, unread: Sequence[Skipped] = ()) -> Gate:
    """Returns ``worse`` if any cell is, else ``undecided`` if any cell is or is missing in B, if no cell is
    on both sides, or if results are ``unread``: nobody knows what they say.
    """
    gates = set(_gates(found, threshold))
    if unread or not found.comparisons:
        gates.add("undecided")
    if "worse" in gates:
        return "worse"
    return "undecided" if "undecided" in gates else "passes"


def _gates(found: SetComparison, threshold: float) -> Iterator[Gate]:
    yield from (gate_of(each, threshold) for each in found.comparisons)
    for _ in found.only_in_baseline:
        yield "undecided"
