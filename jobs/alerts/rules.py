"""Judges whether a training goes as it should, from what its driver hears. Pure: time is an argument.

Each alarm is raised once and is over when things are clearly better again. It is not raised again before
``min_interval_s``. What is usual is learnt from the present attempt alone: another attempt may run elsewhere.
The age of the newest checkpoint counts across a driver's attempts, and while none trains.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal

from jobs.alerts.slow_hosts import LinksTried
from jobs.alerts.slow_links import UploadRates
from jobs.alerts.slow_ranks import RankSpeeds
from jobs.execution.messages import Heartbeat
from jobs.training.task.events import Evaluated, Progress, RunEvent
from jobs.training.task.spikes import SpikeBound, Spikes

AlarmKind = Literal[
    "loss not finite", "loss spike", "throughput drop", "straggler", "slow link", "slow network",
    "stale checkpoint", "low utilization", "waiting for data", "silent corruption", "given up",
]  # fmt: skip
AlarmFact = float | int | str

# The alarm comes sooner than the ranks' own spike guard, which ends an attempt.
_SPIKE = SpikeBound(sigmas=8.0, num_recent=60, fewest=20, in_a_row=2)
# Progress arrives about once a second, so the usual speed is that of ten minutes, the present one of seconds.
_NUM_SPEEDS, _FEWEST_SPEEDS, _PRESENT = 600, 30, 8
# A save takes some seconds, however short the cadence.
_LEAST_STALE_S = 30.0
# The looks of one minute. More would tell nothing new, and there may be a thousand ranks.
_NUM_LOADS, _LOAD_EVERY_S = 12, 5.0
# A judgement that compares all ranks takes longer the more there are: of many, each round has so many.
_JUDGEMENTS_A_ROUND = 64
# A minute: caches and readers ahead of the training fill after its beginning.
_NUM_DATA_WAITS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds beyond which an alarm is raised; None: never.

    * ``loss_spike``: the loss is so many times the usual one, twice in a row.
    * ``throughput_drop``: tokens/s are lower by this share.
    * ``straggler``: a rank is slower than the others by this share.
    * ``stale_checkpoint``: the newest checkpoint is so many times as old as it should get.
    * ``slow_link``: a host uploads its share of a save, sends to other hosts or takes from them at less than
      this share of the others' rate.
    * ``utilization_pct``: a device was busy for less than so many percent of a minute.
    * ``data_wait``: for so large a share of a minute rank 0 had no samples yet.

    The ``metadata`` of a field bound what a spec may say. The order of the fields is that of the stored spec.
    """

    min_interval_s: float = field(default=300.0, metadata={"ge": 0})
    loss_spike: float | None = field(default=2.0, metadata={"gt": 1})
    throughput_drop: float | None = field(default=0.3, metadata={"gt": 0, "lt": 1})
    straggler: float | None = field(default=0.5, metadata={"gt": 0})
    stale_checkpoint: float | None = field(default=3.0, metadata={"ge": 1})
    utilization_pct: float | None = field(default=30.0, metadata={"gt": 0, "lt": 100})
    slow_link: float | None = field(default=0.25, metadata={"gt": 0, "lt": 1})
    data_wait: float | None = field(default=0.2, metadata={"gt": 0, "lt": 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How often something should become durable, by time or by steps; both None if nothing is saved."""

    every_s: float | None
    every_steps: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ringing:
    """The user's alert command, run without a shell for each alarm, and its time limit."""

    command: Sequence[str]
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """An alarm about a training; with ``is_over``, the alarm of this kind that was raised before is over."""

    kind: AlarmKind
    text: str
    step: int
    facts: Mapping[str, AlarmFact] = field(default_factory=dict)
    is_over: bool = False


@dataclass(slots=True)
class _Switch:
    is_on: bool = False
    raised_s: float = float("-inf")


class Alarms:
    def __init__(self, bounds: Bounds, wanted: Wanted) -> None:
        self._bounds = bounds
        self._wanted = wanted
        self._switches: dict[AlarmKind, _Switch] = {}
        self._step = 0
        # When the present attempt last reported progress; None while none trains.
        self._told_s: float | None = None
        # The step of the newest durable generation; since when there was none newer; how many steps were
        # done since then.
        self._durable_step: int | None = None
        self._since_s: float | None = None
        self._num_steps = 0
        # How long a step took, including all that happened between two checkpoints.
        self._step_s: float | None = None
        self._forget()

    def begins(self) -> None:
        """A new attempt: nothing is usual yet, and the last attempt's alarms are over, except a stale
        checkpoint.
        """
        self._forget()
        for kind, switch in self._switches.items():
            switch.is_on &= kind == "stale checkpoint"

    def failed(self, now: float) -> None:
        """An attempt failed, or could not even begin. Call ``look`` until an attempt trains again."""
        self._told_s = None
        self._since_s = now if self._since_s is None else self._since_s

    def look(self, now: float) -> list[Alarm]:
        """The alarms while nothing trains. A training attempt reports by itself, and may evaluate for
        long.
        """
        found = self._stale(now) if self._told_s is None else None
        return [found] if found else []

    def given_up(self, text: str, now: float) -> list[Alarm]:
        found = self._judge("given up", True, False, now, lambda: (text, {}))
        return [found] if found else []

    def corruption(self, text: str, now: float) -> list[Alarm]:
        """The alarm for ranks that do not compute alike, which ended the attempt."""
        found = self._judge("silent corruption", True, False, now, lambda: (text, {}))
        return [found] if found else []

    def hear(self, progress: RunEvent | Heartbeat | LinksTried, now: float) -> list[Alarm]:
        match progress:
            case Progress():
                self._num_steps += 0 if self._told_s is None else progress.step - self._step
                self._step = progress.step
                found = [
                    self._loss(progress, now),
                    self._speed(progress, now),
                    self._checkpoint(progress, now),
                    self._data_wait(progress, now),
                ]
                self._has_evaluated, self._told_s = False, now
            case Evaluated():
                self._has_evaluated = True
                found = []
            case Heartbeat():
                found = [self._pace(progress, now), self._load(progress, now), self._link(progress, now)]
            case LinksTried():
                found = [self._network(progress, now)]
            case _:
                found = []
        return [alarm for alarm in found if alarm is not None]

    def invalid_loss(self, text: str, now: float) -> list[Alarm]:
        """The alarm for a loss that ended the attempt. The workers saw it first; ``text`` is how they
        describe it.
        """
        kind: AlarmKind = "loss not finite" if "not a finite number" in text else "loss spike"
        found = self._judge(kind, True, False, now, lambda: (text, {}))
        return [found] if found else []

    def _forget(self) -> None:
        ratio = self._bounds.loss_spike
        self._spikes = None if ratio is None else Spikes(replace(_SPIKE, ratio=ratio))
        self._speeds: deque[float] = deque(maxlen=_NUM_SPEEDS)
        self._data_waits: deque[float] = deque(maxlen=_NUM_DATA_WAITS)
        self._has_evaluated = False
        self._told_s = None
        self._rank_speeds = RankSpeeds(self._bounds.straggler) if self._bounds.straggler else None
        self._uploads = UploadRates(self._bounds.slow_link) if self._bounds.slow_link else None
        self._loads: dict[int, deque[float]] = {}
        self._usual_loads: dict[int, float] = {}
        self._next_looks: dict[int, float] = {}
        self._unjudged = Counter[AlarmKind]()

    def _loss(self, progress: Progress, now: float) -> Alarm | None:
        if progress.loss is None:
            return self._judge(
                "loss not finite",
                True,
                False,
                now,
                lambda: (f"the loss of step {progress.step} is not finite", {}),
            )
        over = self._judge("loss not finite", False, True, now, lambda: ("", {}))
        return over or self._spike(progress.loss, now)

    def _spike(self, loss: float, now: float) -> Alarm | None:
        if self._spikes is None:
            return None
        found, usual = self._spikes.add(loss), self._spikes.recent_median
        text = f"loss {loss:.4f}, usual is {usual:.4f}"
        return self._judge(
            "loss spike",
            found is not None,
            not self._spikes.is_high,
            now,
            lambda: (text, {"loss": loss, "usual": usual}),
        )

    def _speed(self, progress: Progress, now: float) -> Alarm | None:
        drop = self._bounds.throughput_drop
        if self._has_evaluated or progress.tokens_per_s is None:
            # This speed includes the time of the evaluation, which trains nothing.
            return None
        self._speeds.append(progress.tokens_per_s)
        if drop is None or len(self._speeds) < _FEWEST_SPEEDS + _PRESENT:
            return None
        speeds = list(self._speeds)
        usual, present = median(speeds[:-_PRESENT]), median(speeds[-_PRESENT:])
        text = f"{present:,.0f} tokens/s, usual is {usual:,.0f}"
        return self._judge(
            "throughput drop",
            present < (1 - drop) * usual,
            present >= (1 - drop / 2) * usual,
            now,
            lambda: (text, {"tokens_per_s": present, "usual_tokens_per_s": usual}),
        )

    def _data_wait(self, progress: Progress, now: float) -> Alarm | None:
        bound, share = self._bounds.data_wait, progress.data_wait_share
        if bound is None or share is None:
            return None
        self._data_waits.append(share)
        if len(self._data_waits) < _NUM_DATA_WAITS:
            return None
        usual = median(self._data_waits)
        return self._judge(
            "waiting for data",
            usual > bound,
            usual < bound / 2,
            now,
            lambda: (f"the training waited for samples for {usual:.0%} of the last minute", {"share": usual}),
        )

    def _checkpoint(self, progress: Progress, now: float) -> Alarm | None:
        """Judges the age of the newest checkpoint, by the driver's clock alone.

        The age counts since the driver heard of the checkpoint, or since its first attempt trained or failed.
        The time of an evaluation does not count: it puts nothing at risk.
        """
        newest, before = progress.durable_step or 0, self._durable_step
        is_first_word = self._told_s is None
        self._durable_step = newest
        if self._since_s is None:
            self._since_s, self._num_steps = now, 0
        # An attempt first reports the generation it resumed from, which may be older than what was durable
        # before.
        elif before is not None and (newest > before if is_first_word else newest != before):
            if self._num_steps:
                self._step_s = (now - self._since_s) / self._num_steps
            self._since_s, self._num_steps = now, 0
        elif self._has_evaluated and self._told_s is not None:
            self._since_s += now - self._told_s
        return self._stale(now)

    def _stale(self, now: float) -> Alarm | None:
        """Judges the age. While nothing trains, a cadence in steps is as long as those steps usually take."""
        times, steps, every_s = self._bounds.stale_checkpoint, self._wanted.every_steps, self._wanted.every_s
        if times is None or self._since_s is None or (steps is None and every_s is None):
            return None
        age_s, num_steps = now - self._since_s, self._num_steps
        if steps is not None:
            every_s = steps * self._step_s if self._step_s and self._told_s is None else None
        is_late = every_s is not None and age_s > times * every_s
        is_far = steps is not None and num_steps > times * steps
        wanted = f"every {every_s:g} s" if steps is None else f"every {steps} steps"
        text = f"nothing newly durable for {age_s:,.0f} s and {num_steps} steps, wanted is {wanted}"
        return self._judge(
            "stale checkpoint",
            age_s > _LEAST_STALE_S and (is_late or is_far),
            age_s == 0,
            now,
            lambda: (text, {"age_s": age_s, "num_steps": num_steps}),
        )

    def _pace(self, beat: Heartbeat, now: float) -> Alarm | None:
        """Judges whether one rank is slow by itself."""
        speeds = self._rank_speeds
        if speeds is None or not speeds.hear(beat) or not self._is_due("straggler", speeds.num_ranks):
            return None
        timed = speeds.judge()

        def say() -> tuple[str, Mapping[str, AlarmFact]]:
            assert timed.slow is not None
            return timed.slow.told(), timed.slow.facts()

        return self._judge("straggler", timed.slow is not None, timed.is_clear, now, say)

    def _link(self, beat: Heartbeat, now: float) -> Alarm | None:
        """Judges whether saves wait for one host."""
        if self._uploads is None or beat.upload is None:
            return None
        self._uploads.hear(beat)
        slow = self._uploads.slowest()

        def say() -> tuple[str, Mapping[str, AlarmFact]]:
            assert slow is not None
            rates = {"bytes_per_s": slow.bytes_per_s, "usual_bytes_per_s": slow.usual_bytes_per_s}
            return slow.told(), {"node": slow.node, **rates}

        return self._judge("slow link", slow is not None, slow is None, now, say)

    def _network(self, tried: LinksTried, now: float) -> Alarm | None:
        """Judges whether steps wait for one host's link to the others."""
        slow = tried.slow

        def say() -> tuple[str, Mapping[str, AlarmFact]]:
            assert slow is not None
            rates = {"bytes_per_s": slow.bytes_per_s, "usual_bytes_per_s": slow.usual_bytes_per_s}
            return slow.told(), {"node": slow.node, **rates}

        return self._judge("slow network", slow is not None, tried.is_clear, now, say)

    def _load(self, beat: Heartbeat, now: float) -> Alarm | None:
        bound = self._bounds.utilization_pct
        if bound is None or beat.utilization_pct is None or beat.phase != "window":
            return None
        if now < self._next_looks.get(beat.rank, now):
            return None
        self._next_looks[beat.rank] = now + _LOAD_EVERY_S
        loads = self._loads.setdefault(beat.rank, deque(maxlen=_NUM_LOADS))
        loads.append(beat.utilization_pct)
        if len(loads) < _NUM_LOADS:
            return None
        usual = self._usual_loads
        usual[beat.rank] = median(loads)
        if not self._is_due("low utilization", len(usual)):
            return None
        idlest = min(usual, key=lambda rank: usual[rank])
        load = usual[idlest]
        text = f"the device of rank {idlest} was busy for {load:.0f} % of the last minute"
        return self._judge(
            "low utilization",
            load < bound,
            load > 1.2 * bound,
            now,
            lambda: (text, {"rank": idlest, "utilization_pct": load}),
        )

    def _is_due(self, kind: AlarmKind, num_ranks: int) -> bool:
        """Whether so many ranks are compared now that one of them has told something new. Of few ranks each
        word is judged.
        """
        self._unjudged[kind] += 1
        if self._unjudged[kind] < num_ranks // _JUDGEMENTS_A_ROUND:
            return False
        self._unjudged[kind] = 0
        return True

    def _judge(
        self,
        kind: AlarmKind,
        is_bad: bool,
        is_good: bool,
        now: float,
        say: Callable[[], tuple[str, Mapping[str, AlarmFact]]],
    ) -> Alarm | None:
        """Raises or ends the alarm of one kind. Between bad and good everything stays as it is."""
        switch = self._switches.setdefault(kind, _Switch())
        if switch.is_on and is_good:
            switch.is_on = False
            return Alarm(kind=kind, text="over", step=self._step, is_over=True)
        if switch.is_on or not is_bad or now - switch.raised_s < self._bounds.min_interval_s:
            return None
        switch.is_on, switch.raised_s = True, now
        text, facts = say()
        return Alarm(kind=kind, text=text, step=self._step, facts=facts)
