"""Recoveries say what each restart of a long run cost, from one attempt's end to the next one's training.
Pure.

The seconds come from the ledger. So the time of all restarts and the time between them add up to the run's
wall time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from reporting.long_runs.ledger import Ledger
from reporting.long_runs.timeline import TimelineEntry
from reporting.recording.attempts import RecordedAttempt

# In the order of time. A pause before a run was started again by hand is not a phase: nobody was waiting.
PHASES = ("detect", "wait", "schedule", "start", "restore", "recompute")
_OF_ATTEMPT = ("detect", "recompute")
_AFTER_ATTEMPT = ("detect", "wait", "schedule", "recompute")
_OF_SUCCESSOR = ("schedule", "start", "restore")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Attempt ``term`` ended ``at_s`` seconds after the run's first start; the next attempt went on from
    ``step``, or did not get that far if ``step`` is None.

    ``phases`` are seconds; ``recompute`` is the time of the ``num_redone`` steps that had to be repeated.
    ``device_s`` is the cost in device seconds, over all devices that the attempt had or waited for. ``cause``
    is the kind of the incident that ended the attempt.
    """

    term: int
    at_s: float
    cause: str
    text: str | None
    step: int | None
    num_redone: int
    phases: Mapping[str, float] = field(default_factory=dict)
    device_s: float = 0.0

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())


def recovery(
    attempt: RecordedAttempt,
    successor: RecordedAttempt,
    ledger: Ledger,
    ending: TimelineEntry,
    *,
    num_redone: int,
    begin_s: float,
) -> Recovery:
    """Returns what it cost to go on with ``successor``. ``ending`` is the incident that ended the attempt."""
    devices = dict.fromkeys(PHASES, 0.0)
    seconds = dict.fromkeys(PHASES, 0.0)
    for names, spent, world_size in (
        (_OF_ATTEMPT, ledger.by_term[attempt.term], attempt.world_size),
        (_AFTER_ATTEMPT, ledger.after[attempt.term], attempt.world_size),
        (_OF_SUCCESSOR, ledger.by_term[successor.term], successor.world_size),
    ):
        for name in names:
            seconds[name] += spent.get(name, 0.0)
            devices[name] += spent.get(name, 0.0) * world_size
    return Recovery(
        term=attempt.term,
        at_s=ending.happened_s - begin_s,
        cause=ending.kind,
        text=ending.text,
        step=successor.start_step,
        num_redone=num_redone,
        phases={name: spent for name, spent in seconds.items() if spent > 0},
        device_s=sum(devices.values()),
    )
