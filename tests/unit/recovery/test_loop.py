"""A driver's attempts one after another: what it notes, says, waits for and leaves out; no Ray, no torch."""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NoReturn

import pytest

from checkpointing.errors import Fenced
from checkpointing.generations.repository import Repository, generation_name
from checkpointing.log.history import Commit, Generation, Quarantine
from checkpointing.stores.contract import Buffer, Unavailable
from checkpointing.stores.memory import MemoryStore
from jobs.execution.causes import Cause
from jobs.execution.outcomes import (
    Cancelled,
    Completed,
    Failed,
    GivenUp,
    Outcome,
    Setback,
    StoreAway,
    Unmendable,
)
from jobs.recovery.journal import given_up, open_journal, read_failed_attempts, read_newest, read_note
from jobs.recovery.loop import RecoveryLoop, RunEnd
from jobs.recovery.policy import Policy
from jobs.recovery.rollback import Rollback
from jobs.run_progress.incident_outbox import IncidentOutbox
from jobs.run_progress.run_view import RunDisplay
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.integrity.clean_checks import CleanCheck, leave_clean_check
from jobs.training.task.measurement import BadLoss, Corruption, Failure, Status
from jobs.training.task.stop_request import StopRequest
from jobs.training.task.task import Task
from reporting.long_runs.summarising import long_runs


def spec() -> RunSpec:
    return RunSpec(name="r", model="llama-tiny", steps=100)


class Silent(MemoryStore):
    """Once it is ``away`` whoever writes to it never returns."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False

    def put(self, name: str, data: Buffer) -> None:
        self._fall_silent()
        super().put(name, data)

    def create(self, name: str, data: Buffer) -> None:
        self._fall_silent()
        super().create(name, data)

    def _fall_silent(self) -> None:
        if self.is_away:
            threading.Event().wait()


class Forgiving(MemoryStore):
    """Refuses the first ``num_refusals`` quarantines, as one that was away for just that long."""

    def __init__(self, num_refusals: int) -> None:
        super().__init__()
        self.num_refusals = num_refusals

    def create(self, name: str, data: Buffer) -> None:
        if b'"kind":"quarantine"' in bytes(data) and self.num_refusals:
            self.num_refusals -= 1
            raise Unavailable("memory: away")
        super().create(name, data)


class Away(MemoryStore):
    """Answers nothing while it ``is_away``."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False

    def put(self, name: str, data: Buffer) -> None:
        self._answer()
        super().put(name, data)

    def create(self, name: str, data: Buffer) -> None:
        self._answer()
        super().create(name, data)

    def get(self, name: str) -> bytes:
        self._answer()
        return super().get(name)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        self._answer()
        return super().list(prefix, after=after)

    def _answer(self) -> None:
        if self.is_away:
            raise Unavailable("memory: away")


def recovery(
    repository: Repository,
    *,
    policy: Policy | None,
    pause: Callable[[float], StopRequest | None] = lambda _: None,
    silent: bool = True,
    clock: Callable[[], float] = lambda: 1000.0,
    display: RunDisplay | None = None,
    word_timeout_s: float = 15.0,
) -> RecoveryLoop:
    return RecoveryLoop(
        journal=open_journal(repository, timeout_s=word_timeout_s),
        rollback=Rollback(repository=repository),
        display=display or RunDisplay("r", quiet=False, silent=silent),
        outbox=IncidentOutbox(repository.store, timeout_s=word_timeout_s),
        policy=policy,
        pause=pause,
        clock=clock,
    )


DONE = Completed(pointer="done")
# What an attempt does; it ends with what that returns.
Act = Callable[[], Outcome]


