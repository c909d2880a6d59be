"""``longhaul train --keep``: restarts a run's driver until the run has ended or was given up.

The driver is a child process, or a job on a Ray cluster. Any number of supervisors may watch one run. A
driver that finds another driver at work ends itself, and a driver that takes the lease fences all others.
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
from checkpointing.log.history import LogView
from checkpointing.stores.contract import StoreError, Unavailable
from checkpointing.stores.opening import open_store
from jobs.alerts.command import Caller, facts_of
from jobs.alerts.rules import Alarm
from jobs.commandline.exit_codes import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    OF_STORES,
    run_command,
)
from jobs.commandline.output import say
from jobs.commandline.set_values import is_secret_setting, warn_of_secrets_in_job
from jobs.commandline.store_location import store_base
from jobs.commandline.usage_error import SpecError
from jobs.execution.outcomes import Setback, StoreAway, crashed
from jobs.recovery.journal import AttemptNote, given_up, leave_note, read_newest, read_note
from jobs.recovery.loop import keep_trying
from jobs.recovery.policy import FailedAttempt, Pair, Policy, Retry, RollBack
from jobs.runs.driver_presence import DriverPresence
from jobs.runs.driver_process import (
    EXIT_GIVEN_UP,
    EXIT_NO_CLUSTER,
    EXIT_OCCUPIED,
    Away,
    Child,
    DriverEnd,
    DriverHandle,
    StartDriver,
)
from jobs.runs.resume_command import job_variables, note_stop, resume_arguments
from jobs.runs.stop_signals import StopSignals
from jobs.spec_schema.file import check_plain_name
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.task.stop_request import StopRequest
from reporting.recording.steady_clock import steady
from reporting.results.redaction import without_credentials

# Runs the user's alert command for an alarm; the number is that of the attempt.
Call = Callable[[Alarm, int], None]

_LOOK_EVERY_S = 0.25
_STAND_BY_S = 30.0
# The public exit codes for those that only a supervisor understands.
_PUBLIC = {EXIT_OCCUPIED: EXIT_USAGE, EXIT_GIVEN_UP: EXIT_FAILED, EXIT_NO_CLUSTER: EXIT_USAGE}
# A head node that restarts is away for about so long.
_UNSEEN_S = 60.0


def keep_running(args: argparse.Namespace) -> int:
    return run_command("train", lambda: _keep(args), {SpecError: EXIT_USAGE, **OF_STORES})


def _keep(args: argparse.Namespace) -> int:
    spec = RunSpec.load(args.spec, args.set)
    warn_of_secrets_in_job(args.set)
    run = check_plain_name(args.run, "--run") if args.run else spec.name
    store = open_store(args.store or spec.store, base=store_base())
    with StopSignals(is_end=True) as stop_signals:
        # The drivers announce a stop request themselves.
        stop_signals.listen(store, run, lambda _text: None)
        supervisor = Supervisor(
            Repository(store, run),
            _start_with(args, spec),
            spec.recovery,
            stop_signals,
            _call_with(spec, run=run, store=args.store or spec.store),
            clock=steady(),
            pause=stop_signals.pause,
        )
        return supervisor.keep(args)


def _start_with(args: argparse.Namespace, spec: RunSpec) -> StartDriver:
    address = args.address or os.environ.get("RAY_ADDRESS", "")
    if not address.startswith(("http://", "https://")):
        if args.address:
            raise SpecError([f"--address: {address!r} takes no jobs; expected such as http://head:8265"])
        return Child
    from jobs.runs.driver_job import JobServer

    _check_no_secret(args.set)
    store = args.store or spec.store
    if "://" not in store and not Path(store).is_absolute():
        raise SpecError(
            [
                f"store: {store!r} is relative, but the supervisor must see it as its jobs do; give object "
                "storage, or the absolute path of a directory that the cluster shares"
            ]
        )
    return JobServer(address, job_variables(spec.checkpoint.deadline_s), _say).start


def _check_no_secret(settings: list[str]) -> None:
    """Ray shows a job's command to all who see its jobs, and keeps it as long as its head lives."""
    problems = [
        f"--set {(path := setting.partition('=')[0])}: Ray would show it in its list of jobs; write the "
        f"value into a file of mode 0600 that the head sees too, and give --set {path}=@FILE"
        for setting in settings
        if is_secret_setting(setting)
    ]
    if problems:
        raise SpecError(problems)


