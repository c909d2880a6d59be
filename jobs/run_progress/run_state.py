"""What a driver knows of its run right now, for the status line and the status file. Pure.

Times are the driver's: ``now`` is by a clock that never goes back, ``wall_s`` is since 1970. Of the workers'
own clocks only the age of a generation is used, once per generation.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from math import ceil
from typing import Any, Literal

from jobs.training.task.events import Checked, Ended, Progress, Resumption, RunEvent
from jobs.training.task.stop_request import StopRequest

Stage = Literal[
    "starting", "training", "waiting", "stopped", "given up", "failed", "interrupted", "finished"
]  # fmt: skip
GOING_ON: tuple[Stage, ...] = ("starting", "training", "waiting")
# The remaining time is estimated from the speed over so many seconds.
_SPEED_OVER_S = 120.0
_MOST_POINTS = 240
_LEAST_SILENCE_S = 10.0
# Less time waiting for data is not worth a word.
_LEAST_DATA_WAIT = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class LastStep:
    """The newest step that the driver heard of in this attempt, and how many seconds ago."""

    step: int
    ago_s: float


class RunState:
    """``has_loss`` tells whether the run ever told a loss: a loop of the user's own need not."""

    def __init__(self, now: float, has_loss: Callable[[], bool] = lambda: True) -> None:
        self.has_loss = has_loss
        self.stage: Stage = "starting"
        self._since = now
        self._why: str | None = None
        self._attempt: int | None = None
        self._group: str | None = None
        self._retry_at: float | None = None
        self._told: Progress | None = None
        self._durable: tuple[int, float] | None = None
        self._checked_step: int | None = None
        self._points: deque[tuple[float, int]] = deque(maxlen=_MOST_POINTS)

    def begins(self, attempt: int, now: float, group: str | None = None) -> None:
        """``attempt`` counts all of the run's attempts, whichever driver made them."""
        self._attempt, self._group = attempt, group
        self._points.clear()
        self._enter("starting", now)

    def waits(self, for_s: float, why: str, now: float) -> None:
        self._enter("waiting", now, why)
        self._retry_at = now + for_s

    def ends(self, stage: Stage, now: float, why: str | None = None) -> None:
        self._enter(stage, now, why)

    def hear(self, told: RunEvent, now: float, wall_s: float) -> None:
        match told:
            case Resumption():
                self._points.append((now, told.step))
            case Progress():
                self._take(told, now, wall_s)
            case Checked(step=step):
                self._checked_step = step
            case Ended(stop_request=None, problem=None):
                self._enter("finished", now)
            case Ended(stop_request=StopRequest(aim="stop", why=why), problem=None):
                self._enter("stopped", now, why)

    def last_step(self, now: float) -> LastStep | None:
        """The newest step of this attempt. None before the attempt has reported where it begins."""
        if not self._points:
            return None
        heard_s, step = self._points[-1]
        return LastStep(step=step, ago_s=now - heard_s)

    def lasted_s(self, now: float) -> float:
        """Seconds since the run entered its present stage."""
        return now - self._since

    def line(self, now: float) -> str:
        match self.stage:
            case "starting":
                # Before it has the run's lease, nobody knows which attempt it will be.
                which = f"attempt {self._attempt} has been " if self._attempt else ""
                return f"{which}starting for {_span(now - self._since)}"
            case "waiting":
                left = ceil(max(0.0, (self._retry_at or now) - now))
                which = f"attempt {self._attempt + 1}" if self._attempt else "the next attempt"
                return f"{which} comes in {_span(left)}: {self._why}"
            case "training" if self._told:
                return "  ".join(self._facts(self._told, now))
        return self.stage + (f": {self._why}" if self._why else "")

    def record(self, now: float, wall_s: float) -> dict[str, Any]:
        """The status to store. Times in it are since 1970. It names no attempt before there is a lease."""
        told = asdict(self._told) if self._told else {}
        attempt = {"attempt": self._attempt} if self._attempt else {}
        checked = {} if self._checked_step is None else {"checked_step": self._checked_step}
        return {
            **told,
            **attempt,
            **checked,
            "stage": self.stage,
            "since_s": wall_s - (now - self._since),
            "why": self._why,
            "group": self._group,
            "has_lease": self._attempt is not None,
            "retry_at_s": None if self._retry_at is None else wall_s + self._retry_at - now,
            "eta_s": self._eta_s(),
            "told_s": wall_s,
        }

    def _enter(self, stage: Stage, now: float, why: str | None = None) -> None:
        self.stage, self._since, self._why, self._retry_at = stage, now, why, None

    def _take(self, told: Progress, now: float, wall_s: float) -> None:
        # A newly durable generation became durable since the last report, whatever the clocks say.
        most_s = now - self._points[-1][0] if self.stage == "training" and self._points else float("inf")
        if self.stage != "training":
            self._enter("training", now)
        self._told = told
        self._points.append((now, told.step))
        if told.durable_s is None or told.durable_step is None:
            self._durable = None
        elif self._durable is None or self._durable[0] != told.durable_step:
            age_s = min(max(0.0, wall_s - told.durable_s), most_s)
            self._durable = (told.durable_step, now - age_s)

    def _facts(self, told: Progress, now: float) -> list[str]:
        facts = [f"step {told.step}/{told.num_steps}"]
        if self.has_loss():
            facts.append("loss not finite" if told.loss is None else f"loss {told.loss:.4f}")
        facts += [] if told.tokens_per_s is None else [f"{told.tokens_per_s:,.0f} tokens/s"]
        facts += _data_wait(told.data_wait_share)
        eta_s = self._eta_s()
        facts += [f"ETA {_span(eta_s)}"] if eta_s is not None else []
        facts.append(self._at_risk(told, now))
        facts += self._silence(now)
        facts += [f"{told.num_failed_saves} saves failed"] if told.num_failed_saves else []
        facts += [f"attempt {self._attempt}"] if self._attempt and self._attempt > 1 else []
        return facts

    def _at_risk(self, told: Progress, now: float) -> str:
        if self._durable is None:
            return "nothing durable yet"
        step, since = self._durable
        return f"durable: step {step}, {now - since:.0f} s ago"

    def _silence(self, now: float) -> list[str]:
        """A note if there was no step for much longer than usual."""
        first_s, newest_s = self._points[0][0], self._points[-1][0]
        usual_s = (newest_s - first_s) / max(1, len(self._points) - 1)
        silent_s = now - newest_s
        is_long = silent_s > max(_LEAST_SILENCE_S, 3 * usual_s)
        return [f"no step for {_span(silent_s)}"] if is_long else []

    def _eta_s(self) -> float | None:
        """Seconds until the run is done, at the speed of the last minutes, including all that was not
        training.
        """
        told, points = self._told, self._points
        if self.stage != "training" or told is None or len(points) < 2:
            return None
        newest_s, newest = points[-1]
        first_s, first = next(point for point in points if point[0] >= newest_s - _SPEED_OVER_S)
        if newest <= first or newest_s <= first_s:
            return None
        return (told.num_steps - newest) * (newest_s - first_s) / (newest - first)


def _data_wait(share: float | None) -> list[str]:
    """A note if the training waits for its samples, rounded down so that it never says more than it is."""
    return [] if share is None or share < _LEAST_DATA_WAIT else [f"waiting for data {int(100 * share)}%"]


def _span(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