@dataclass
class Driver:
    """One driver of the run ``r``: each attempt takes a lease, saves and then fails as it is told to."""

    store: MemoryStore = field(default_factory=MemoryStore)
    policy: Policy | None = field(default_factory=Policy)
    pauses: list[float] = field(default_factory=list)
    without: list[tuple[str, ...]] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    fresh: bool = False
    resume: str = "latest"
    word_timeout_s: float = 15.0
    in_pause: Callable[[], StopRequest | None] = lambda: None

    def __post_init__(self) -> None:
        self.repository = Repository(self.store, "r")
        self.recovery = recovery(
            self.repository,
            policy=self.policy,
            pause=self._pause,
            silent=False,
            clock=lambda: 1000.0 + sum(self.pauses),
            word_timeout_s=self.word_timeout_s,
        )

    def _pause(self, for_s: float) -> StopRequest | None:
        self.pauses.append(for_s)
        return self.in_pause()

    def drive(self, *attempts: Act) -> RunEnd | Setback:
        waiting = list(attempts)

        def attempt(without: tuple[str, ...]) -> Outcome:
            self.without.append(without)
            if (away := self._begin_or_not()) is not None:
                return away
            return waiting.pop(0)()

        return self.recovery.work(attempt)

    def _begin_or_not(self) -> StoreAway | None:
        try:
            self.begin()
        except Unavailable as error:
            return StoreAway(reason=str(error))
        return None

    def begin(self) -> None:
        term = self.repository.take_over("driver", fresh=self.fresh and not self.tasks)
        self.tasks.append(self.recovery.begin(replace(task(term, self.store), resume=self.resume)))

    def save(self, *steps: int) -> None:
        """As its workers do, of which the driver's own repository only hears."""
        term, workers = self.tasks[-1].term, Repository(self.store, "r")
        workers.refresh()
        for number, step in enumerate(steps, start=1):
            workers.append(Commit(generation=generation(step, term, number)), term=term)

    def kept(self) -> list[int]:
        """The steps of the generations that may be gone on from."""
        return [one.step for one in self.repository.refresh().generations if one.quarantined is None]


def task(term: int, store: MemoryStore) -> Task:
    return Task(
        run="r",
        store=store.url,
        recipe=spec().recipe(),
        vendor="cpu",
        simulated=False,
        num_steps=100,
        num_samples=64,
        saving=None,
        term=term,
        attempt="word",
        lineage="line",
        resume="latest",
    )


def generation(step: int, term: int, number: int) -> Generation:
    return Generation(
        name=generation_name(step, term, f"word.{number}"),
        step=step,
        term=term,
        number=number,
        committed_s=float(step),
        num_bytes=1,
        manifest_digest="d",
        is_verified=True,
    )


def failing(cause: Cause, *, step: int = 7, status: Status = "crash", **more: object) -> Act:
    def fail() -> Outcome:
        failure = Failure(status=status, reason="boom", ranks=(1,), step=step, log_tail=("last word",))
        failure = replace(failure, **more)  # type: ignore[arg-type]  # fields of it
        return Failed(failure=failure, cause=cause, nodes=("a", "b"))

    return fail


def done() -> Outcome:
    return DONE


def breaks() -> Outcome:
    """As a bug of ours does: the driver dies of it and leaves no note."""
    raise ZeroDivisionError


def test_it_goes_on_by_itself_and_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    driver = Driver()

    def saving_first() -> Outcome:
        driver.save(5)
        return failing("worker died")()

    assert driver.drive(saving_first, done) == DONE
    assert driver.pauses == [0]
    assert "r: attempt 1 failed: rank 1: boom; trying again in 0 s from step 5\n" in capsys.readouterr().out


def test_the_report_is_told_of_each_failure_and_that_a_drained_node_is_none() -> None:
    driver = Driver()

    def drained_a_second_later() -> Outcome:
        driver.pauses.append(1)
        return failing("preempted")()

    driver.drive(failing("worker died"), drained_a_second_later, done)
    (run,), _ = long_runs(driver.store)
    kinds = [(kind, text.partition(",")[0]) for _, kind, text in run.incidents]
    assert kinds == [
        ("failure", "attempt 1"), ("restart", "attempt 1"),
        ("interruption", "attempt 2"), ("restart", "attempt 2"),
    ]  # fmt: skip


