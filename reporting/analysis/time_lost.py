"""This module says in words where a long run's time went: phases, alarms, and the cost of restarts. Pure."""

from collections.abc import Mapping

from reporting.analysis.formatting import counted, duration, fraction, is_known
from reporting.long_runs.ledger import PHASES
from reporting.long_runs.summary import LongRun


def in_order(phases: Mapping[str, float]) -> list[tuple[str, float]]:
    """Returns the ledger's phases in its order, then by name phases that only other versions of Longhaul
    know.
    """
    known = {name: seconds for name, seconds in phases.items() if is_known(seconds) and seconds > 0}
    order = [name for name in PHASES if name in known]
    return [(name, known[name]) for name in (*order, *sorted(set(known).difference(order)))]


def alarms_of(run: LongRun) -> list[tuple[float, str]]:
    return [(at_s, text) for at_s, kind, text in run.incidents if kind == "alarm"]


def closing(run: LongRun) -> str:
    """Says how much of the wall time the ledger explains."""
    explained = sum(seconds for _, seconds in in_order(run.phases))
    if not is_known(run.wall_sec) or run.wall_sec <= 0:
        return "Its wall time is not known."
    return f"The parts add up to {fraction(explained / run.wall_sec)} of {duration(run.wall_sec)}."


def costs(run: LongRun) -> str:
    """Says what all restarts cost together."""
    device_s = sum(one.device_s for one in run.recoveries if is_known(one.device_s))
    num_redone = sum(one.num_redone for one in run.recoveries)
    restarts, steps = counted(len(run.recoveries), "restart"), counted(num_redone, "step")
    return f"{restarts} cost {duration(device_s)} of device time, {steps} done again."
