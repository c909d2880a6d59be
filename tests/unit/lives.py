"""Made-up lives of long runs, attempt by attempt, as their workers and their driver record them."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from checkpointing.stores.contract import Store
from reporting.recording.attempts import DRIVER, RecordedAttempt
from tests.unit.recorded import NOON_S, attempt, incident_row, leave, step_row

STEP_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One attempt: leased at ``at_s`` (after noon), from step ``start`` to ``end``, and how it ended.

    ``parent`` is the attempt whose checkpoint it went on from. ``last_word`` None is a kill. The driver told
    of it at ``noticed_s``, having heard of the step ``heard[0]`` at ``heard[1]``, and then paused for
    ``pause_s``. ``hung_s`` were spent in a step that never ended. Workers' clocks are ``skew_s`` ahead of the
    driver's; what they recorded after the step ``recorded`` never arrived.
    """

    at_s: float
    start: int
    end: int
    parent: int | None = None
    last_word: str | None = None
    noticed_s: float | None = None
    heard: tuple[int, float] | None = None
    pause_s: float | None = None
    hung_s: float = 0.0
    skew_s: float = 0.0
    recorded: int | None = None
    world_size: int = 1


def record(store: Store, lives: Sequence[Life], *, run: str = "r") -> None:
    for term, life in enumerate(lives, start=1):
        of = attempt(
            run=run,
            term=term,
            leased_s=NOON_S + life.at_s,
            start_step=life.start,
            parent_term=life.parent,
            world_size=life.world_size,
        )
        _record_workers(store, of, life)
        _record_driver(store, of, life)


def _record_workers(store: Store, of: RecordedAttempt, life: Life) -> None:
    begin_s = NOON_S + life.at_s + 1 + life.skew_s
    steps = range(life.start + 1, (life.end if life.recorded is None else life.recorded) + 1)
    seconds = STEP_S * len(steps) + life.hung_s
    leave(store, of, "phases", [("restore", begin_s, begin_s + 1, 1.0)], number=1)
    if seconds:
        leave(store, of, "phases", [("productive", begin_s + 1, begin_s + 1 + seconds, seconds)], number=2)
    if steps:
        ended_s = {step: begin_s + 1 + STEP_S * (step - life.start) for step in steps}
        rows = [step_row(s, step_s=STEP_S, loss=1.0 / s, ended_s=ended_s[s]) for s in steps]
        leave(store, of, "steps", rows)
    words = [incident_row("restore", happened_s=begin_s + 1, step=life.start)]
    if life.last_word:
        words.append(incident_row(life.last_word, happened_s=begin_s + 1 + seconds, step=life.end))
    leave(store, of, "incidents", words)


def _record_driver(store: Store, of: RecordedAttempt, life: Life) -> None:
    if life.noticed_s is None:
        return
    now_s = NOON_S + life.noticed_s
    step, heard_s = life.heard or (None, None)
    seconds = None if heard_s is None else life.noticed_s - heard_s
    words = [incident_row("failure", happened_s=now_s, step=step, seconds=seconds, text="rank 1: killed")]
    if life.pause_s is not None:
        words.append(incident_row("restart", happened_s=now_s, seconds=life.pause_s))
    leave(store, of, "incidents", words, rank=DRIVER)


KILLED_TWICE = (
    Life(at_s=0, start=0, end=10, noticed_s=30),
    Life(at_s=100, start=6, end=12, parent=1),
    Life(at_s=200, start=8, end=20, parent=2, last_word="end"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What is drawn of an attempt; times in seconds, ``noticed_s`` after its end."""

    gap_s: float
    num_steps: int
    ancestor: int
    share: float
    last_word: str | None
    noticed_s: float | None


fates = st.lists(
    st.builds(
        Fate,
        gap_s=st.floats(0, 1000),
        num_steps=st.integers(0, 20),
        ancestor=st.integers(0, 5),
        share=st.floats(0, 1),
        last_word=st.sampled_from([None, "end", "failure", "interruption"]),
        noticed_s=st.none() | st.floats(-50, 500),
    ),
    min_size=1,
    max_size=4,
)


def history(drawn: Sequence[Fate]) -> list[Life]:
    """Each goes on from a checkpoint of any attempt before it, and may outlive the lease of the next one."""
    found: list[Life] = []
    at_s = 0.0
    for fate in drawn:
        at_s += fate.gap_s
        parent, start = origin(found, fate)
        end_s = at_s + 2 + STEP_S * fate.num_steps
        life = Life(
            at_s=at_s,
            start=start,
            end=start + fate.num_steps,
            parent=parent,
            last_word=fate.last_word,
            noticed_s=None if fate.noticed_s is None else end_s + fate.noticed_s,
        )
        found.append(life)
    return found


def origin(found: Sequence[Life], fate: Fate) -> tuple[int | None, int]:
    """An attempt without a step has no checkpoint of its own, but where it began from is still there."""
    number = fate.ancestor % (len(found) + 1)
    if number == 0:
        return None, 0
    life = found[number - 1]
    if life.end == life.start:
        return life.parent, life.start
    return number, life.start + 1 + int(fate.share * (life.end - life.start - 1))
