"""``longhaul status``: how a run is doing, read from its store: the status file beside the log, and the
log.

Whether its driver is still there follows from whether its words change, never from two machines' clocks. Over
a store that is far away this takes five round trips, and those of what the run has recorded beside them.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from checkpointing.errors import NothingToResume
from checkpointing.generations.repository import Repository, existing_run
from checkpointing.generations.retention import latest, of_this_life
from checkpointing.log.history import LogView
from checkpointing.stores.contract import Store, StoreError
from cluster.inventory import LOCAL_GROUP
from jobs.commandline.exit_codes import EXIT_OK, EXIT_USAGE, run_command
from jobs.commandline.output import printable
from jobs.commandline.store_waits import open_to_read, waits_told
from jobs.recovery.journal import AttemptNote, given_up
from jobs.run_progress.run_state import GOING_ON
from jobs.run_progress.status_file import read_status_file
from jobs.runs.listening import LISTENED_S, Report, is_going_on, listen
from reporting.analysis.formatting import counted
from reporting.long_runs.recoveries import Recovery
from reporting.long_runs.summarising import long_run
from reporting.long_runs.summary import LongRun

_NUM_INCIDENTS = 5
_FREQUENT = ("save", "skipped save")


def believed(report: Report) -> Report:
    """Takes the driver's word, for those who know it or do not want to wait."""
    return report


def status_of(
    store: Store,
    run: str,
    *,
    clock: Callable[[], float] = time.time,
    hears: Callable[[Report], Report | None] = believed,
) -> dict[str, Any]:
    """The facts about a run for programs. Raises ``NothingToResume`` if there is no such run.

    ``hears`` is asked about a report of a driver that was at work: it returns the newest report, or None if
    that driver does not report any more.
    """
    with ThreadPoolExecutor(3, thread_name_prefix="status") as pool:
        report = pool.submit(read_status_file, store, run)
        repository = pool.submit(existing_run, store, run)
        recorded = pool.submit(long_run, store, run)
        found = repository.result()
        told = reported_status(found, report.result(), clock=clock, hears=hears)
        return {**told, "recorded": recorded_facts(recorded.result())}


def reported_status(
    repository: Repository,
    report: Report,
    *,
    clock: Callable[[], float] = time.time,
    hears: Callable[[Report], Report | None] = believed,
) -> dict[str, Any]:
    """``status_of`` without what the run has recorded, of a run whose log and ``report`` were just read.

    The newest note of an attempt is read, and what ``hears`` reads.
    """
    store, run, view = repository.store, repository.run, repository.view
    note = given_up(store, run, view)
    newer = hears(report) if may_report_again(report, view) else report
    reported = dict(newer or report)
    if reported.get("attempt", view.term) < view.life_term:
        # The run was started with --fresh since, so the old status is about an earlier life.
        reported = {}
    is_heard = newer is not None
    now_s, generations = clock(), of_this_life(view)
    if note and not (is_heard and _waits_for_its_lease(reported)):
        # A supervisor may have given the run up after its driver died without a report.
        reported |= {"stage": "given up", "why": _why(note), "attempt": view.term}
    newest = latest(generations)
    step = max(reported.get("step", 0), newest.step if newest else 0, view.finished_step or 0)
    return {
        "run": run,
        "step": step,
        "num_steps": view.finished_step or reported.get("num_steps"),
        "loss": reported.get("loss", newest.metrics.get("loss") if newest else None),
        "tokens_per_s": reported.get("tokens_per_s"),
        "data_wait_share": reported.get("data_wait_share"),
        "checked_step": reported.get("checked_step"),
        "finished": view.finished_step is not None,
        "stage": _stage(view, reported, is_heard=is_heard),
        "why": reported.get("why"),
        "told_age_s": max(0.0, now_s - reported["told_s"]) if "told_s" in reported else None,
        "retry_in_s": _retry_in_s(reported, now_s),
        "eta_s": reported.get("eta_s"),
        "newest_generation": newest.name if newest else None,
        "newest_durable_age_s": max(0.0, now_s - newest.committed_s) if newest else None,
        "steps_at_risk": step - (newest.step if newest else 0),
        "num_generations": len(generations),
        "attempts": view.term,
        "group": reported.get("group") if reported.get("attempt") == view.term else None,
        "stop_asked": view.stop_asked,
        "stopped_step": view.stopped_step,
    }