def _call_with(spec: RunSpec, *, run: str, store: str) -> Call:
    ringing = spec.alarms.ringing()
    if ringing is None:
        return lambda _alarm, _attempt: None
    caller, clock = Caller(ringing, _say), steady()
    return lambda alarm, attempt: caller.call(
        facts_of(alarm, run=run, store=store, attempt=attempt, at_s=clock())
    )


class _Lost(Exception):
    """The cluster of the driver has not answered for too long."""


class _StopRequested(Exception):
    """A stop request, raised out of a wait in ``DriverPresence``, whose ``pause`` cannot return it."""

    def __init__(self, stop_request: StopRequest) -> None:
        self.stop_request = stop_request


class Supervisor:
    """Carries out the decisions of ``jobs.recovery.loop`` for a run's drivers; the result is the exit code.

    The supervisor prints what it does on standard error. Drivers print the rest themselves.
    """

    def __init__(
        self,
        repository: Repository,
        start: StartDriver,
        policy: Policy,
        stop_signals: StopSignals,
        call: Call,
        *,
        clock: Callable[[], float],
        pause: Callable[[float], StopRequest | None],
        look_every_s: float = _LOOK_EVERY_S,
    ) -> None:
        self.history: list[FailedAttempt] = []
        self.mended: dict[Pair, float] = {}
        self.groups: tuple[str, ...] = ()
        self._repository = repository
        self._start = start
        self._policy = policy
        self._stop_signals = stop_signals
        self._call = call
        self._clock = clock
        self._pause = pause
        self._look_every_s = look_every_s
        # The newest attempt whose driver was started here and died without an exit code. On any other
        # attempt a driver of another supervisor may be at work.
        self._own_term = 0
        # The term of the log when this supervisor started; None until the store has answered.
        self._first_term: int | None = None
        self._has_stood_by = False

    def keep(self, args: argparse.Namespace) -> int:
        """Starts drivers until the run has ended or was given up; returns the exit code."""
        return keep_trying(lambda _without: self._drive(args), self, self._policy)

    def failed(self, setback: Setback) -> int | None:
        self.history.append(self._ending(setback))
        return None

    def give_up(self, setback: Setback, why: str) -> int:
        if setback.cause == "driver died":
            self._note(self.history[-1], why)
        return self._give_up(f"{why}: {setback.reason}")

    def go_on(self, setback: Setback, move: Retry | RollBack) -> int | None:
        _say(f"{self._repository.run}: {setback.reason}; starting it again in {move.after_s:g} s")
        if (term := self.history[-1].term) == self._own_term:
            # No driver is left to hear `longhaul stop`, so this supervisor listens for it.
            self._stop_signals.began(term)
        stop_request = self._pause(move.after_s)
        return self._stopped(stop_request) if stop_request else None

    def _drive(self, args: argparse.Namespace) -> int | Setback:
        """Runs one driver to its end. While another driver is at work, the supervisor stands by and then
        starts the next.
        """
        while True:
            try:
                first_term = self._meet()
                before = self._view()
                end = self._follow(self._start(driver_arguments(args, before, first_term)))
            except Unavailable as error:
                return StoreAway(reason=str(error))
            except Away as error:
                return crashed(str(error), "cluster away")
            except _Lost as error:
                return self._give_up(f"{error}; it may be at work all the same")
            outcome = self._after(end, before, is_anew=args.fresh or args.resume != "latest")
            if outcome is not None:
                return outcome

    def _meet(self) -> int:
        """The term of the log when this supervisor started. A store that is away at first is waited for as
        later.
        """
        if self._first_term is None:
            self._first_term = self._repository.refresh().term
        return self._first_term

    def _follow(self, driver: DriverHandle) -> DriverEnd:
        forwarded: StopRequest | None = None
        is_said = False
        try:
            while (end := driver.end()) is None:
                is_said = self._tell_of(driver.unseen_s(), is_said)
                if (stop_request := self._stop_signals.stop_request()) and stop_request != forwarded:
                    forwarded = stop_request
                    driver.stop(stop_request)
                time.sleep(self._look_every_s)
        except KeyboardInterrupt:
            driver.kill()
            raise
        return replace(end, is_stopped=True) if forwarded and end.code is None else end

    def _tell_of(self, unseen_s: float, is_said: bool) -> bool:
        if unseen_s > self._policy.patience_s:
            raise _Lost(f"the cluster of its driver has not answered for {unseen_s / 3600:.1f} h")
        if unseen_s > _UNSEEN_S and not is_said:
            _say(
                f"{self._repository.run}: the cluster of its driver does not answer, which is waited for; "
                "`longhaul stop` reaches the run through its store"
            )
        return unseen_s > _UNSEEN_S

    def _after(self, end: DriverEnd, before: LogView, *, is_anew: bool) -> int | Setback | None:
        """The exit code to leave with, or what went wrong; None when it is time for the next driver.

        ``is_anew``: the first driver was asked to begin elsewhere than at the newest checkpoint.
        """
        if end.is_stopped:
            return self._after_stop(end)
        if end.code is not None and self._stop_signals.stop_request():
            # The driver's exit code also tells if the last save failed.
            return _PUBLIC.get(end.code, end.code)
        try:
            view = self._repository.refresh()
            is_given_up = given_up(self._repository.store, self._repository.run, view) is not None
        except Unavailable as error:
            return StoreAway(reason=str(error))
        if end.code is None and view.term == before.term and (asked := self._stop_signals.stop_request()):
            # One signal to all has ended the driver while Python loaded it.
            return self._never_began(asked.why)
        if end.code is None and view.term > before.term:
            self._own_term = view.term
        has_begun = view.term > self._first() or self._has_stood_by
        if end.code == EXIT_OCCUPIED and (has_begun or not is_anew):
            return self._stand_by()
        code = self._final_code(end, has_begun=has_begun, was_finished=before.finished_step is not None)
        if code is None and has_begun:
            code = _recorded_code(view, is_given_up=is_given_up)
        return _setback(end) if code is None else code

    def _final_code(self, end: DriverEnd, *, has_begun: bool, was_finished: bool) -> int | None:
        """The exit code to leave with if the driver's own says that no further driver can help."""
        if end.code in (EXIT_OK, EXIT_INTERRUPTED):
            return end.code
        if end.code == EXIT_GIVEN_UP:
            return EXIT_FAILED
        is_refused = (
            end.code == EXIT_OCCUPIED
            or (end.code == EXIT_NO_CLUSTER and not has_begun and self._first() == 0)
            or (end.code == EXIT_USAGE and (not has_begun or was_finished))
        )
        return EXIT_USAGE if is_refused else None

    def _stand_by(self) -> int | None:
        """Waits until the other driver is silent or has ended; its own supervisor may be gone. None: start
        the next driver.
        """
        _say(f"{self._repository.run}: this supervisor stands by, until the other driver is silent or ends")
        presence = DriverPresence(self._repository.store, self._repository.run, pause=self._pause_or_stop)
        try:
            # If the store is away, the next driver waits for it.
            with suppress(StoreError):
                while presence.is_one_alive(is_expected=True):
                    self._pause_or_stop(_STAND_BY_S)
        except _StopRequested as stop:
            return self._stopped(stop.stop_request)
        self._has_stood_by = True
        view = self._view()
        if view.stopped_step is not None:
            _say(f"{self._repository.run}: stopped at step {view.stopped_step}; the same command goes on")
            return EXIT_OK
        with suppress(StoreError):
            if given_up(self._repository.store, self._repository.run, view):
                return EXIT_FAILED
        # If the run is finished, the next driver says so.
        return None

    def _after_stop(self, end: DriverEnd) -> int:
        """The exit code after a stop: the run's log tells whether the last step is durable."""
        try:
            view = self._repository.refresh()
        except Unavailable as error:
            _say(f"longhaul train: {end.why}, and its store does not tell at which step: {error}")
            return EXIT_FAILED
        if view.term == self._first():
            asked = self._stop_signals.stop_request()
            return self._never_began(asked.why if asked else end.why)
        if view.stopped_step is not None or view.finished_step is not None:
            return EXIT_OK
        newest = latest(of_this_life(view))
        left = f"the newest checkpoint is {newest.name}" if newest else "there is no checkpoint"
        _say(f"longhaul train: {end.why} before its last step was saved; {left}; running it again goes on")
        return EXIT_FAILED

    def _never_began(self, why: str) -> int:
        _say(f"{self._repository.run}: stopped before its driver began ({why}); the same command goes on")
        return EXIT_OK

    def _pause_or_stop(self, for_s: float) -> None:
        if stop_request := self._pause(for_s):
            raise _StopRequested(stop_request)

    def _give_up(self, why: str) -> int:
        """Runs the user's alert command, since no driver is left to do so. The reason is printed last,
        whatever it does.
        """
        view = self._repository.view
        newest = latest(of_this_life(view))
        step = newest.step if newest else 0
        self._call(Alarm(kind="given up", text=without_credentials(why), step=step), view.term)
        _say(f"longhaul train: given up, {why}")
        return EXIT_FAILED

    def _stopped(self, stop_request: StopRequest) -> int:
        run, view = self._repository.run, self._view()
        if view.term != self._own_term:
            _say(f"{run}: kept no longer ({stop_request.why}); whoever is at work on it goes on")
            return EXIT_OK
        ended = note_stop(self._repository, view.term or None, stop_request)
        _say(f"{run}: stopped at step {ended.step} ({stop_request.why}); the same command goes on")
        return EXIT_OK

    def _ending(self, setback: Setback) -> FailedAttempt:
        view = self._view()
        newest = latest(of_this_life(view))
        is_ours = newest is not None and newest.term > self._first()
        return FailedAttempt(
            term=view.term,
            cause=setback.cause,
            reason=setback.reason,
            ended_s=self._clock(),
            step=newest.step if newest else 0,
            # An older generation may belong to a branch that was left.
            durable_step=newest.step if newest and is_ours else 0,
        )

    def _note(self, ending: FailedAttempt, why: str) -> None:
        store, run = self._repository.store, self._repository.run
        with suppress(StoreError):
            if not ending.term or read_note(store, run, ending.term) is not None:
                return
            note = AttemptNote(term=ending.term, how="given up", ending=ending, given_up=why)
            if before := read_newest(store, run, self._repository.view):
                note = replace(note, skips=before.skips, skipped_in=before.skipped_in, spoilt=before.spoilt)
            leave_note(store, run, note)

    def _first(self) -> int:
        return self._first_term or 0

    def _view(self) -> LogView:
        with suppress(StoreError):
            return self._repository.refresh()
        return self._repository.view


def _recorded_code(view: LogView, *, is_given_up: bool) -> int | None:
    """The exit code to leave with if the run's log says that the run has been given up or stopped."""
    if is_given_up:
        return EXIT_FAILED
    return EXIT_OK if view.stopped_step is not None else None


def _setback(end: DriverEnd) -> Setback:
    # Something is missing that was there before, such as nodes. A finished run may still have work left, such
    # as its export: the next driver does it.
    is_missing = end.code in (EXIT_USAGE, EXIT_NO_CLUSTER)
    return crashed(end.why, "cluster away" if is_missing else "driver died")


def driver_arguments(args: argparse.Namespace, view: LogView, first_term: int) -> list[str]:
    """The arguments of the next driver. ``first_term`` is the term of the log when the supervisor started."""
    words = resume_arguments(args, view, first_term + 1)
    words += ["--kept"]
    words += ["--take-over"] if args.take_over and view.term == first_term else []
    words += ["--json"] if args.json else []
    return words + (["--verbose"] if args.verbose else [])


def _say(text: str) -> None:
    say(text, to=sys.stderr)
