"""Decides what kind of failure ended an attempt. Pure: it judges by message texts where nothing better is
known.
"""

import re
from typing import Literal

from jobs.execution.board import Lost
from jobs.training.health.device_errors import trouble_of
from jobs.training.task.measurement import Failure

Cause = Literal[
    "worker died", "host lost", "host silent", "driver died", "hang", "partition", "out of memory",
    "error", "device failed", "invalid loss", "corruption", "hand-over", "store", "no room", "cluster away",
    "preempted", "refused",
]  # fmt: skip


# A worker's own errors arrive as text that begins with the name of their type.
_REFUSED = ("NothingToResume:", "Unfit:", "SpecError:", "StoreError:", "StoreKeyError:")
_STORE = ("Unavailable:", "Full:", "Denied:")
LOST_CONTROLLER = "Ray Train's controller has died"
LOST_AT_START = "a worker was lost before it could begin"
# A rank that talks to a lost peer reports one of these.
_LOST_PEER = re.compile(
    r"connection (closed|reset|refused|aborted)|connect\(\) timed out|broken pipe|no route to host|"
    r"network is unreachable|^PeersLost: |nccl.*(remote process exited|remote error|system error)|"
    r"socket (timeout|has timed out)",
    re.IGNORECASE,
)
_PEER_IN_COLLECTIVE = re.compile(
    r"gloo.*connection (closed|reset)|connection closed by (peer|rank)|"
    r"nccl.*(remote process exited|remote error)",
    re.IGNORECASE | re.DOTALL,
)
# What the roll call says at a start, and the monitor of nodes whose ranks stand still.
_PARTED = re.compile(r"does not reach rank \d+ on ")
# Signals that a program causes itself, again and again; SIGKILL and SIGTERM come from outside.
_OWN_SIGNAL = re.compile(r"SIG(SEGV|ABRT|BUS|FPE|ILL)")


def cause_of(failure: Failure, lost: Lost | None = None) -> Cause:
    """The cause of a failure. ``lost`` is the controller's report of the rank that failed, if there is
    one.
    """
    if failure.corruption is not None:
        return "corruption"
    if failure.is_hand_over_refused:
        return "hand-over"
    match failure.status:
        case "oom":
            return "out of memory"
        case "hang" | "timeout":
            return "partition" if _PARTED.search(failure.reason) else "hang"
        case "invalid_loss":
            return "invalid loss"
        case "unschedulable":
            return "no room"
        case "device_mismatch":
            return "refused"
    # A node that goes away as announced may take its devices from its ranks first.
    if lost is not None and lost.is_death and lost.is_preempted:
        return "preempted"
    if trouble_of("\n".join([failure.reason, *failure.log_tail])) in ("broken", "doubtful"):
        return "device failed"
    return _of_loss(lost, failure.reason) if lost is not None and lost.is_death else _of_words(failure.reason)


def is_echo(reason: str) -> bool:
    """Whether a rank speaks of a peer that is gone, and not of itself."""
    return _LOST_PEER.search(reason) is not None


def speaks_of_peer(reason: str) -> bool:
    """Whether a rank says in a collective that a peer is gone, by gloo's or NCCL's words."""
    return _PEER_IN_COLLECTIVE.search(reason) is not None


def is_abort(reason: str) -> bool:
    """Whether a process has aborted, as NCCL's watchdog does where a peer is gone."""
    return "SIGABRT" in reason


def _of_loss(lost: Lost, reason: str) -> Cause:
    if _OWN_SIGNAL.search(reason):
        return "error"
    if not lost.is_of_node:
        return "worker died"
    return "host silent" if lost.is_silent else "host lost"


def _of_words(reason: str) -> Cause:
    if reason.startswith(_REFUSED):
        return "refused"
    if reason.startswith(_STORE):
        return "store"
    is_lost = reason in (LOST_CONTROLLER, LOST_AT_START) or is_echo(reason)
    return "worker died" if is_lost else "error"
