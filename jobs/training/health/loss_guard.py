"""Ends an attempt whose loss went wrong, on all ranks at the same step and before its state is saved.

If a loss or a gradient is not finite on any rank, all ranks know it two steps later, at no cost. Each rank
reads a step's values while its device does the next step, and sends an alarm in the control word. A step
that needs the loss over all ranks, as every save does, finds it at once. Only such steps look for spikes.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import SupportsFloat

from jobs.training.health.failures import InvalidLoss
from jobs.training.health.late_figure import LateFigure
from jobs.training.ranks.gathering import gather
from jobs.training.task.measurement import BadLoss
from jobs.training.task.skipping import Range, RecordedStretches
from jobs.training.task.spikes import Spike, SpikeBound, Spikes

# A step is known to be good on all ranks once two more are done.
_NUM_OPEN = 3
_ADVICE = "a lower optimizer.lr, a longer warm-up or fp32 usually helps"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """A finished step of this rank: the range of samples it read, and its results, which may be late.

    Of a mixture, ``by_source`` has for each source in turn the sum of its losses and the number of its
    tokens.
    """

    step: int
    samples: Range
    loss: SupportsFloat
    grad_norm: SupportsFloat | None
    by_source: LateFigure | None = None

    def is_bad(self) -> bool:
        """Whether loss or gradient is not finite. Waits for this step."""
        return not isfinite(float(self.loss)) or self.has_bad_gradient()

    def has_bad_gradient(self) -> bool:
        return self.grad_norm is not None and not isfinite(float(self.grad_norm))


class RankLossGuard:
    """One rank's guard; every rank makes the same calls. With ``bound`` None it does not look for spikes.

    ``checked_loss`` and ``checked_sums`` are this rank's loss and ``by_source`` of the step that
    ``check_last_step`` looked at last.
    """

    def __init__(self, bound: SpikeBound | None, stretches: RecordedStretches = ()) -> None:
        self._stretches = stretches
        self.is_alarmed = False
        self.checked_loss: float | None = None
        self.checked_sums: Sequence[float] = ()
        self._spikes = Spikes(bound) if bound else None
        self._open: deque[StepDone] = deque(maxlen=_NUM_OPEN)
        self._good: StepDone | None = None

    def check_last_step(self) -> None:
        """Checks the last step, and waits for it. Call it once the next is launched: the device goes on."""
        if self._open:
            self.checked_loss, self.checked_sums = float(self._open[-1].loss), self._sums_of(-1)
            if not isfinite(self.checked_loss) or self._open[-1].has_bad_gradient():
                self.is_alarmed = True

    def add(self, done: StepDone) -> None:
        self._open.append(done)

    def own_loss(self) -> float:
        """The newest step's loss, or NaN if a gradient or an earlier step is known to have gone wrong.

        The other ranks may not know of that yet; the NaN makes the mean over all ranks tell them.
        """
        newest = self._open[-1]
        return float("nan") if self.is_alarmed or newest.is_bad() else float(newest.loss)

    def own_sums(self) -> Sequence[float]:
        return self._sums_of(-1)

    def loss_before(self) -> float:
        """The loss of the step before the newest."""
        return float(self._open[-2].loss)

    def sums_before(self) -> Sequence[float]:
        return self._sums_of(-2)

    def _sums_of(self, place: int) -> Sequence[float]:
        late = self._open[place].by_source
        return late.values() if late else ()

    def judge(self, is_any_alarmed: bool, mean_loss: float | None) -> None:
        """Judges the newest step; raises ``InvalidLoss`` on all ranks or on none.

        ``is_any_alarmed`` and ``mean_loss`` must be the same on all ranks. ``mean_loss`` is the mean of
        ``own_loss`` over all ranks; None if this step did not need it.
        """
        if is_any_alarmed or (mean_loss is not None and not isfinite(mean_loss)):
            raise self._not_finite()
        if mean_loss is not None and self._spikes is not None:
            self._look_for_spikes(self._spikes, mean_loss)

    def _not_finite(self) -> InvalidLoss:
        """The error that names the first step that was bad on any rank. Collective."""
        own = next((done.step for done in self._open if done.is_bad()), self._open[-1].step)
        first = min(gather(own, int))
        bad = next(done for done in self._open if done.step == first)
        return _invalid(
            f"the loss of step {bad.step} or its gradient is not a finite number",
            BadLoss(step=bad.step, good_step=bad.step - 1, samples=bad.samples, stretches=self._stretches),
        )

    def _look_for_spikes(self, spikes: Spikes, mean_loss: float) -> None:
        newest, spike = self._open[-1], spikes.add(mean_loss)
        if spike is not None:
            raise self._too_high(spike, newest)
        if not spikes.is_high:
            self._good = newest

    def _too_high(self, spike: Spike, newest: StepDone) -> InvalidLoss:
        # A loss is too high only after enough losses that were not, so a good step exists.
        good = self._good
        assert good is not None
        return _invalid(
            f"the loss is {spike.loss:.4g} at step {newest.step} and has been above {spike.bound:.4g}, which "
            f"recent steps allow for, since after step {good.step}",
            BadLoss(
                step=newest.step,
                good_step=good.step,
                samples=(good.samples[1], newest.samples[1]),
                stretches=self._stretches,
            ),
        )


def _invalid(what: str, bad: BadLoss) -> InvalidLoss:
    first, end = bad.samples
    which = f"sample {first}" if end == first + 1 else f"samples {first} to {end - 1}"
    return InvalidLoss(f"{what} ({which} of the run's stream); {_ADVICE}", bad)
