"""Judges by its ranks' heartbeats whether a run is going on, hanging, or out of time. Pure.

Time is an argument, so that a driver that was itself held up judges only what it has heard since.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf

from jobs.execution.messages import BEAT_INTERVAL_S, Heartbeat, SessionLimits, beat_interval_s
from jobs.training.task.context import BUILDING, Phase
from jobs.training.task.job import Job
from jobs.training.task.measurement import Failure
from jobs.training.task.task import Task
from reporting.results.formulas import percentile

_IN_ORDER: tuple[Phase, ...] = (
    *("cooldown", "setup", "warmup", "window"),
    *("gather", "profile", "trace", "teardown"),
)
_STEPPING: tuple[Phase, ...] = ("warmup", "window", "profile")
# What to do about ranks that do not reach each other.
NETWORK_HINT = (
    "ranks that can't reach each other stand like this: `longhaul doctor` tries the links; name the "
    "interface (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME), and open all ports between the nodes"
)
# A run may take five times its own slowest usual step before it counts as stuck.
_PATIENCE = 5
# The first step also compiles, connects and fills allocators, and nothing is known of its length.
_FIRST_STEP_PATIENCE = 10
# About four minutes of heartbeats; enough for a p99, and bounded.
_KEPT_STEP_TIMES = 500
# How long each phase of the run's ledger may take without a step. Compiling belongs to the first step, which
# gets ten times the usual patience. Reading data waits for a store that is away: so "data wait" is longer
# than the patience in ``checkpointing.stores.retrying`` and one stalled call together.
_PATIENCE_S: Mapping[str, float] = {
    "start": 900.0,
    "restore": 1800.0,
    "eval": 1800.0,
    "check": 900.0,
    "data wait": 900.0,
    "stall": 300.0,
}
# How long the ranks of a cell may only talk to each other, and how much longer for each of them.
_TALK_S, _TALK_PER_RANK_S = 120.0, 0.5
_TALKING: tuple[Phase, ...] = ("setup", "gather", "teardown")
# Building imports a strategy, from a slow disk too, and fills the model. A tenth of what a slow core fills.
_BUILD_S, _BUILD_BYTES_PER_S = 600.0, 20e6
_FP32_BYTES = 4
# After the last save the log entry is written, which is retried for so long while the store is away.
_LAST_WORD_S = 300.0


def limits_of(task: Task, *, schedule_timeout_s: float, hang_timeout_s: float) -> SessionLimits:
    """The limits of an attempt, which may take as long as it makes progress."""
    save_s = task.saving.ending_s if task.saving else 0.0
    return SessionLimits(
        schedule_timeout_s=schedule_timeout_s,
        cell_timeout_s=inf,
        hang_timeout_s=hang_timeout_s,
        patience_s={**_PATIENCE_S, **dict.fromkeys(("save", "last save"), save_s + _LAST_WORD_S)},
    )


def limits_of_jobs(jobs: Sequence[Job], limits: SessionLimits) -> SessionLimits:
    """The limits of a session's cells: also of the phases in which their ranks do no step.

    Building a model has more time the larger it is. What a spec asks to wait for has no limit here.
    """
    recipes = [job.recipe for job in jobs]
    talk_s = _TALK_S + _TALK_PER_RANK_S * max(recipe.world_size for recipe in recipes)
    largest_bytes = _FP32_BYTES * max(recipe.model.num_parameters for recipe in recipes)
    build_s = _BUILD_S + talk_s + largest_bytes / _BUILD_BYTES_PER_S
    unlimited = {"cooldown": inf, "trace": inf}
    return replace(limits, patience_s={**dict.fromkeys(_TALKING, talk_s), BUILDING: build_s, **unlimited})


class HangDetection:
    """Follows one run on ``world_size`` ranks that began at ``now``. Every rank counts as heard at that
    time.
    """

    def __init__(self, limits: SessionLimits, world_size: int, now: float) -> None:
        self._limits = limits
        # Very many ranks send heartbeats more seldom, and each may be so much older.
        self._silence_s = limits.hang_timeout_s + beat_interval_s(world_size) - BEAT_INTERVAL_S
        self._began = self._moved = now
        self._heard = dict.fromkeys(range(world_size), now)
        self._latest: dict[int, Heartbeat] = {}
        self._step_times_s: deque[float] = deque(maxlen=_KEPT_STEP_TIMES)
        self._has_moved = False

    @property
    def phase(self) -> Phase | None:
        """The furthest phase that any rank has reported. Ranks go in step, so the others are there or nearly
        so.
        """
        return max((beat.phase for beat in self._latest.values()), key=_IN_ORDER.index, default=None)

    def forget(self, rank: int) -> None:
        """Nobody waits for this rank any more: it has no more to do, and its later heartbeats are ignored."""
        self._heard.pop(rank, None)
        self._latest.pop(rank, None)

    def note(self, beat: Heartbeat, now: float) -> None:
        if beat.rank not in self._heard:
            return
        before = self._latest.get(beat.rank)
        self._heard[beat.rank] = now
        self._latest[beat.rank] = beat
        if before is None or _stand(before) == _stand(beat):
            return
        self._moved, self._has_moved = now, True
        if beat.step_s > 0 and before.step != beat.step:
            self._step_times_s.append(beat.step_s)

    def failure(self, now: float) -> Failure | None:
        """Why the run must end now. None while it may go on, or if every rank is forgotten."""
        if not self._heard:
            return None
        return self._silence(now) or self._standstill(now) or self._lateness(now)

    def silent(self, now: float) -> list[int]:
        """The ranks that were not heard for too long."""
        return [rank for rank, heard in self._heard.items() if now - heard > self._silence_s]

    def _silence(self, now: float) -> Failure | None:
        silent = self.silent(now)
        if not silent:
            return None
        return self._failed(f"{_ranks(silent)} silent for {self._silence_s:.0f} s", silent)

    def _standstill(self, now: float) -> Failure | None:
        if now - self._moved <= min([self._limits.hang_timeout_s, *self._limits.patience_s.values()]):
            # No limit is shorter. This is asked several times a second, and there may be many ranks.
            return None
        behind = self._behind(self._heard)
        limit_s = self._stand_limit_s(behind[0])
        if limit_s is None or now - self._moved <= limit_s:
            return None
        failure = self._failed(f"no step for {limit_s:.0f} s; {_ranks(behind)} furthest behind", behind)
        if behind[0] in self._latest and _doing(self._latest[behind[0]]) in _TALKING:
            return replace(failure, reason=f"{failure.reason}; {NETWORK_HINT}")
        return failure

    def _stand_limit_s(self, rank: int) -> float | None:
        """How long the run may do no step; None if no limit is known. What one rank is doing holds up all
        ranks, so the longest limit counts.
        """
        beats = self._latest.values()
        declared = [limit_s for beat in beats if (limit_s := self._limits.patience_s.get(_doing(beat)))]
        is_stepping = rank in self._latest and self._latest[rank].phase in _STEPPING
        return max([*declared, *([self._step_limit_s()] if is_stepping else [])], default=None)

    def _lateness(self, now: float) -> Failure | None:
        limit_s = self._limits.cell_timeout_s
        if now - self._began <= limit_s:
            return None
        if not self._has_moved:
            return self._failed(f"no change of phase for {limit_s:.0f} s", sorted(self._heard))
        where = self._where(self._heard)
        reason = f"not done after {limit_s:g} s{where}; raise limits.cell_timeout_s to let it go on"
        return Failure(status="timeout", reason=reason, phase=self.phase)

    def _failed(self, what: str, ranks: list[int]) -> Failure:
        return Failure(status="hang", reason=what + self._where(ranks), phase=self.phase, ranks=tuple(ranks))

    def _step_limit_s(self) -> float:
        floor_s = self._limits.hang_timeout_s
        if not self._step_times_s:
            return floor_s * _FIRST_STEP_PATIENCE
        return max(floor_s, _PATIENCE * percentile(list(self._step_times_s), 99))

    def _behind(self, ranks: Iterable[int]) -> list[int]:
        """The ranks that are furthest behind. A rank that was never heard counts as the furthest.

        Hosts launch on while a device hangs, and then all wait at the same step. So where every device tells
        how far it is, devices come first.
        """
        beats = [self._latest.get(rank) for rank in self._heard]
        by_device = all(beat is not None and beat.device_step is not None for beat in beats)
        places = {rank: self._place(rank, by_device=by_device) for rank in ranks}
        furthest = min(places.values())
        return sorted(rank for rank, place in places.items() if place == furthest)

    def _place(self, rank: int, *, by_device: bool) -> tuple[int, ...]:
        beat = self._latest.get(rank)
        if beat is None:
            return (-1,)
        device = (beat.device_step or 0, beat.device_marks) if by_device else (0, 0)
        return (_IN_ORDER.index(beat.phase), *device, beat.step, beat.num_batches)

    def _where(self, ranks: Iterable[int]) -> str:
        """Where the rank furthest behind was last heard."""
        beat = self._latest.get(self._behind(ranks)[0])
        if beat is None:
            return ", before any sign of life"
        at_step = f" at step {beat.step} of {beat.num_steps}" if beat.phase in _STEPPING else ""
        device = "" if beat.device_step is None else f", its device done with step {beat.device_step}"
        return f", in {_doing(beat)}{at_step}{device}"


def _doing(beat: Heartbeat) -> str:
    return beat.doing or beat.phase


def _stand(beat: Heartbeat) -> tuple[str, int, int, str]:
    return beat.phase, beat.step, beat.num_batches, beat.doing


def _ranks(ranks: Iterable[int]) -> str:
    numbers = sorted(ranks)
    return f"rank {numbers[0]} is" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))} are"
