"""Shows a snapshot in a terminal, again and again in the same place; elsewhere as lines when it changes."""

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from cluster.inventory import LOCAL_GROUP
from jobs.commandline.output import printable
from jobs.watching.runs import RunRecords
from jobs.watching.snapshot import Snapshot, problems
from jobs.watching.sweeps import SweepRecords
from reporting.analysis.formatting import duration, fraction, number, short
from reporting.analysis.time_lost import in_order

_EVERY_S = 1.0
_LINE_EVERY_S = 10.0
_MOST_INCIDENTS = 5
_MOST_RUNNING = 10
_MOST_CELLS = 20


def show(look: Callable[[], Snapshot]) -> None:
    """Returns when the run or sweep has finished. Ctrl-C ends it before."""
    console = Console(highlight=False)
    if not console.is_terminal:
        _show_lines(look)
        return
    with Live(console=console, refresh_per_second=4, auto_refresh=False) as screen:
        while True:
            snapshot = look()
            screen.update(Group(*(Text(line, no_wrap=True) for line in lines(snapshot))), refresh=True)
            if snapshot.is_over:
                return
            time.sleep(_EVERY_S)


def _show_lines(look: Callable[[], Snapshot]) -> None:
    shown, shown_s = "", float("-inf")
    while True:
        snapshot = look()
        line, now = "  ".join(first_lines(snapshot)), time.monotonic()
        if line != shown and (now - shown_s >= _LINE_EVERY_S or snapshot.is_over):
            print(printable(line), flush=True)
            shown, shown_s = line, now
        if snapshot.is_over:
            return
        time.sleep(_EVERY_S)


def lines(snapshot: Snapshot) -> list[str]:
    """One text a line, without anything that could steer a terminal."""
    found = [*first_lines(snapshot), *problems(snapshot)]
    records, status = snapshot.records.value, snapshot.status.value or {}
    if isinstance(records, RunRecords):
        found += _recorded(records)
    else:
        found += [f"  {text}" for text in status.get("running", ())[:_MOST_RUNNING]]
        found += _cells(records) if isinstance(records, SweepRecords) else []
    return [printable(short(line, 300)) for line in found]


def first_lines(snapshot: Snapshot) -> list[str]:
    status = snapshot.status.value or {}
    stage = snapshot.stage or "no word of a driver"
    age_s = snapshot.status.age_s
    read = "not read yet" if age_s is None else f"read {age_s:.0f} s ago"
    facts = _of_run(status) if snapshot.kind == "run" else _of_sweep(status)
    return [f"{short(snapshot.name)}: {stage} ({read})", "  ".join(facts)]


def _of_run(status: Mapping[str, Any]) -> list[str]:
    step, num_steps = status.get("step"), status.get("num_steps")
    facts = [f"step {step}/{num_steps}" if num_steps else f"step {step}"]
    facts.append(f"loss {number(status.get('loss'), 4)}")
    if status.get("stage") == "training":
        facts.append(f"{number(status.get('tokens_per_s'))} tokens/s")
        facts += [f"waiting for data {fraction(share)}"] if (share := status.get("data_wait_share")) else []
        facts += [f"ETA {_span(status['eta_s'])}"] if status.get("eta_s") is not None else []
    age_s = status.get("newest_durable_age_s")
    facts.append("no checkpoint yet" if age_s is None else f"checkpoint {age_s:.0f} s old")
    facts.append(f"{status.get('steps_at_risk', 0)} steps at risk")
    where = f" in group {short(group)}" if (group := status.get("group")) not in (None, LOCAL_GROUP) else ""
    facts.append(f"attempt {status.get('attempts', 0)}{where}")
    return facts + ([str(status["why"])] if status.get("why") else [])


def _of_sweep(status: Mapping[str, Any]) -> list[str]:
    facts = [f"{status.get('num_done', 0):g}/{status.get('num_runs', 0):g} runs of this start"]
    facts.append(f"{status.get('num_failed', 0):g} failed, {len(status.get('running', ()))} running")
    if status.get("remaining_s") is not None and status.get("stage") == "measuring":
        facts.append(f"{_span(status['remaining_s'])} remaining")
    return facts


def _recorded(records: RunRecords) -> list[str]:
    run = records.run
    if run is None:
        return []
    whole = sum(run.phases.values()) or 1.0
    spent = ", ".join(f"{name} {fraction(seconds / whole)}" for name, seconds in in_order(run.phases))
    found = [f"goodput {fraction(run.goodput)} of {duration(run.wall_sec)}: {spent}"]
    found += [f"{len(run.recoveries)} restarts"] if run.recoveries else []
    notable = [one for one in run.incidents if one[1] not in ("save", "skipped save")]
    return found + [f"at {duration(at_s)}: {kind}: {text}" for at_s, kind, text in notable[-_MOST_INCIDENTS:]]


def _cells(records: SweepRecords) -> list[str]:
    found = [f"{records.num_results}/{records.num_runs} results, {records.num_failed} failed"]
    for cell in records.cells[-_MOST_CELLS:]:
        statuses = ", ".join(f"{status} {times}" for status, times in sorted(cell.statuses.items()))
        found.append(f"  {cell.title}: {number(cell.median)} tokens/s, {statuses}")
    return found


def _span(seconds: Any) -> str:
    return str(timedelta(seconds=round(seconds))) if 0 <= seconds < 1e9 else "?"
