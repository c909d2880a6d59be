"""The values of a run's metrics, from what its driver hears. Pure: time is an argument.

Whatever is heard costs one or two assignments. What takes longer is left to ``readings``, which is called
every few seconds.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from math import isfinite
from statistics import median
from typing import Any, get_args

from cluster.accelerators import accelerator
from jobs.execution.causes import Cause
from jobs.execution.messages import Heartbeat
from jobs.gauges.metrics import (
    DATA_WAIT,
    DURABLE_AGE_S,
    FAILED_SAVES,
    LOSS,
    MFU,
    NUM_STEPS,
    PHASE_S,
    RESTARTS,
    SLOWEST_RANK,
    SLOWEST_RATIO,
    STAGE,
    STEP,
    STEPS_AT_RISK,
    TOKENS_PER_S,
    WATTS,
    Metric,
    Reading,
)
from jobs.run_progress.run_state import Stage
from jobs.training.task.job import Recipe
from reporting.long_runs.ledger import PHASES
from reporting.results.formulas import flops_per_token, model_flops_utilization

_STAGES: tuple[str, ...] = get_args(Stage)
_CAUSES: tuple[str, ...] = get_args(Cause)


class RunGauges:
    """For all of a driver's threads. ``device`` is the market name of the group's devices, if it is known."""

    def __init__(self, device: str | None, now: float) -> None:
        self._device = device
        self._recipe: Recipe | None = None
        self._status: Mapping[str, Any] = {}
        self._restarts: Counter[str] = Counter()
        self._beats: dict[int, Heartbeat] = {}
        self._phase, self._since = "start", now
        self._spent: dict[str, float] = defaultdict(float)
        self._highest_step = 0
        self._lock = threading.Lock()

    def moves_to(self, device: str | None) -> None:
        """The attempts that follow run on another group, of such devices."""
        self._device = device

    def begins(self, recipe: Recipe, now: float) -> None:
        """An attempt has its lease, and its workers are about to be placed."""
        with self._lock:
            self._recipe = recipe
            self._beats.clear()
            self._enter("schedule", now)

    def failed(self, cause: Cause, now: float) -> None:
        with self._lock:
            self._restarts[cause] += 1
            self._enter("wait", now)

    def hear(self, beat: Heartbeat, now: float) -> None:
        with self._lock:
            self._beats[beat.rank] = beat
            if beat.rank == 0:
                self._enter(self._phase_of(beat), now)

    def tell(self, status: Mapping[str, Any]) -> None:
        """``status`` is the driver's newest record of the run, as ``RunState.record`` makes it."""
        self._status = status

    def readings(self, now: float, wall_s: float) -> list[Reading]:
        """All values that are known and finite."""
        with self._lock:
            self._enter(self._phase, now)
            found = [*self._of_status(wall_s), *self._of_ranks(), *self._counts()]
        return [reading for reading in found if isfinite(reading.value)]

    def _phase_of(self, beat: Heartbeat) -> str:
        phase = beat.doing if beat.doing in PHASES else "start"
        is_again = phase == "productive" and beat.step < self._highest_step
        self._highest_step = max(self._highest_step, beat.step)
        return "recompute" if is_again else phase

    def _enter(self, phase: str, now: float) -> None:
        self._spent[self._phase] += max(0.0, now - self._since)
        self._phase, self._since = phase, now

    def _of_status(self, wall_s: float) -> Iterator[Reading]:
        status, stage = self._status, self._status.get("stage")
        step, durable_step = status.get("step", 0), status.get("durable_step") or 0
        is_training = stage == "training"
        speed = (status.get("tokens_per_s") or 0.0) if is_training else 0.0
        yield Reading(metric=STEP, value=step)
        yield from _known(NUM_STEPS, status.get("num_steps"))
        yield from _known(LOSS, status.get("loss"))
        yield Reading(metric=TOKENS_PER_S, value=speed)
        yield from _known(DATA_WAIT, status.get("data_wait_share") if is_training else 0.0)
        yield from _known(MFU, self._mfu(speed))
        yield from (Reading(metric=STAGE, kind=name, value=name == stage) for name in _STAGES)
        if (durable_s := status.get("durable_s")) is not None:
            yield Reading(metric=DURABLE_AGE_S, value=max(0.0, wall_s - durable_s))
        yield Reading(metric=STEPS_AT_RISK, value=max(0, step - durable_step))
        yield Reading(metric=FAILED_SAVES, value=status.get("num_failed_saves", 0))

    def _mfu(self, tokens_per_s: float) -> float | None:
        recipe, chip = self._recipe, accelerator(self._device)
        if recipe is None or chip is None or not tokens_per_s:
            return None
        model, peak = recipe.model, chip.peak_flops(recipe.product_dtype)
        flops = flops_per_token(
            num_matmul_parameters=model.num_matmul_parameters,
            num_layers=model.num_layers,
            attention_size=model.attention_size,
            seq_len=recipe.seq_len,
        )
        return model_flops_utilization(tokens_per_s / recipe.world_size, flops, peak)

    def _of_ranks(self) -> Iterator[Reading]:
        paces = {rank: beat.pace_s for rank, beat in self._beats.items() if beat.pace_s > 0}
        if len(paces) > 1:
            slowest = max(paces, key=paces.__getitem__)
            others = median(pace_s for rank, pace_s in paces.items() if rank != slowest)
            yield Reading(metric=SLOWEST_RANK, value=slowest)
            yield Reading(metric=SLOWEST_RATIO, value=paces[slowest] / others)
        watts = [beat.power_watts for beat in self._beats.values() if beat.power_watts is not None]
        yield from _known(WATTS, sum(watts) if watts else None)

    def _counts(self) -> Iterator[Reading]:
        yield from (Reading(metric=PHASE_S, kind=name, value=self._spent[name]) for name in PHASES)
        yield from (Reading(metric=RESTARTS, kind=cause, value=self._restarts[cause]) for cause in _CAUSES)


def _known(metric: Metric, value: float | None) -> Iterator[Reading]:
    if value is not None:
        yield Reading(metric=metric, value=value)
