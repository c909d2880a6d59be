"""What a user has to know of what went wrong, as types: their messages need no traceback."""

from collections.abc import Sequence

from jobs.execution.causes import Cause
from jobs.training.task.measurement import Failure
from jobs.training.task.stop_request import Wish


class AttemptFailed(Exception):
    """``reason`` is the first thing that went wrong on any rank; ``log_tail`` what that rank said last.

    ``failure`` is the same as data. ``nodes`` are those that all its ranks ran on, if it came so far.
    """

    def __init__(self, failure: Failure, cause: Cause, nodes: Sequence[str] = ()) -> None:
        self.failure = failure
        self.cause = cause
        # Who hangs is named by the sentence itself.
        who = "" if failure.status == "hang" else _ranks(failure.ranks)
        self.reason = f"{who}{failure.reason}"
        self.log_tail = failure.log_tail
        self.nodes = tuple(nodes)
        super().__init__("\n  ".join([self.reason, *self.log_tail]))


class StopWished(Exception):
    """Somebody wishes the run to stop while nothing goes on that could be saved."""

    def __init__(self, wish: Wish) -> None:
        super().__init__(wish.why)
        self.wish = wish


class GivenUp(Exception):
    """It makes no sense to try again, for ``why``. The cause is on the last line, after the log's tail."""

    def __init__(self, why: str, cause: str, log_tail: Sequence[str] = ()) -> None:
        super().__init__("\n".join([*(f"  {line}" for line in log_tail), f"given up, {why}: {cause}"]))
        self.why = why
        self.cause = cause


def _ranks(ranks: Sequence[int]) -> str:
    if not ranks:
        return ""
    return f"rank {ranks[0]}: " if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}: "