def test_a_bug_is_given_up_with_the_cause_on_the_last_line_and_everybody_can_see_it() -> None:
    driver, told = Driver(), list[Mapping[str, object]]()
    driver.recovery.display.on_progress(told.append)
    end = driver.drive(failing("error"), failing("error"), done)
    assert isinstance(end, GivenUp)
    assert told[-1]["stage"] == "given up"
    assert end.message.splitlines() == [
        "  last word",
        "given up, the same error at step 7 twice: rank 1: boom",
    ]
    note = given_up(driver.store, "r", driver.repository.refresh())
    assert note is not None
    assert note.given_up == "the same error at step 7 twice"
    assert note.ending is not None
    assert (note.ending.nodes, note.log_tail) == ((), ("last word",))


@pytest.mark.parametrize("cause", ["error", "out of memory"])
def test_what_goes_wrong_twice_while_it_loads_is_the_same_only_if_it_has_not_got_on_between(
    cause: Cause,
) -> None:
    loading = failing(cause, step=0)
    driver = Driver()

    def getting_on() -> Outcome:
        driver.save(20)
        return failing("worker died", step=22)()

    assert driver.drive(loading, getting_on, loading, done) == DONE
    driver = Driver()
    end = driver.drive(getting_on, loading, loading)
    assert isinstance(end, GivenUp)
    assert "at step 20 twice" in end.why


def test_a_driver_that_comes_later_goes_on_with_the_same_budgets() -> None:
    first = Driver()
    with pytest.raises(ZeroDivisionError):
        first.drive(failing("error"), breaks)
    second = Driver(store=first.store)
    assert isinstance(second.drive(failing("error")), GivenUp)


def test_a_driver_that_died_is_known_by_its_silence() -> None:
    store = MemoryStore()
    Repository(store, "r").take_over("a driver that is killed now")
    (one,) = read_failed_attempts(store, "r", Repository(store, "r").refresh())
    assert (one.term, one.cause) == (1, "driver died")


def test_somebody_who_begins_it_again_by_hand_has_new_budgets() -> None:
    first = Driver()
    assert isinstance(first.drive(failing("error"), failing("error")), GivenUp)
    second = Driver(store=first.store)
    assert second.drive(failing("error"), done) == DONE
    assert given_up(first.store, "r", second.repository.refresh()) is None


def test_an_interruption_is_no_failure() -> None:
    driver = Driver()

    with pytest.raises(KeyboardInterrupt):
        driver.drive(interrupted)
    note = read_note(driver.store, "r", 1)
    assert note is not None
    assert note.how == "interrupted"
    (run,), _ = long_runs(driver.store)
    assert [kind for _, kind, _ in run.incidents] == ["interruption"]
    assert read_failed_attempts(driver.store, "r", driver.repository.refresh()) == []


STOP = StopRequest(aim="stop", why="Ctrl-C")


def stopped() -> StopRequest:
    return STOP


def interrupted() -> NoReturn:
    raise KeyboardInterrupt


def test_who_stops_it_in_a_pause_to_mend_it_has_new_budgets() -> None:
    first = Driver(in_pause=stopped)
    assert first.drive(failing("error")) == Cancelled(stop_request=STOP)
    second = Driver(store=first.store)
    assert second.drive(failing("error"), done) == DONE


def test_who_interrupts_it_in_a_pause_to_mend_it_has_new_budgets() -> None:
    first = Driver(in_pause=interrupted)
    with pytest.raises(KeyboardInterrupt):
        first.drive(failing("error"))
    second = Driver(store=first.store)
    assert second.drive(failing("error"), done) == DONE


