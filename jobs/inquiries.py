"""The small stories that only ask a store: how is this run doing?"""

import argparse
import json
import sys
from datetime import timedelta
from typing import Any

from checkpointing.errors import NothingToResume
from checkpointing.store import StoreError, open_store
from jobs.places import store_base
from jobs.status import status_of
from reporting.words import counted

EXIT_OK, EXIT_USAGE = 0, 2


def status(args: argparse.Namespace) -> int:
    try:
        found = status_of(open_store(args.store, base=store_base()), args.run)
    except (StoreError, NothingToResume) as error:
        print(f"longhaul status: {error}", file=sys.stderr)
        return EXIT_USAGE
    print(json.dumps(found, indent=1) if args.json else _text(found))
    return EXIT_OK


def _text(found: dict[str, Any]) -> str:
    steps = f"{found['step']}/{found['num_steps']}" if found["num_steps"] else str(found["step"])
    lines = [f"{found['run']}: {_state(found)}, step {steps}, attempt {found['attempts']}"]
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
    return "\n".join(lines + (_recorded(found["recorded"]) if found["recorded"] else []))


def _state(found: dict[str, Any]) -> str:
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


def _recorded(found: dict[str, Any]) -> list[str]:
    lines = []
    if found["tokens_per_s"] is not None:
        lines.append(f"{found['tokens_per_s']:,.0f} tokens/s while it trained")
    if found["goodput"] is not None:
        spent = sorted(found["phases_s"].items(), key=lambda item: -item[1])
        parts = ", ".join(f"{name} {seconds / found['wall_s']:.1%}" for name, seconds in spent)
        lines.append(f"goodput {found['goodput']:.1%} of {found['wall_s']:,.0f} s: {parts}")
    if found["num_restarts"]:
        restarts, steps = counted(found["num_restarts"], "restart"), counted(found["num_redone"], "step")
        lines.append(f"{restarts} cost {_span(found['lost_device_s'])} of device time, {steps} done again")
    return lines + [f"at {one['at_s']:,.0f} s: {one['kind']}: {one['text']}" for one in found["incidents"]]
