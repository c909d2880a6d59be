"""``longhaul status``: how a run is doing, read from its store: the status file beside the log, and the
log.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from checkpointing.errors import NothingToResume
from checkpointing.generations.repository import Repository, existing_run
from checkpointing.generations.retention import latest, of_this_life
from checkpointing.log.history import LogView
from checkpointing.stores.contract import Store, StoreError
from checkpointing.stores.opening import open_store
from jobs.commandline.exit_codes import EXIT_OK, EXIT_USAGE, run_command
from jobs.commandline.output import printable
from jobs.commandline.store_location import store_base
from jobs.recovery.journal import AttemptNote, given_up
from jobs.run_progress.run_state import GOING_ON
from jobs.run_progress.status_file import read_status_file
from reporting.analysis.formatting import counted
from reporting.long_runs.recoveries import Recovery
from reporting.long_runs.summarising import long_run
from reporting.long_runs.summary import LongRun

_NUM_INCIDENTS = 5
_FREQUENT = ("save", "skipped save")
# A driver writes its status every few seconds; one that has not for so long may be gone.
_SILENT_AFTER_S = 30.0


def status_of(store: Store, run: str, *, clock: Callable[[], float] = time.time) -> dict[str, Any]:
    """The facts about a run for programs. Raises ``NothingToResume`` if there is no such run."""
    return {**state_of(store, run, clock=clock), "recorded": recorded_facts(long_run(store, run))}


def state_of(store: Store, run: str, *, clock: Callable[[], float] = time.time) -> dict[str, Any]:
    """``status_of`` without what the run has recorded: a few requests, however long it has run."""
    return reported_status(existing_run(store, run), clock=clock)


def reported_status(repository: Repository, *, clock: Callable[[], float] = time.time) -> dict[str, Any]:
    """``state_of`` a run whose log was just refreshed."""
    store, run, view = repository.store, repository.run, repository.view
    reported = read_status_file(store, run)
    if reported.get("attempt", view.term) < view.life_term:
        # The run was started with --fresh since, so the old status is about an earlier life.
        reported = {}
    now_s, generations = clock(), of_this_life(view)
    if (note := given_up(store, run, view)) and not _is_begun_again(reported, now_s):
        # A supervisor may have given the run up after its driver died without a report.
        reported |= {"stage": "given up", "why": _why(note), "attempt": view.term}
    newest = latest(generations)
    step = max(reported.get("step", 0), newest.step if newest else 0, view.finished_step or 0)
    return {
        "run": run,
        "step": step,
        "num_steps": reported.get("num_steps"),
        "loss": reported.get("loss", newest.metrics.get("loss") if newest else None),
        "tokens_per_s": reported.get("tokens_per_s"),
        "finished": view.finished_step is not None,
        "stage": _stage(view, reported, now_s),
        "why": reported.get("why"),
        "told_age_s": max(0.0, now_s - reported["told_s"]) if "told_s" in reported else None,
        "retry_in_s": max(0.0, reported["retry_at_s"] - now_s) if reported.get("retry_at_s") else None,
        "eta_s": reported.get("eta_s"),
        "newest_generation": newest.name if newest else None,
        "newest_durable_age_s": max(0.0, now_s - newest.committed_s) if newest else None,
        "steps_at_risk": step - (newest.step if newest else 0),
        "num_generations": len(generations),
        "attempts": view.term,
        "stop_asked": view.stop_asked,
        "stopped_step": view.stopped_step,
    }


def _why(note: AttemptNote) -> str | None:
    return f"{note.given_up}: {note.ending.reason}" if note.ending else note.given_up


def _stage(view: LogView, reported: Mapping[str, Any], now_s: float) -> str | None:
    """What the run is doing: ``silent`` if the status is too old, None if there is no status."""
    if view.finished_step is not None:
        return "finished"
    if view.stopped_step is not None:
        return "stopped"
    stage: str | None = reported.get("stage")
    if view.term > reported.get("attempt", view.term):
        stage = "starting"
    if stage in GOING_ON and now_s - reported.get("told_s", now_s) > _SILENT_AFTER_S:
        return "silent"
    return stage


def _is_begun_again(reported: Mapping[str, Any], now_s: float) -> bool:
    """Whether a new driver waits for its lease: until then it is not the driver of the newest attempt."""
    is_waiting = reported.get("stage") in GOING_ON and reported.get("has_lease") is False
    return is_waiting and now_s - reported.get("told_s", 0.0) <= _SILENT_AFTER_S


def recorded_facts(found: LongRun | None) -> dict[str, Any] | None:
    """What the run's metrics parts say so far; None before the first part. Times are seconds since the first
    start.
    """
    if found is None:
        return None
    notable = [one for one in found.incidents if one[1] not in _FREQUENT] or found.incidents
    incidents = [
        {"at_s": round(at_s, 3), "kind": kind, "text": text} for at_s, kind, text in notable[-_NUM_INCIDENTS:]
    ]
    return {
        "num_steps": found.num_steps,
        "num_superseded": found.num_superseded,
        "tokens_per_s": found.tokens_per_sec,
        "simulated": found.simulated,
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
    """What one restart cost, after the attempt ``attempt``."""
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


def status(args: argparse.Namespace) -> int:
    codes = {StoreError: EXIT_USAGE, NothingToResume: EXIT_USAGE}
    return run_command("status", lambda: _status(args), codes)


def _status(args: argparse.Namespace) -> int:
    found = status_of(open_store(args.store, base=store_base()), args.run)
    print(json.dumps(found, indent=1) if args.json else printable(_text(found)))
    return EXIT_OK


def _text(found: dict[str, Any]) -> str:
    steps = f"{found['step']}/{found['num_steps']}" if found["num_steps"] else str(found["step"])
    lines = [f"{found['run']}: {state_text(found)}, step {steps}, attempt {found['attempts']}"]
    if found["loss"] is not None:
        lines.append(f"loss {found['loss']:.4f}")
    if found["stage"] == "training" and found["tokens_per_s"] is not None:
        eta = f", done in {_span(found['eta_s'])}" if found["eta_s"] is not None else ""
        lines.append(f"{found['tokens_per_s']:,.0f} tokens/s{eta}")
    if found["newest_generation"]:
        age = found["newest_durable_age_s"]
        risk = f", {found['steps_at_risk']} steps ago" if found["steps_at_risk"] else ""
        lines.append(f"newest checkpoint {found['newest_generation']}, {age:,.0f} s old{risk}")
    else:
        lines.append("no checkpoint yet")
    return "\n".join(lines + (_recorded_lines(found["recorded"]) if found["recorded"] else []))


def state_text(found: Mapping[str, Any]) -> str:
    why = f" ({found['why']})" if found["why"] else ""
    match found["stage"]:
        case None:
            return "not finished"
        case "waiting" if found["retry_in_s"] is not None:
            return f"waits {_span(found['retry_in_s'])} for its next attempt{why}"
        case "silent":
            return f"no word of it for {_span(found['told_age_s'])}, its driver may be gone"
        case "stopped" if found["stopped_step"] is not None:
            return f"stopped at step {found['stopped_step']}{why}"
        case "failed" | "given up" | "stopped" | "interrupted":
            return f"{found['stage']}{why}"
        case stage:
            return str(stage)


def _span(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _recorded_lines(found: dict[str, Any]) -> list[str]:
    lines = []
    if found["tokens_per_s"] is not None:
        simulated = " (simulated)" if found["simulated"] else ""
        lines.append(f"{found['tokens_per_s']:,.0f} tokens/s while it trained{simulated}")
    if found["goodput"] is not None:
        spent = sorted(found["phases_s"].items(), key=lambda item: -item[1])
        parts = ", ".join(f"{name} {seconds / found['wall_s']:.1%}" for name, seconds in spent)
        lines.append(f"goodput {found['goodput']:.1%} of {found['wall_s']:,.0f} s: {parts}")
    if found["num_restarts"]:
        restarts, steps = counted(found["num_restarts"], "restart"), counted(found["num_redone"], "step")
        lines.append(f"{restarts} cost {_span(found['lost_device_s'])} of device time, {steps} done again")
    return lines + [f"at {one['at_s']:,.0f} s: {one['kind']}: {one['text']}" for one in found["incidents"]]