@pytest.mark.parametrize(
    "end", [lambda: Cancelled(stop_request=STOP), interrupted], ids=["stopped", "interrupted"]
)
def test_who_ends_it_while_it_waits_for_room_has_new_budgets(end: Act) -> None:
    driver, waits = Driver(), iter([False, True])

    def attempt(_without: tuple[str, ...]) -> Outcome:
        if next(waits):
            return end()
        driver.begin()
        return failing("error")()

    with suppress(KeyboardInterrupt):
        assert driver.recovery.work(attempt) == Cancelled(stop_request=STOP)
    assert read_failed_attempts(driver.store, "r", driver.repository.refresh()) == []


def test_a_pause_that_is_ended_leaves_the_samples_out_that_were_to_be_left_out() -> None:
    driver = Driver(in_pause=stopped)
    assert driver.drive(spoilt(5, 4, (32, 40))) == Cancelled(stop_request=STOP)
    note = read_newest(driver.store, "r", driver.repository.refresh())
    assert note is not None and note.skips == ((32, 40),)


def test_who_was_taken_over_meanwhile_decides_nothing() -> None:
    driver = Driver()

    def taken_over() -> Outcome:
        Repository(driver.store, "r").take_over("another")
        return failing("worker died")()

    end = driver.drive(taken_over, done)
    assert isinstance(end, Unmendable) and isinstance(end.error, Fenced)
    assert str(end.error).startswith("a later attempt has taken r over")
    assert driver.recovery.history == []


def test_a_node_that_keeps_failing_is_left_out_and_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    driver = Driver()
    bad = failing("worker died", nodes=("b",))
    driver.drive(bad, bad, done)
    assert driver.without == [(), (), ("b",)]
    assert ", without b\n" in capsys.readouterr().out
    later = Driver(store=driver.store)
    assert later.drive(done) == DONE


def test_a_driver_that_comes_later_leaves_it_out_from_its_first_attempt_on() -> None:
    first, bad = Driver(), failing("worker died", nodes=("b",))
    with pytest.raises(ZeroDivisionError):
        first.drive(bad, bad, breaks)
    later = Driver(store=first.store)
    later.drive(done)
    assert later.without == [("b",)]


def test_without_a_policy_a_failure_is_noted_and_the_end() -> None:
    driver = Driver(policy=None)
    end = driver.drive(failing("error"), done)
    assert isinstance(end, Failed)
    assert end.message == "rank 1: boom\n  last word"
    note = read_note(driver.store, "r", 1)
    assert note is not None
    assert (note.how, note.given_up) == ("failed", None)


def test_a_store_that_is_away_before_there_is_a_lease_is_waited_for() -> None:
    driver, tries = Driver(), iter([1, 2])

    def attempt(_without: tuple[str, ...]) -> Outcome:
        return StoreAway(reason="memory: away") if next(tries, None) else DONE

    assert driver.recovery.work(attempt) == DONE
    assert driver.pauses == [10, 20]


STRETCHES = ((0, "web 3, code 1"), (100, "web 1, code 1"))


def spoilt(step: int, good_step: int, samples: tuple[int, int]) -> Act:
    bad = BadLoss(step=step, good_step=good_step, samples=samples, stretches=STRETCHES)
    return failing("invalid loss", step=step, status="invalid_loss", bad_loss=bad)


def test_a_wrong_loss_steps_back_over_what_is_spoilt_and_leaves_the_samples_out_for_good() -> None:
    driver = Driver()

    def diverging() -> Outcome:
        driver.save(10, 20, 30)
        return spoilt(35, 22, (176, 280))()

    driver.drive(diverging, done)
    assert driver.kept() == [10, 20]
    assert [one.skips for one in driver.tasks] == [(), ((176, 280),)]
    assert [one.skipped_in for one in driver.tasks] == [(), STRETCHES]
    assert [one.spoilt for one in driver.tasks] == [(), ((1, 22),)]
    later = Driver(store=driver.store)
    assert later.drive(done) == DONE
    assert (later.tasks[0].skips, later.tasks[0].spoilt) == (((176, 280),), ((1, 22),))
    assert later.tasks[0].skipped_in == STRETCHES
    note = read_newest(driver.store, "r", later.repository.refresh())
    assert note is not None and (note.skips, note.spoilt) == (((176, 280),), ((1, 22),))


