"""Scenarios of long runs, attempt by attempt, as their workers and their driver record them."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from checkpointing.stores.contract import Store
from reporting.recording.attempts import DRIVER, RecordedAttempt
from tests.unit.recorded import NOON_S, attempt, incident_row, leave, step_row

STEP_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One attempt: leased at ``at_s`` (after noon), from step ``start`` to ``end``, and how it ended.

    ``parent`` is the attempt whose checkpoint it went on from. ``ending`` None is a kill. The driver told
    of it at ``noticed_s``, having heard of the step ``heard[0]`` at ``heard[1]``, and then paused for
    ``pause_s``. ``hung_s`` were spent in a step that never ended. Workers' clocks are ``skew_s`` ahead of the
    driver's; what they recorded after the step ``recorded`` never arrived.
    """

    at_s: float
    start: int
    end: int
    parent: int | None = None
    ending: str | None = None
    noticed_s: float | None = None
    heard: tuple[int, float] | None = None
    pause_s: float | None = None
    hung_s: float = 0.0
    skew_s: float = 0.0
    recorded: int | None = None
    world_size: int = 1
    group: str = "local"


def record(store: Store, scenarios: Sequence[Scenario], *, run: str = "r") -> None:
    for term, scenario in enumerate(scenarios, start=1):
        of = attempt(
            run=run,
            term=term,
            leased_s=NOON_S + scenario.at_s,
            start_step=scenario.start,
            parent_term=scenario.parent,
            world_size=scenario.world_size,
            group=scenario.group,
        )
        _record_workers(store, of, scenario)
        _record_driver(store, of, scenario)


def _record_workers(store: Store, of: RecordedAttempt, scenario: Scenario) -> None:
    begin_s = NOON_S + scenario.at_s + 1 + scenario.skew_s
    steps = range(scenario.start + 1, (scenario.end if scenario.recorded is None else scenario.recorded) + 1)
    seconds = STEP_S * len(steps) + scenario.hung_s
    leave(store, of, "phases", [("restore", begin_s, begin_s + 1, 1.0)], number=1)
    if seconds:
        leave(store, of, "phases", [("productive", begin_s + 1, begin_s + 1 + seconds, seconds)], number=2)
    if steps:
        ended_s = {step: begin_s + 1 + STEP_S * (step - scenario.start) for step in steps}
        rows = [step_row(s, step_s=STEP_S, loss=1.0 / s, ended_s=ended_s[s]) for s in steps]
        leave(store, of, "steps", rows)
    incidents = [incident_row("restore", happened_s=begin_s + 1, step=scenario.start)]
    if scenario.ending:
        incidents.append(incident_row(scenario.ending, happened_s=begin_s + 1 + seconds, step=scenario.end))
    leave(store, of, "incidents", incidents)


def _record_driver(store: Store, of: RecordedAttempt, scenario: Scenario) -> None:
    if scenario.noticed_s is None:
        return
    now_s = NOON_S + scenario.noticed_s
    step, heard_s = scenario.heard or (None, None)
    seconds = None if heard_s is None else scenario.noticed_s - heard_s
    incidents = [incident_row("failure", happened_s=now_s, step=step, seconds=seconds, text="rank 1: killed")]
    if scenario.pause_s is not None:
        incidents.append(incident_row("restart", happened_s=now_s, seconds=scenario.pause_s))
    leave(store, of, "incidents", incidents, rank=DRIVER)


KILLED_TWICE = (
    Scenario(at_s=0, start=0, end=10, noticed_s=30),
    Scenario(at_s=100, start=6, end=12, parent=1),
    Scenario(at_s=200, start=8, end=20, parent=2, ending="end"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What is drawn of an attempt; times in seconds, ``noticed_s`` after its end."""

    gap_s: float
    num_steps: int
    ancestor: int
    share: float
    ending: str | None
    noticed_s: float | None


draws = st.lists(
    st.builds(
        Draw,
        gap_s=st.floats(0, 1000),
        num_steps=st.integers(0, 20),
        ancestor=st.integers(0, 5),
        share=st.floats(0, 1),
        ending=st.sampled_from([None, "end", "failure", "interruption"]),
        noticed_s=st.none() | st.floats(-50, 500),
    ),
    min_size=1,
    max_size=4,
)


def history(drawn: Sequence[Draw]) -> list[Scenario]:
    """Each goes on from a checkpoint of any attempt before it, and may outlive the lease of the next one."""
    found: list[Scenario] = []
    at_s = 0.0
    for draw in drawn:
        at_s += draw.gap_s
        parent, start = origin(found, draw)
        end_s = at_s + 2 + STEP_S * draw.num_steps
        scenario = Scenario(
            at_s=at_s,
            start=start,
            end=start + draw.num_steps,
            parent=parent,
            ending=draw.ending,
            noticed_s=None if draw.noticed_s is None else end_s + draw.noticed_s,
        )
        found.append(scenario)
    return found


def origin(found: Sequence[Scenario], draw: Draw) -> tuple[int | None, int]:
    """An attempt without a step has no checkpoint of its own, but where it began from is still there."""
    number = draw.ancestor % (len(found) + 1)
    if number == 0:
        return None, 0
    scenario = found[number - 1]
    if scenario.end == scenario.start:
        return scenario.parent, scenario.start
    return number, scenario.start + 1 + int(draw.share * (scenario.end - scenario.start - 1))
