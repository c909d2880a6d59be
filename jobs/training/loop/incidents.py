"""What becomes an incident in the record of an attempt, whoever runs the steps."""

from checkpointing.saving.save import SaveNote
from jobs.training.state.restoring import ResumePoint
from reporting.recording.attempts import Incident
from reporting.results.redaction import without_credentials


def started(num_ranks: int, how: str = "") -> Incident:
    return Incident(kind="start", text=f"{num_ranks} {'rank' if num_ranks == 1 else 'ranks'}{how}")


def restored(start: ResumePoint, seconds: float) -> Incident:
    return Incident(
        kind="restore",
        step=start.step,
        seconds=seconds,
        generation=start.generation,
        text=start.trail[-1] if start.trail else None,
    )


def saved(note: SaveNote) -> Incident:
    return Incident(
        kind="failed save" if note.problem else "save",
        step=note.step,
        seconds=note.took_s,
        blocked_s=note.blocked_s,
        num_bytes=note.num_bytes,
        place=note.place,
        generation=note.generation,
        text=note.problem,
    )


def broken_off(error: BaseException, step: int) -> Incident:
    """An exception is a failure; what else ends a training, such as Ctrl-C, is an interruption."""
    if isinstance(error, Exception):
        text = without_credentials(f"{type(error).__name__}: {error}")
        return Incident(kind="failure", step=step, text=text)
    return Incident(kind="interruption", step=step, text=type(error).__name__)