def corrupt(step: int, clean_step: int | None, *nodes: str) -> Act:
    corruption = Corruption(step=step, clean_step=clean_step, nodes=nodes)
    return failing("corruption", step=step, corruption=corruption, nodes=nodes)


def saving(driver: Driver, *steps: int, then: Act, checked: tuple[int, str] | None = None) -> Act:
    """``checked``: after which step the nodes, a letter each, were found to compute alike."""

    def act() -> Outcome:
        driver.save(*steps)
        if checked:
            check = CleanCheck(term=driver.tasks[-1].term, step=checked[0], nodes=tuple(checked[1]))
            leave_clean_check(driver.store, "r", check)
        return then()

    return act


def test_after_silent_corruption_the_run_goes_on_from_before_its_last_clean_check_with_all_samples() -> None:
    driver = Driver()
    driver.drive(saving(driver, 10, 20, 30, then=corrupt(35, 20, "b"), checked=(20, "ab")), done)
    assert driver.kept() == [10, 20]
    assert driver.without == [(), ("b",)]
    assert [one.skips for one in driver.tasks] == [(), ()]
    assert [one.spoilt for one in driver.tasks] == [(), ((1, 20),)]


def test_a_node_has_spoilt_what_was_saved_since_its_own_last_check_also_in_earlier_attempts() -> None:
    driver = Driver()
    first = saving(driver, 10, 20, 30, then=failing("worker died"), checked=(20, "ab"))
    # Without it, and built on what it may have spoilt.
    second = saving(driver, 40, then=failing("worker died"), checked=(35, "ac"))
    driver.drive(first, second, corrupt(41, None, "b"), done)
    assert driver.kept() == [10, 20]
    assert driver.tasks[-1].spoilt == ((3, 20),)


def test_a_node_that_was_never_checked_before_has_spoilt_nothing_but_its_attempt() -> None:
    driver = Driver()
    first = saving(driver, 10, 20, then=failing("worker died"), checked=(15, "ab"))
    driver.drive(first, corrupt(21, None, "d"), done)
    assert driver.kept() == [10, 20]
    assert driver.without[-1] == ("d",)


def test_of_several_nodes_the_oldest_check_counts_and_of_unknown_ones_the_newest_of_all() -> None:
    for nodes, kept in ((("b", "c"), [10]), ((), [10, 20, 30])):
        driver = Driver()
        first = saving(driver, 10, 20, then=failing("worker died"), checked=(10, "ab"))
        second = saving(driver, 30, 40, then=failing("worker died"), checked=(30, "ac"))
        driver.drive(first, second, corrupt(41, None, *nodes), done)
        assert driver.kept() == kept, nodes


def test_one_generation_stays_although_none_was_saved_before_the_last_clean_check() -> None:
    driver = Driver()
    driver.drive(saving(driver, 10, 20, 30, then=corrupt(35, 0, "b")), done)
    assert driver.kept() == [10]


@pytest.mark.parametrize(("others", "kept"), [("ac", [40, 50]), ("ab", [40]), ("", [40])])
def test_if_only_what_was_saved_without_a_node_is_left_no_step_of_it_is_lost(
    others: str, kept: list[int]
) -> None:
    """It was away from the second attempt on, came back and computes wrongly. What may be wrong since its
    last check is in all that is left, or in none. ``others`` took part in the third attempt; empty: nobody
    knows.
    """
    driver = Driver()
    first = saving(driver, 20, then=failing("worker died"), checked=(10, "ab"))
    second = saving(driver, 40, then=failing("worker died"), checked=(20, "ac"))
    third = saving(driver, 50, then=failing("worker died"), checked=(40, others) if others else None)

    def corrupted() -> Outcome:
        # Retention has deleted what is older.
        for one in driver.recovery.journal.repository.refresh().generations:
            if one.step == 20:
                driver.recovery.journal.repository.quarantine(one.name, "as if deleted", term=4)
        return corrupt(51, None, "b")()

    driver.drive(first, second, third, corrupted, done)
    assert driver.kept() == kept


