"""What became of a rank whose process is gone, by what its controller says and what is left of it. Pure."""

from jobs.board import Lost, Ready
from jobs.training.measurement import Failure
from jobs.training.remains import Remains


def failure_of_loss(
    lost: Lost, ready: Ready | None, remains: Remains | None, phase: str | None = None
) -> Failure:
    """``ready`` is what it said of itself when it began, ``remains`` what was found on its node."""
    was_starved = bool(ready and remains and remains.oom_kills > ready.oom_kills)
    return Failure(
        status="oom" if lost.is_out_of_memory or was_starved else "crash",
        reason=_reason(lost, remains, was_starved),
        phase=phase,
        ranks=(lost.rank,),
        log_tail=remains.log_tail if remains else (),
    )


def _reason(lost: Lost, remains: Remains | None, was_starved: bool) -> str:
    if was_starved:
        return f"{lost.reason}; the kernel of its node ended a process for want of memory meanwhile"
    if remains is None or not lost.is_death:
        return lost.reason
    return f"{lost.reason}: {remains.signal or 'without a word in its log, as SIGKILL leaves it'}"
