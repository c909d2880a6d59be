"""A month of one run on a simulated clock, driven by what really restarts it: all that can fail does."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice, takewhile
from random import Random

import pytest

from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention, latest, may_go
from checkpointing.log.history import Commit, Tombstone
from checkpointing.stores.contract import Buffer, Unavailable
from checkpointing.stores.memory import MemoryStore
from jobs.execution.causes import Cause
from jobs.execution.outcomes import Completed, Failed, Outcome, StoreAway
from jobs.recovery.policy import Policy
from jobs.run_progress.run_view import RunDisplay
from jobs.training.task.events import Resumption
from jobs.training.task.measurement import BadLoss, Failure
from tests.unit.recovery.test_loop import generation, recovery, task

DAY_S = 86_400.0
START_S, STEP_S, SAVE_EVERY = 20.0, 1.0, 60
MEAN_LIFE_S = 1800.0
MEAN_OUTAGE_S, LONGEST_OUTAGE_S = 1800.0, 4 * 3600.0
RETENTION = Retention(last=2)
NODES = tuple(f"node {number}" for number in range(60))
# By how likely they are; the words are the same each time, as those of a real cause are.
FATES: dict[Cause, int] = {
    "worker died": 20, "host lost": 10, "host silent": 10, "preempted": 10, "hang": 8, "error": 8,
    "out of memory": 4, "invalid loss": 6, "driver died": 2, "store": 2, "no room": 1, "cluster away": 1,
}  # fmt: skip
OUTAGES: tuple[Cause, ...] = ("store", "no room", "cluster away")
# Of errors, how many strike before anything is loaded.
WHILE_LOADING = 0.3


class DriverDied(Exception):
    """Of which nobody leaves a note."""


class Distant(MemoryStore):
    """Nothing can be written to it or read from it while it is away. It has its many names in order."""

    def __init__(self, is_away: Callable[[], bool]) -> None:
        super().__init__()
        self._is_away = is_away
        self._names: list[str] = []

    def put(self, name: str, data: Buffer) -> None:
        self._reach()
        super().put(name, data)
        self._index(name)

    def create(self, name: str, data: Buffer) -> None:
        self._reach()
        super().create(name, data)
        self._index(name)

    def get(self, name: str) -> bytes:
        self._reach()
        return super().get(name)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        self._reach()
        first = bisect_right(self._names, max(f"{prefix}/", after))
        return takewhile(lambda name: name.startswith(f"{prefix}/"), islice(self._names, first, None))

    def _index(self, name: str) -> None:
        place = bisect_left(self._names, name)
        if self._names[place : place + 1] != [name]:
            self._names.insert(place, name)

    def _reach(self) -> None:
        if self._is_away():
            raise Unavailable("store: no answer")


@dataclass
class Month:
    """``out`` is what is away, and until when. Loading failed last at the step ``loading_failed_at``.

    It does not fail there again: the same words at the same step were a bug, and no failure here is one.
    """

    dice: Random
    length_s: float
    now: float = 0.0
    out: tuple[Cause, float] = ("store", 0.0)
    loading_failed_at: int = -1
    num_drivers: int = 0
    causes: Counter[Cause] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.store = Distant(lambda: self.is_out("store"))

    def go_by(self) -> None:
        while self.now < self.length_s:
            try:
                self.drive()
            except DriverDied:
                self.now += START_S

    def drive(self) -> None:
        self.num_drivers += 1
        self.repository = Repository(self.store, "r", clock=lambda: self.now)
        self.display = RunDisplay(
            "r", quiet=True, silent=True, ticks=lambda: self.now, clock=lambda: self.now
        )
        self.recovery = recovery(
            self.repository,
            policy=Policy(),
            display=self.display,
            pause=self.sleep,
            clock=lambda: self.now,
        )
        self.recovery.work(self.attempt)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def is_out(self, what: Cause) -> bool:
        return what == self.out[0] and self.now < self.out[1]

    def attempt(self, without: tuple[str, ...]) -> Outcome:
        """Until it fails, or until the month is over."""
        try:
            return self.try_once(without)
        except Unavailable as error:
            return StoreAway(reason=str(error))

    def try_once(self, without: tuple[str, ...]) -> Outcome:
        self.now += START_S
        nodes = self.dice.sample([node for node in NODES if node not in without], 3)
        if self.is_out("cluster away"):
            return self.fail("cluster away", nodes)
        term = self.repository.take_over("driver")
        self.recovery.begin(task(term, self.store))
        if self.is_out("no room"):
            return self.fail("no room", nodes)
        cause = self.dice.choices([*FATES], [*FATES.values()])[0]
        step = self.durable_step()
        if cause in ("error", "out of memory") and self.is_struck_while_loading(step):
            return self.fail(cause, nodes, step=0)
        self.display.hear(Resumption(step=step, generation=None, trail=()))
        reached = self.train(term, step)
        return self.end(cause, nodes, step, reached) if self.now < self.length_s else Completed()

    def is_struck_while_loading(self, step: int) -> bool:
        if step <= self.loading_failed_at or self.dice.random() > WHILE_LOADING:
            return False
        self.loading_failed_at = step
        return True

    def train(self, term: int, start: int) -> int:
        """Of its saves only those are made that the later ones would not have superseded anyway."""
        reached = start + int(self.dice.expovariate(STEP_S / MEAN_LIFE_S))
        self.now += STEP_S * (reached - start)
        self.display.hear(Resumption(step=reached, generation=None, trail=()))
        saved = range(start + SAVE_EVERY, reached + 1, SAVE_EVERY)
        for number, step in enumerate(saved[-RETENTION.last :], start=1):
            self.repository.append(Commit(generation=generation(step, term, number)), term=term)
        self.repository.append(Tombstone(names=may_go(self.repository.view, RETENTION)), term=term)
        return reached

    def end(self, cause: Cause, nodes: list[str], start: int, reached: int) -> Outcome:
        if cause == "driver died":
            self.causes[cause] += 1
            raise DriverDied
        if cause in OUTAGES:
            away_s = min(self.dice.expovariate(1 / MEAN_OUTAGE_S), LONGEST_OUTAGE_S)
            self.out = (cause, self.now + away_s)
        if cause == "store":
            self.causes[cause] += 1
            return StoreAway(reason="store: no answer")
        good = max(start, reached - self.dice.choice((1, 2 * SAVE_EVERY)))
        bad = BadLoss(step=reached, good_step=good, samples=(64 * good, 64 * reached))
        return self.fail(cause, nodes, step=reached, bad_loss=bad if cause == "invalid loss" else None)

    def fail(
        self, cause: Cause, nodes: list[str], *, step: int | None = None, bad_loss: BadLoss | None = None
    ) -> Failed:
        self.causes[cause] += 1
        failure = Failure(
            status="crash",
            reason=f"what is always said of it: {cause}",
            ranks=(1,),
            nodes=(nodes[1],),
            step=step,
            bad_loss=bad_loss,
        )
        return Failed(failure=failure, cause=cause, nodes=tuple(nodes))

    def durable_step(self) -> int:
        newest = latest(self.repository.view.generations)
        return newest.step if newest else 0


@pytest.mark.parametrize("num_days", [7, pytest.param(30, marks=pytest.mark.soak)])
def test_a_simulated_month_of_failures_makes_progress(num_days: int) -> None:
    """A step a second, a checkpoint a minute, a failure each half hour on average, drivers that die too."""
    month = Month(Random(6), length_s=num_days * DAY_S)
    month.go_by()
    assert set(month.causes) == set(FATES)
    assert sum(month.causes.values()) > 33 * num_days
    assert month.num_drivers > num_days / 3
    assert 0.85 * month.length_s < month.durable_step() < month.length_s
