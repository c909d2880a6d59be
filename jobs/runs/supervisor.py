"""``longhaul train --keep``: starts a run's driver again until the run has ended or was given up.

The driver is a child process, or a job on a Ray cluster. Any number of keepers may keep one run: a driver
that finds another one at work ends itself, and whoever takes the lease fences all others.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import latest, of_this_life
from checkpointing.log.history import View
from checkpointing.stores.contract import StoreError, Unavailable
from checkpointing.stores.opening import open_store
from jobs.alerts.command import Caller, facts_of
from jobs.alerts.rules import Alarm
from jobs.commandline.store_location import store_base
from jobs.commandline.usage_error import SpecError
from jobs.execution.causes import Cause
from jobs.execution.outcomes import StopWished
from jobs.recovery.journal import Note, given_up, leave_note, read_newest, read_note
from jobs.recovery.policy import Ending, GiveUp, Policy, next_move
from jobs.runs.driver_presence import Rivals
from jobs.runs.driver_process import (
    EXIT_FAILED,
    EXIT_GIVEN_UP,
    EXIT_INTERRUPTED,
    EXIT_NO_CLUSTER,
    EXIT_OCCUPIED,
    EXIT_OK,
    EXIT_USAGE,
    Away,
    Child,
    Driver,
    End,
    Start,
)
from jobs.runs.resume_command import job_variables, note_stop, resume_arguments
from jobs.runs.stop_signals import Wishers
from jobs.spec_schema.file import check_plain_name
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.task.stop_request import Wish
from reporting.recording.steady_clock import steady
from reporting.results.redaction import without_credentials

# Whom the user wants to be told of an alarm, and of which attempt it is.
Call = Callable[[Alarm, int], None]

_LOOK_EVERY_S = 0.25
_STAND_BY_S = 30.0
# What a driver tells its keeper alone, as everybody else knows it.
_PUBLIC = {EXIT_OCCUPIED: EXIT_USAGE, EXIT_GIVEN_UP: EXIT_FAILED, EXIT_NO_CLUSTER: EXIT_USAGE}
# A head that is restarted is away for about so long.
_UNSEEN_S = 60.0


def keep_running(args: argparse.Namespace) -> int:
    try:
        return _keep(args)
    except (SpecError, StoreError) as error:
        for line in str(error).splitlines():
            _say(f"longhaul train: {line}")
        return EXIT_FAILED if isinstance(error, Unavailable) else EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _keep(args: argparse.Namespace) -> int:
    spec = RunSpec.load(args.spec, args.set)
    run = check_plain_name(args.run, "--run") if args.run else spec.name
    store = open_store(args.store or spec.store, base=store_base())
    with Wishers() as wishers:
        # What it hears of is its drivers' to tell.
        wishers.listen(store, run, lambda _text: None)
        keeper = Keeper(
            Repository(store, run),
            _start_with(args, spec),
            spec.recovery,
            wishers,
            _call_with(spec, run=run, store=args.store or spec.store),
        )
        return keeper.keep(args)


def _start_with(args: argparse.Namespace, spec: RunSpec) -> Start:
    address = args.address or os.environ.get("RAY_ADDRESS", "")
    if not address.startswith(("http://", "https://")):
        return Child
    from jobs.runs.driver_job import JobServer

    store = args.store or spec.store
    if "://" not in store and not Path(store).is_absolute():
        raise SpecError(
            [
                f"store: {store!r} is relative, but the keeper must see it as its jobs do; give object "
                "storage, or the absolute path of a directory that the cluster shares"
            ]
        )
    return JobServer(address, job_variables(spec.checkpoint.deadline_s), _say).start


def _call_with(spec: RunSpec, *, run: str, store: str) -> Call:
    ringing = spec.alarms.ringing()
    if ringing is None:
        return lambda _alarm, _attempt: None
    caller, clock = Caller(ringing, _say), steady()
    return lambda alarm, attempt: caller.call(
        facts_of(alarm, run=run, store=store, attempt=attempt, at_s=clock())
    )


class _Lost(Exception):
    """Nobody could tell of the driver for too long."""


class Keeper:
    """Says what it does on standard error; drivers say the rest themselves."""

    def __init__(
        self,
        repository: Repository,
        start: Start,
        policy: Policy,
        wishers: Wishers,
        call: Call,
        *,
        clock: Callable[[], float] | None = None,
        pause: Callable[[float], None] | None = None,
        look_every_s: float = _LOOK_EVERY_S,
    ) -> None:
        self._repository = repository
        self._start = start
        self._policy = policy
        self._wishers = wishers
        self._call = call
        self._clock = clock or steady()
        self._pause = pause or wishers.pause
        self._look_every_s = look_every_s
        self._endings: list[Ending] = []
        # Of the newest attempt that a driver of ours left without a word; of every other one somebody else's
        # driver may be at work.
        self._own_term = 0
        # What its log was at when this keeper came.
        self._first_term = 0
        self._has_stood_by = False
        # Whether its first driver is to begin somewhere else than at the newest checkpoint.
        self._is_anew = False

    def keep(self, args: argparse.Namespace) -> int:
        """Its exit code is the driver's last one."""
        self._is_anew = args.fresh or args.resume != "latest"
        if (code := self._meet()) is not None:
            return code
        while True:
            before = self._view()
            try:
                end = self._follow(self._start(driver_arguments(args, before, self._first_term)))
            except Away as error:
                code = self._judge("cluster away", str(error))
            except _Lost as error:
                return self._give_up(f"{error}; it may be at work all the same")
            else:
                code = self._after(end, before)
            if code is not None:
                return code

    def _meet(self) -> int | None:
        """A store that is away when this keeper comes is waited for as later."""
        while True:
            try:
                self._first_term = self._repository.refresh().term
                return None
            except Unavailable as error:
                if (code := self._judge("store", str(error))) is not None:
                    return code

    def _follow(self, driver: Driver) -> End:
        told: Wish | None = None
        is_said = False
        try:
            while (end := driver.end()) is None:
                is_said = self._tell_of(driver.unseen_s(), is_said)
                if (wish := self._wishers.wish()) and wish != told:
                    told = wish
                    driver.stop(wish)
                time.sleep(self._look_every_s)
        except KeyboardInterrupt:
            driver.kill()
            raise
        return replace(end, is_stopped=True) if told and end.code is None else end

    def _tell_of(self, unseen_s: float, is_said: bool) -> bool:
        if unseen_s > self._policy.patience_s:
            raise _Lost(f"the cluster of its driver has not answered for {unseen_s / 3600:.1f} h")
        if unseen_s > _UNSEEN_S and not is_said:
            _say(
                f"{self._repository.run}: the cluster of its driver does not answer, which is waited for; "
                "`longhaul stop` reaches the run through its store"
            )
        return unseen_s > _UNSEEN_S

    def _after(self, end: End, before: View) -> int | None:
        """The exit code to leave with, or None when it is time for the next driver."""
        if end.is_stopped:
            return self._after_stop(end)
        if end.code is not None and self._wishers.wish():
            # Also that what it was to save could not be saved.
            return _PUBLIC.get(end.code, end.code)
        try:
            view = self._repository.refresh()
            note = given_up(self._repository.store, self._repository.run, view)
        except Unavailable as error:
            return self._judge("store", str(error))
        if end.code is None and view.term > before.term:
            self._own_term = view.term
        has_begun = view.term > self._first_term or self._has_stood_by
        if end.code in (EXIT_OK, EXIT_INTERRUPTED):
            return end.code
        if end.code == EXIT_OCCUPIED:
            return self._stand_by() if has_begun or not self._is_anew else EXIT_USAGE
        if end.code == EXIT_NO_CLUSTER and not has_begun and self._first_term == 0:
            return EXIT_USAGE
        if end.code == EXIT_USAGE and (not has_begun or before.finished_step is not None):
            return EXIT_USAGE
        if end.code == EXIT_GIVEN_UP or (has_begun and note is not None):
            return EXIT_FAILED
        if has_begun and view.stopped_step is not None:
            return EXIT_OK
        # What was there once is missing, such as nodes. Of a run that is finished something may be left to
        # do, such as its export: the next driver sees to it.
        is_missing = end.code in (EXIT_USAGE, EXIT_NO_CLUSTER)
        return self._judge("cluster away" if is_missing else "driver died", end.why)

    def _stand_by(self) -> int | None:
        """Until the other driver, such as one whose keeper is gone, is silent or has ended."""
        _say(f"{self._repository.run}: this keeper stands by, until the other driver is silent or ends")
        rivals = Rivals(self._repository.store, self._repository.run, pause=self._pause)
        try:
            # A store that is away is the next driver's to wait for.
            with suppress(StoreError):
                while rivals.is_one_alive(is_expected=True):
                    self._pause(_STAND_BY_S)
        except StopWished as stop:
            return self._stopped(stop.wish)
        self._has_stood_by = True
        view = self._view()
        if view.stopped_step is not None:
            _say(f"{self._repository.run}: stopped at step {view.stopped_step}; the same command goes on")
            return EXIT_OK
        with suppress(StoreError):
            if given_up(self._repository.store, self._repository.run, view):
                return EXIT_FAILED
        # If it is finished the next driver says so.
        return None

    def _after_stop(self, end: End) -> int:
        """The run's log tells whether its last step is durable."""
        try:
            view = self._repository.refresh()
        except Unavailable as error:
            _say(f"longhaul train: {end.why}, and its store does not tell at which step: {error}")
            return EXIT_FAILED
        if view.term == self._first_term or view.stopped_step is not None or view.finished_step is not None:
            return EXIT_OK
        newest = latest(of_this_life(view))
        left = f"the newest checkpoint is {newest.name}" if newest else "there is no checkpoint"
        _say(f"longhaul train: {end.why} before its last step was saved; {left}; running it again goes on")
        return EXIT_FAILED

    def _judge(self, cause: Cause, reason: str) -> int | None:
        """Waits, unless it makes no sense to go on or somebody wishes it to stop."""
        ending = self._ending(cause, reason)
        self._endings.append(ending)
        move = next_move(self._endings, self._policy)
        if isinstance(move, GiveUp):
            if cause == "driver died":
                self._note(ending, move.reason)
            return self._give_up(f"{move.reason}: {reason}")
        _say(f"{self._repository.run}: {reason}; starting it again in {move.after_s:g} s")
        if ending.term == self._own_term:
            # Nobody else is there now to hear `longhaul stop`.
            self._wishers.began(ending.term)
        try:
            self._pause(move.after_s)
        except StopWished as stop:
            return self._stopped(stop.wish)
        return None

    def _give_up(self, why: str) -> int:
        """As no driver is left to. Why is the last line, whatever the user's command does."""
        view = self._repository.view
        newest = latest(of_this_life(view))
        step = newest.step if newest else 0
        self._call(Alarm(kind="given up", text=without_credentials(why), step=step), view.term)
        _say(f"longhaul train: given up, {why}")
        return EXIT_FAILED

    def _stopped(self, wish: Wish) -> int:
        run, view = self._repository.run, self._view()
        if view.term != self._own_term:
            _say(f"{run}: kept no longer ({wish.why}); whoever is at work on it goes on")
            return EXIT_OK
        ended = note_stop(self._repository, view.term or None, wish)
        _say(f"{run}: stopped at step {ended.step} ({wish.why}); the same command goes on")
        return EXIT_OK

    def _ending(self, cause: Cause, reason: str) -> Ending:
        view = self._view()
        newest = latest(of_this_life(view))
        is_ours = newest is not None and newest.term > self._first_term
        return Ending(
            term=view.term,
            cause=cause,
            reason=reason,
            ended_s=self._clock(),
            step=newest.step if newest else 0,
            # What was there before may be of a branch that was left.
            durable_step=newest.step if newest and is_ours else 0,
        )

    def _note(self, ending: Ending, why: str) -> None:
        store, run = self._repository.store, self._repository.run
        with suppress(StoreError):
            if not ending.term or read_note(store, run, ending.term) is not None:
                return
            note = Note(term=ending.term, how="given up", ending=ending, given_up=why)
            if before := read_newest(store, run, self._repository.view):
                note = replace(note, skips=before.skips, spoilt=before.spoilt)
            leave_note(store, run, note)

    def _view(self) -> View:
        with suppress(StoreError):
            return self._repository.refresh()
        return self._repository.view


def driver_arguments(args: argparse.Namespace, view: View, first_term: int) -> list[str]:
    """What the next driver is started with. ``first_term`` is what the log was at when the keeper came."""
    words = resume_arguments(args, view, first_term + 1)
    words += ["--kept"]
    words += ["--take-over"] if args.take_over and view.term == first_term else []
    words += ["--json"] if args.json else []
    return words + (["--verbose"] if args.verbose else [])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