def test_a_store_that_is_away_is_asked_again_for_the_last_clean_check() -> None:
    store = Away()
    driver = Driver(store=store)

    def goes_away() -> Outcome:
        store.is_away = True
        return corrupt(41, None, "b")()

    def comes_back() -> None:
        store.is_away = False

    driver.in_pause = comes_back
    first = saving(driver, 10, 20, 30, then=failing("worker died"), checked=(20, "ab"))
    driver.drive(first, goes_away, done)
    assert driver.kept() == [10, 20]


def test_what_an_attempt_commits_while_it_is_being_ended_is_spoilt_as_well() -> None:
    driver = Driver()

    def commits_late() -> None:
        workers = Repository(driver.store, "r")
        workers.refresh()
        for number, step in ((3, 21), (4, 30)):
            workers.append(Commit(generation=generation(step, 1, number)), term=1)

    def diverging() -> Outcome:
        driver.save(10, 20)
        return spoilt(35, 22, (176, 280))()

    def going_on() -> Outcome:
        assert driver.kept() == [10, 20, 21]
        return DONE

    driver.in_pause = commits_late
    assert driver.drive(diverging, going_on) == DONE


def test_where_a_step_back_did_not_help_the_store_s_are_gone_on_from_if_there_are_any() -> None:
    driver = Driver()

    def saving_first() -> Outcome:
        driver.save(10, 20, 30)
        return spoilt(35, 32, (1, 2))()

    driver.drive(saving_first, spoilt(35, 32, (1, 2)), done)
    assert driver.tasks[-1].spoilt == ((1, 32), (2, -1))
    on_disks_alone = Driver()
    on_disks_alone.drive(*[spoilt(35, 32, (1, 2))] * 2, done)
    assert on_disks_alone.tasks[-1].spoilt == ((1, 32), (2, 32))


