"""``longhaul stop``: asks a run to save and end, from any machine that sees its store, and waits until it
has.

The stop request is written to the run's log and is meant for the current attempt. An attempt that begins
later is not stopped by it. While this command waits, it asks such an attempt as well.
"""

import argparse
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

from checkpointing.errors import Fenced, NothingToResume
from checkpointing.generations.repository import Repository, existing_run
from checkpointing.generations.retention import latest, of_this_life
from checkpointing.log.history import LogView, Stop
from checkpointing.stores.contract import Store, StoreError, Unavailable
from checkpointing.stores.opening import open_store
from jobs.commandline.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE, OF_STORES, run_command
from jobs.commandline.store_location import store_base
from jobs.run_progress.status_file import read_status_file

_LOOK_EVERY_S = 0.5
# A driver writes its status every two seconds while it reaches the store.
_SILENT_AFTER_S = 30.0
_ENDED_STAGES = ("given up", "failed", "interrupted")

StopState = Literal["stopped", "finished", "not running", "asked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOutcome:
    """How a stop request ended. ``step`` is where the run ended, or None if unknown; ``generation`` is its
    newest one.

    The state ``asked`` means that the command stopped waiting before the run had ended.
    """

    run: str
    state: StopState
    attempt: int
    step: int | None
    generation: str | None
    generation_step: int | None


def stop(args: argparse.Namespace) -> int:
    return run_command("stop", lambda: _stop(args), {NothingToResume: EXIT_USAGE, **OF_STORES})


def _stop(args: argparse.Namespace) -> int:
    say = _say_nothing if args.json else _say
    outcome = stop_run(open_store(args.store, base=store_base()), args.run, args.wait, say)
    print(json.dumps(asdict(outcome), indent=1) if args.json else _text(outcome, args.wait))
    is_done = outcome.state in ("stopped", "finished") or (outcome.state == "asked" and not args.wait)
    return EXIT_OK if is_done else EXIT_FAILED


def stop_run(
    store: Store,
    run: str,
    wait_s: float,
    say: Callable[[str], None],
    *,
    ticks: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> StopOutcome:
    """Asks the run to stop. Returns when it has ended, when no driver seems to be active, or after
    ``wait_s``.
    """
    repository = existing_run(store, run)
    deadline, signs = ticks() + wait_s, _Signs(store, run, ticks)
    asked: int | None = None
    while True:
        view = _newest(repository)
        if state := _ended(view):
            return _outcome(run, state, view)
        if view.term != asked and _ask(repository, view.term):
            asked = view.term
            say(f"{run}: asked attempt {asked} to save and end")
        if wait_s and signs.say_nobody_is_there(view.term):
            return _outcome(run, "not running", view)
        if ticks() >= deadline:
            return _outcome(run, "asked", view)
        sleep(_LOOK_EVERY_S)


class _Signs:
    """Watches for signs of an active driver: its status changes. The clock in the status is not read; it may
    be wrong.
    """

    def __init__(self, store: Store, run: str, ticks: Callable[[], float]) -> None:
        self._store = store
        self._run = run
        self._ticks = ticks
        self._reported: dict[str, Any] = {}
        self._changed_s = ticks()

    def say_nobody_is_there(self, term: int) -> bool:
        try:
            reported = read_status_file(self._store, self._run)
        except StoreError:
            reported = self._reported
        if reported != self._reported:
            self._reported, self._changed_s = reported, self._ticks()
        if reported.get("attempt") == term and reported.get("stage") in _ENDED_STAGES:
            return True
        return self._ticks() - self._changed_s > _SILENT_AFTER_S


def _newest(repository: Repository) -> LogView:
    """The newest log, or the last one read: a short outage of the store only makes the wait longer."""
    with suppress(Unavailable):
        return repository.refresh()
    return repository.view


def _ended(view: LogView) -> StopState | None:
    if view.finished_step is not None:
        return "finished"
    return "stopped" if view.stopped_step is not None else None


def _ask(repository: Repository, term: int) -> bool:
    """Writes the stop request; False if another attempt has begun meanwhile."""
    try:
        repository.append(Stop(), term=term)
    except Fenced:
        return False
    return True


def _outcome(run: str, state: StopState, view: LogView) -> StopOutcome:
    newest = latest(of_this_life(view))
    return StopOutcome(
        run=run,
        state=state,
        attempt=view.term,
        step=view.finished_step if state == "finished" else view.stopped_step,
        generation=newest.name if newest else None,
        generation_step=newest.step if newest else None,
    )


def _text(outcome: StopOutcome, wait_s: float) -> str:
    match outcome.state:
        case "finished":
            what = f"finished at step {outcome.step}, nothing to stop"
        case "stopped":
            what = f"stopped at step {outcome.step}, {_left(outcome)}; the command that trained it goes on"
        case "not running":
            what = f"not running: nobody has told of attempt {outcome.attempt} lately; {_left(outcome)}"
        case _ if wait_s:
            what = f"has not stopped within {wait_s:g} s; attempt {outcome.attempt} is still asked to"
        case _:
            return f"{outcome.run}: not waited for"
    return f"{outcome.run}: {what}"


def _left(outcome: StopOutcome) -> str:
    if outcome.generation is None:
        return "without a checkpoint"
    of_step = "" if outcome.generation_step == outcome.step else f" of step {outcome.generation_step}"
    return f"its newest checkpoint{of_step} is {outcome.generation}"


def _say(text: str) -> None:
    print(text, flush=True)


def _say_nothing(_text: str) -> None:
    return None