def may_report_again(report: Report, view: LogView) -> bool:
    """Whether it is worth listening for the run's driver. What it wrote last is no sign of it once its log
    says that the run is finished: one with no step left to do writes no more than that it starts.
    """
    return is_going_on(report) and view.finished_step is None


def _why(note: AttemptNote) -> str | None:
    return f"{note.given_up}: {note.ending.reason}" if note.ending else note.given_up


def _stage(view: LogView, reported: Report, *, is_heard: bool) -> str | None:
    """What the run does: ``silent`` if its driver does not report any more, None if there is no status."""
    is_begun_again = is_heard and _waits_for_its_lease(reported)
    if view.finished_step is not None:
        return "finished"
    if view.stopped_step is not None and not is_begun_again:
        return "stopped"
    stage: str | None = reported.get("stage")
    if stage in GOING_ON and not is_heard:
        return "silent"
    return "starting" if view.term > reported.get("attempt", view.term) else stage


def _waits_for_its_lease(reported: Report) -> bool:
    """Whether a new driver waits, for room or the like: it is not the driver of the newest attempt yet."""
    return is_going_on(reported) and reported.get("has_lease") is False


def _retry_in_s(reported: Report, now_s: float) -> float | None:
    """Both times are by the driver's clock, which may differ from this machine's."""
    if not reported.get("retry_at_s"):
        return None
    return max(0.0, float(reported["retry_at_s"] - reported.get("told_s", now_s)))


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
        "attention_kernel": found.attention_kernel,
        "source_losses": dict(found.source_losses),
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
    with waits_told("status"):
        return run_command("status", lambda: _status(args), codes)


def _status(args: argparse.Namespace) -> int:
    store = open_to_read(args.store, args.wait)
    found = status_of(store, args.run, hears=lambda report: listen(store, args.run, report))
    print(json.dumps(found, indent=1) if args.json else printable(_text(found)))
    return EXIT_OK


def _text(found: dict[str, Any]) -> str:
    steps = f"{found['step']}/{found['num_steps']}" if found["num_steps"] else str(found["step"])
    where = f" in group {found['group']}" if found["group"] not in (None, LOCAL_GROUP) else ""
    lines = [f"{found['run']}: {state_text(found)}, step {steps}, attempt {found['attempts']}{where}"]
    if found["loss"] is not None:
        lines.append(f"loss {found['loss']:.4f}")
    if found["stage"] == "training" and found["tokens_per_s"] is not None:
        eta = f", done in {_span(found['eta_s'])}" if found["eta_s"] is not None else ""
        lines.append(f"{found['tokens_per_s']:,.0f} tokens/s{eta}")
    if found["stage"] == "training" and found["data_wait_share"] is not None:
        lines.append(f"waiting for data {found['data_wait_share']:.1%} of the time")
    if found["checked_step"] is not None:
        lines.append(f"all ranks computed alike after step {found['checked_step']}")
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
            return f"no new word of it within {LISTENED_S:g} s, its driver may be gone"
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
    if found["source_losses"]:
        losses = ", ".join(f"{name} {loss:.4f}" for name, loss in found["source_losses"].items())
        lines.append(f"loss by source: {losses}")
    if found["goodput"] is not None:
        spent = sorted(found["phases_s"].items(), key=lambda item: -item[1])
        parts = ", ".join(f"{name} {seconds / found['wall_s']:.1%}" for name, seconds in spent)
        lines.append(f"goodput {found['goodput']:.1%} of {found['wall_s']:,.0f} s: {parts}")
    if found["num_restarts"]:
        restarts, steps = counted(found["num_restarts"], "restart"), counted(found["num_redone"], "step")
        lines.append(f"{restarts} cost {_span(found['lost_device_s'])} of device time, {steps} done again")
    return lines + [f"at {one['at_s']:,.0f} s: {one['kind']}: {one['text']}" for one in found["incidents"]]