@pytest.mark.parametrize("num_refusals", [1, 2, 3])
def test_nothing_is_loaded_before_the_store_knows_what_is_spoilt(
    num_refusals: int, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Forgiving(num_refusals)
    driver = Driver(store=store)

    def diverging() -> Outcome:
        driver.save(10, 20, 30, 40)
        return spoilt(45, 22, (176, 280))()

    def going_on() -> Outcome:
        assert driver.kept() == [10, 20]
        return DONE

    assert driver.drive(diverging, going_on) == DONE
    assert store.num_refusals == 0
    assert [pause for pause in driver.pauses if pause] == [10, 20][: num_refusals - 1]
    assert "trying again in 0 s from step 20\n" in capsys.readouterr().out


def test_what_is_spoilt_is_quarantined_once_however_many_attempts_follow() -> None:
    driver = Driver()

    def diverging() -> Outcome:
        driver.save(10, 20, 30)
        return spoilt(35, 12, (176, 280))()

    driver.drive(diverging, failing("worker died"), failing("hang"), done)
    entries = [record.entry for record in driver.repository.records()]
    assert [one.name for one in entries if isinstance(one, Quarantine)] == [
        generation_name(20, 1, "word.2"),
        generation_name(30, 1, "word.3"),
    ]


def test_what_is_spoilt_is_found_as_soon_as_the_store_can_be_asked() -> None:
    store = Away()

    def is_back_after_a_while() -> None:
        store.is_away = len(driver.pauses) < 3

    driver = Driver(store=store, in_pause=is_back_after_a_while)

    def diverging() -> Outcome:
        driver.save(10, 20, 30, 40)
        store.is_away = True
        return spoilt(45, 22, (176, 280))()

    def going_on() -> Outcome:
        assert driver.kept() == [10, 20]
        return DONE

    assert driver.drive(diverging, going_on) == DONE
    assert driver.pauses == [0, 10, 20]


def test_where_that_did_not_help_it_steps_back_further_but_never_gives_the_last_one_away() -> None:
    driver = Driver()

    def diverging() -> Outcome:
        driver.save(10, 20)
        return spoilt(25, 24, (1, 2))()

    end = driver.drive(diverging, *(spoilt(25, 24, (1, 2)) for _ in range(3)))
    assert isinstance(end, GivenUp)
    assert "stepped back 3 times before" in end.why
    assert driver.kept() == [10]


def test_each_step_back_that_did_not_help_is_followed_by_a_longer_one() -> None:
    driver, kept = Driver(), list[list[int]]()

    def diverging() -> Outcome:
        kept.append(driver.kept())
        return spoilt(65, 64, (1, 2))()

    def saving_first() -> Outcome:
        driver.save(10, 20, 30, 40, 50, 60)
        return diverging()

    assert isinstance(driver.drive(saving_first, *[diverging] * 3), GivenUp)
    assert [steps[-1] for steps in kept] == [60, 60, 50, 30]


def left_from(*branches: tuple[int, ...]) -> MemoryStore:
    """Of a run that somebody went back with: each attempt has saved at the steps of one branch."""
    driver = Driver()
    for steps in branches:
        driver.begin()
        driver.save(*steps)
    return driver.store


def test_a_branch_that_was_left_by_name_keeps_its_generations_and_so_does_what_was_named() -> None:
    driver = Driver(store=left_from((100, 200, 300)), resume="step:100")

    def diverging() -> Outcome:
        driver.save(110, 140)
        return spoilt(150, 130, (1, 2))()

    def diverging_at_once() -> Outcome:
        return spoilt(150, 101, (1, 2))()

    driver.drive(diverging, done)
    assert driver.kept() == [100, 200, 300, 110]
    driver = Driver(store=left_from((100, 200, 300)), resume="step:100")
    driver.drive(*[diverging_at_once] * 3, done)
    assert driver.kept() == [100, 200, 300]
    driver = Driver(store=left_from((100, 200, 300)), resume="step:100")
    driver.drive(diverging_at_once, diverging_at_once, diverging, done)
    assert driver.kept() == [100, 200, 300, 110]


def test_a_branch_that_was_asked_for_by_name_gets_on_by_its_own_steps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    driver = Driver(store=left_from((100, 500, 1000)), resume="step:100")

    def saving(step: int) -> Act:
        def fail() -> Outcome:
            driver.save(step)
            return failing("hang", step=step)()

        return fail

    branch = [failing("hang"), *(saving(step) for step in (200, 300, 400, 500)), done]
    assert driver.drive(*branch) == DONE
    told = capsys.readouterr().out
    assert "from step 100\n" in told and "from step 200\n" in told and "from step 1000" not in told


@pytest.mark.parametrize("num_hangs", [0, 1])
def test_a_driver_that_comes_later_measures_a_branch_by_its_own_steps_too(num_hangs: int) -> None:
    store = left_from((100, 500, 1000))
    killed = Driver(store=store, resume="step:100")
    with pytest.raises(SystemExit):
        killed.drive(*[failing("hang")] * num_hangs, sys.exit)
    killed.save(200)
    later = Driver(store=store)

    def saving(step: int) -> Act:
        def fail() -> Outcome:
            later.save(step)
            return failing("hang", step=step)()

        return fail

    past = read_failed_attempts(store, "r", later.repository.refresh())
    assert [one.durable_step for one in past] == [100, 200][-1 - num_hangs :]
    assert later.drive(*(saving(step) for step in (300, 400, 500, 600)), done) == DONE


def test_it_steps_back_no_further_than_to_where_its_own_branch_begins() -> None:
    driver = Driver(store=left_from((100, 200, 300), (110, 120, 130)))
    driver.drive(*[spoilt(150, 140, (1, 2))] * 3, done)
    assert driver.kept() == [100, 200, 300, 110]


def test_a_run_that_is_begun_afresh_leaves_nothing_out() -> None:
    first = Driver()
    first.drive(spoilt(5, 4, (32, 40)), done)
    second = Driver(store=first.store, fresh=True)
    second.drive(done)
    assert (second.tasks[0].skips, second.tasks[0].spoilt) == ((), ())


def test_to_be_preempted_is_no_failure_in_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    driver = Driver()
    driver.drive(failing("preempted"), done)
    assert "attempt 1 ended: rank 1: boom; trying again in 0 s from the beginning" in capsys.readouterr().out


def test_while_the_store_is_away_nobody_knows_where_the_next_attempt_begins(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = Away()
    driver = Driver(store=store)

    def fail() -> Outcome:
        driver.save(100)
        store.is_away = True
        return failing("worker died")()

    def return_in_the_pause() -> None:
        store.is_away = False

    driver.in_pause = return_in_the_pause
    assert driver.drive(fail, failing("worker died"), done) == DONE
    told = capsys.readouterr().out
    assert "attempt 1 failed: rank 1: boom; trying again in 0 s, once the store answers\n" in told
    assert "attempt 2 failed: rank 1: boom; trying again in 0 s from step 100\n" in told


def test_where_no_attempt_could_begin_the_line_blames_none(capsys: pytest.CaptureFixture[str]) -> None:
    driver, tries = Driver(), iter([1])

    def attempt(_without: tuple[str, ...]) -> Outcome:
        return StoreAway(reason="memory: away") if next(tries, None) else DONE

    driver.recovery.work(attempt)
    assert "r: no attempt could begin: memory: away; trying again in 10 s" in capsys.readouterr().out


def test_what_keeps_the_next_attempt_from_beginning_is_not_the_last_one_s(
    capsys: pytest.CaptureFixture[str],
) -> None:
    driver, ends = Driver(), iter([failing("worker died"), lambda: StoreAway(reason="memory: away"), done])

    def attempt(_without: tuple[str, ...]) -> Outcome:
        end = next(ends)
        if len(driver.pauses) != 1:
            driver.begin()
        return end()

    assert driver.recovery.work(attempt) == DONE
    assert "r: no attempt could begin: memory: away; trying again in 10 s" in capsys.readouterr().out
    note = read_note(driver.store, "r", 1)
    assert note is not None and note.ending is not None and note.ending.cause == "worker died"


def test_what_failed_before_a_run_was_begun_afresh_counts_no_more() -> None:
    first = Driver()
    with pytest.raises(ZeroDivisionError):
        first.drive(failing("error"), breaks)
    second = Driver(store=first.store, fresh=True)
    with pytest.raises(ZeroDivisionError):
        second.drive(breaks)
    (one,) = read_failed_attempts(first.store, "r", second.repository.refresh())
    assert (one.term, one.cause) == (3, "driver died")


def test_a_store_that_falls_silent_keeps_no_run_from_its_end() -> None:
    store = Silent()
    driver = Driver(store=store, word_timeout_s=0.1)

    def done_without_a_store() -> Outcome:
        store.is_away = True
        return DONE

    assert driver.drive(done_without_a_store) == DONE
    assert read_note(store, "r", 1) is None


def test_a_store_that_falls_silent_hides_no_failure() -> None:
    store = Silent()
    driver = Driver(store=store, policy=Policy(max_attempts=1), word_timeout_s=0.1)

    def failing_without_a_store() -> Outcome:
        store.is_away = True
        return failing("worker died")()

    end = driver.drive(failing_without_a_store)
    assert isinstance(end, GivenUp)
    assert end.cause == "rank 1: boom"
