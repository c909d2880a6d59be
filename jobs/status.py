"""How a run is doing, for those who are not there: a small file beside the log, and the log itself."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from checkpointing.errors import NothingToResume
from checkpointing.history import View
from checkpointing.repository import Repository
from checkpointing.retention import latest, of_this_life
from checkpointing.store import Missing, Store, StoreError, check_name
from jobs.past import Note, given_up
from jobs.run_state import GOING_ON
from reporting.long_runs import long_run
from reporting.recoveries import Recovery

_INTERVAL_S = 2.0
_NUM_INCIDENTS = 5
_FREQUENT = ("save", "skipped save")
# A driver tells at least every few seconds; one that has not for so long may be gone.
_SILENT_AFTER_S = 30.0


class StatusFile:
    """Written by a thread of its own, so that a store which is away holds nobody up. Used as a context.

    What an earlier driver told stays until this one tells otherwise, but for its attempt; none of it where
    this one ``is_fresh``. ``driver`` is its word for itself. Nothing is written while
    ``may_speak`` says no.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        driver: str | None = None,
        *,
        is_fresh: bool = False,
        may_speak: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store = store
        self._name = _name_of(run)
        self._run = run
        self._driver = driver
        self._before: Mapping[str, Any] | None = {} if is_fresh else None
        self._may_speak = may_speak
        self._newest: Mapping[str, Any] | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, name="status", daemon=True)

    def __enter__(self) -> "StatusFile":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Gives the last word a moment to arrive, no more."""
        self._done.set()
        self._thread.join(2 * _INTERVAL_S)

    def tell(self, status: Mapping[str, Any]) -> None:
        self._newest = status

    def _work(self) -> None:
        while not self._done.wait(_INTERVAL_S):
            self._write()
        self._write()

    def _write(self) -> None:
        if self._newest is None or not self._may_speak():
            return
        newest, self._newest = self._newest, None
        with suppress(StoreError):
            if self._before is None:
                told = told_of(self._store, self._run)
                self._before = {key: value for key, value in told.items() if key != "attempt"}
            self._store.put(self._name, self._body(newest))

    def _body(self, newest: Mapping[str, Any]) -> bytes:
        own = {"driver": self._driver} if self._driver else {}
        return json.dumps({**(self._before or {}), **newest, **own}).encode()


def status_of(store: Store, run: str, *, clock: Callable[[], float] = time.time) -> dict[str, Any]:
    """What a program may want to know; raises ``NothingToResume`` where there is no such run."""
    repository = Repository(store, run)
    view = repository.refresh()
    if view.term == 0:
        raise NothingToResume(f"{store.url}: there is no run {run!r}; expected the name of one below runs/")
    told = told_of(store, run)
    if told.get("attempt", view.term) < view.life_term:
        # It was begun afresh since.
        told = {}
    now_s, generations = clock(), of_this_life(view)
    if (note := given_up(store, run, view)) and not _is_begun_again(told, now_s):
        # A keeper may have said so, after its driver had died without a word.
        told |= {"stage": "given up", "why": _why(note), "attempt": view.term}
    newest = latest(generations)
    step = max(told.get("step", 0), newest.step if newest else 0, view.finished_step or 0)
    return {
        "run": run,
        "step": step,
        "num_steps": told.get("num_steps"),
        "loss": told.get("loss", newest.metrics.get("loss") if newest else None),
        "tokens_per_s": told.get("tokens_per_s"),
        "finished": view.finished_step is not None,
        "stage": _stage(view, told, now_s),
        "why": told.get("why"),
        "told_age_s": max(0.0, now_s - told["told_s"]) if "told_s" in told else None,
        "retry_in_s": max(0.0, told["retry_at_s"] - now_s) if told.get("retry_at_s") else None,
        "eta_s": told.get("eta_s"),
        "newest_generation": newest.name if newest else None,
        "newest_durable_age_s": max(0.0, now_s - newest.committed_s) if newest else None,
        "steps_at_risk": step - (newest.step if newest else 0),
        "num_generations": len(generations),
        "attempts": view.term,
        "stop_asked": view.stop_asked,
        "stopped_step": view.stopped_step,
        "recorded": _recorded(store, run),
    }


def _why(note: Note) -> str | None:
    return f"{note.given_up}: {note.ending.reason}" if note.ending else note.given_up


def _stage(view: View, told: Mapping[str, Any], now_s: float) -> str | None:
    """What the run is doing. ``silent`` is one of which nothing was heard; None where nobody told."""
    if view.finished_step is not None:
        return "finished"
    if view.stopped_step is not None:
        return "stopped"
    stage: str | None = told.get("stage")
    if view.term > told.get("attempt", view.term):
        stage = "starting"
    if stage in GOING_ON and now_s - told.get("told_s", now_s) > _SILENT_AFTER_S:
        return "silent"
    return stage


def _is_begun_again(told: Mapping[str, Any], now_s: float) -> bool:
    """A driver that has no lease yet is another one than that of the newest attempt."""
    is_waiting = told.get("stage") in GOING_ON and told.get("has_lease") is False
    return is_waiting and now_s - told.get("told_s", 0.0) <= _SILENT_AFTER_S


def _recorded(store: Store, run: str) -> dict[str, Any] | None:
    """What its parts tell so far; None before the first of them. Times are seconds since its first start."""
    found = long_run(store, run)
    if found is None:
        return None
    telling = [one for one in found.incidents if one[1] not in _FREQUENT] or found.incidents
    incidents = [
        {"at_s": round(at_s, 3), "kind": kind, "text": text} for at_s, kind, text in telling[-_NUM_INCIDENTS:]
    ]
    return {
        "num_steps": found.num_steps,
        "num_superseded": found.num_superseded,
        "tokens_per_s": found.tokens_per_sec,
        "wall_s": found.wall_sec,
        "goodput": found.goodput,
        "phases_s": dict(found.phases),
        "incidents": incidents,
        "num_restarts": len(found.recoveries),
        "restarts": [_restart(one) for one in found.recoveries[-_NUM_INCIDENTS:]],
        "lost_device_s": sum(one.device_s for one in found.recoveries),
        "num_redone": sum(one.num_redone for one in found.recoveries),
    }


def _restart(one: Recovery) -> dict[str, Any]:
    """What it cost to go on after the attempt ``attempt``."""
    return {
        "attempt": one.term,
        "at_s": round(one.at_s, 3),
        "cause": one.cause,
        "text": one.text,
        "from_step": one.step,
        "num_redone": one.num_redone,
        "phases_s": dict(one.phases),
        "device_s": one.device_s,
    }


def told_of(store: Store, run: str) -> dict[str, Any]:
    """What its driver told last; empty where that can't be read."""
    try:
        told = json.loads(store.get(_name_of(run)))
    except (Missing, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _name_of(run: str) -> str:
    return check_name(f"runs/{run}/status.json")
