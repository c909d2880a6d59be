"""What Ray's exceptions mean, for cells and for attempts. Only this module reads them."""

import re

from ray.exceptions import OutOfMemoryError, RayActorError, RayTaskError
from ray.train import ControllerError

from jobs.execution.board import Lost
from jobs.execution.causes import LOST_AT_START, LOST_CONTROLLER
from jobs.launch.ray_train.train_internals import behind_health_check, found_no_room, is_start_failed
from jobs.training.task.measurement import Failure

# Ray says so of every node that it does not reach, also of one behind a cut link.
_DEAD_NODE, _OUT_OF_REACH = "its node has died", "its node is not reached any more"
_CAUSE_OF_DEATH = re.compile(r"The actor (?:is dead|died) because ([^.\n]+)")


def lost(rank: int, error: BaseException) -> Lost:
    """The controller's report of a rank that it has lost."""
    cause = behind_health_check(error)
    is_death = isinstance(cause, RayActorError)
    found = _CAUSE_OF_DEATH.search(str(cause)) if is_death else None
    return Lost(
        rank=rank,
        reason=found[1].replace(_DEAD_NODE, _OUT_OF_REACH) if found else reason_of(cause),
        is_death=is_death,
        is_out_of_memory=isinstance(cause, OutOfMemoryError),
        is_preempted=isinstance(cause, RayActorError) and cause.preempted,
        is_silent="health check failed" in str(cause),
    )


def lost_with_node(rank: int, *, is_preempted: bool) -> Lost:
    """What the controller would report of a rank whose node is gone."""
    return Lost(
        rank=rank,
        reason=_OUT_OF_REACH,
        is_death=True,
        is_out_of_memory=False,
        is_preempted=is_preempted,
    )


def is_not_placed(error: Exception | None) -> bool:
    """Whether Ray Train found no room in time."""
    return isinstance(error, ControllerError) and found_no_room(error.controller_failure)


def untold(error: Exception | None) -> Failure:
    """The failure of a worker group of which no rank could report; ``error`` is what its ``fit()`` raised, if
    anything.
    """
    match error:
        case None:
            reason = "the workers ended without a word of it"
        case ControllerError(controller_failure=cause) if is_lost_at_start(cause):
            reason = LOST_AT_START
        case RayActorError():
            # The controller is the only actor that ``fit()`` asks, and its workers end with it.
            reason = LOST_CONTROLLER
        case _:
            reason = reason_of(error)
    return Failure(status="crash", reason=reason)


def is_lost_at_start(error: Exception) -> bool:
    """Whether a worker died while it was set up; Ray Train does not say which one. A worker whose own
    constructor fails does not count.
    """
    is_it = isinstance(error, RayActorError) or is_start_failed(error)
    return is_it and "creation task" not in str(error)


def reason_of(error: BaseException) -> str:
    """The error's type and first line; those of its cause if Ray only wraps the cause."""
    match error:
        case RayTaskError(cause=cause) | ControllerError(controller_failure=cause):
            return reason_of(cause)
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"
