"""Decides what follows a failed attempt: retry (when, without which nodes), roll back, or give up. Pure.

Failures are counted since the run last made progress, that is, since an attempt left a newer durable
generation than any before it. A run that makes progress is never given up, however often it fails. A run that
makes none is given up after a bounded number of attempts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile, pairwise, product, takewhile
from math import inf

from cluster.probe.broken_ways import ends_to_leave
from jobs.execution.causes import Cause
from jobs.training.health.device_errors import trouble_of
from reporting.results.node_scores import NodeOutcome, Suspicion, scores, suspicious_nodes

# Failures of these causes count together by kind; any other cause counts for itself.
_KINDS: Mapping[Cause, str] = {
    "worker died": "lost workers",
    "host lost": "lost workers",
    "host silent": "lost workers",
    "driver died": "lost workers",
    "device failed": "lost workers",
    "hang": "hangs",
    "partition": "hangs",
    "error": "errors",
    "out of memory": "errors",
}
_OUTAGES: Mapping[Cause, str] = {
    "store": "the store was away",
    "no room": "there was no room",
    "cluster away": "the cluster was away",
}
# A node is suspicious once it failed so many attempts in a row among those it took part in. One may be
# chance.
_SUSPICION = Suspicion(runs=2, cells=1)
_HELD_AGAINST_A_NODE: Mapping[Cause, str] = {
    "worker died": "crash",
    "device failed": "crash",
    "error": "crash",
    "host lost": "lost",
    "host silent": "lost",
    "hang": "hang",
}
# Two nodes, by their names.
Pair = frozenset[str]
# Older failures do not count: over weeks any host reboots twice.
_HELD_AGAINST_IT_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    """How one attempt failed: at ``step``, when the newest durable generation was of ``durable_step``.

    ``nodes`` are those of the ranks that the failure is about, ``all_nodes`` those of all ranks. Both are
    empty if nobody knows, and so is ``group``. ``is_full``: the group has no room, not even for the run's
    smallest size.
    """

    term: int
    cause: Cause
    reason: str
    ended_s: float
    step: int = 0
    durable_step: int = 0
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    all_nodes: tuple[str, ...] = ()
    group: str = ""
    is_full: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How many failures in a row without a newer generation are accepted, by kind; pauses double.

    ``max_attempts`` bounds all kinds together, except preemptions. ``patience_s`` is how long to wait for a
    store that is away, or for a group without room. The ``metadata`` of a field bound what a spec may say.
    """

    max_attempts: int | None = field(default=None, metadata={"ge": 1})
    losses: int = field(default=10, metadata={"ge": 1})
    hangs: int = field(default=3, metadata={"ge": 1})
    errors: int = field(default=3, metadata={"ge": 1})
    step_backs: int = field(default=3, metadata={"ge": 0})
    patience_s: float = field(default=6 * 3600.0, metadata={"gt": 0})
    pause_s: float = field(default=1.0, metadata={"ge": 0})
    most_pause_s: float = field(default=600.0, metadata={"gt": 0})


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Start the next attempt after ``after_s`` seconds. Nothing is to run on the nodes ``without``. Of a run
    with several groups it starts in ``group``.
    """

    after_s: float
    without: tuple[str, ...] = ()
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBack:
    """Resume from the newest generation that is not spoilt, without the samples that made the loss go wrong.

    If that did not help before, resume from ``num_generations`` earlier, among those that earlier rollbacks
    left.
    """

    after_s: float
    num_generations: int
    without: tuple[str, ...] = ()
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """End the run: ``reason`` says why going on makes no sense. The last failed attempt says what went
    wrong.
    """

    reason: str


Move = Retry | RollBack | GiveUp


def next_move(
    history: Sequence[FailedAttempt],
    policy: Policy,
    mended: Mapping[Pair, float] | None = None,
    groups: Sequence[str] = (),
) -> Move:
    """What to do after the last attempt of ``history``, which has the failed attempts of one run in order.

    ``mended`` is that of ``left_out``, and ``groups`` are those in which the run may go on.
    """
    last, recent = history[-1], since_progress(history)
    if reason := _hopeless(last, recent, policy) or _hopeless_everywhere(history, policy, groups):
        return GiveUp(reason=reason)
    group = next_group(history, policy, groups)
    here = recent if last.cause in _OUTAGES else _in_group(last.group, recent, groups)
    after_s = _pause(last.cause, _num_alike(last, here), policy)
    if len(groups) > 1 and group != last.group and not _was_full(group, history):
        after_s = 0.0
    without = left_out(history, mended)
    if last.cause == "invalid loss":
        num_before = _num_alike(last, recent) - 1
        return RollBack(after_s=after_s, num_generations=num_before, without=without, group=group)
    if last.cause == "corruption":
        return RollBack(after_s=after_s, num_generations=0, without=without, group=group)
    return Retry(after_s=after_s, without=without, group=group)


def next_group(history: Sequence[FailedAttempt], policy: Policy, groups: Sequence[str]) -> str:
    """The one of ``groups`` in which the next attempt runs; empty without any.

    The first one, until an attempt has failed. A run stays in its group until that is full, or until a run
    with no other group would be given up. Then the one after it follows, and the first after the last.
    """
    if len(groups) < 2:
        return "".join(groups)
    last = next((one for one in reversed(history) if one.group in groups), None)
    if last is None:
        return groups[0]
    hopeless = _hopeless_groups(history, policy, groups)
    place = groups.index(last.group)
    others = [*groups[place + 1 :], *groups[:place]]
    in_order = [*others, last.group] if last.is_full else [last.group, *others]
    return next((group for group in in_order if group not in hopeless), last.group)


def since_progress(history: Sequence[FailedAttempt]) -> list[FailedAttempt]:
    """The last failed attempts, from the newest one that left a newer durable generation on."""
    first, newest = 0, None
    for place, one in enumerate(history):
        if newest is not None and one.durable_step > newest:
            first = place
        newest = max(newest or 0, one.durable_step)
    return list(history[first:])


def left_out(history: Sequence[FailedAttempt], mended: Mapping[Pair, float] | None = None) -> tuple[str, ...]:
    """The nodes to leave out: they failed the last attempts that they took part in, several in a row, within
    a day. One that computed wrongly is left out from the first time on. Of two that do not reach each other,
    one is, until an attempt of both got on, or until they reached each other, as ``mended`` says: when which
    did.
    """
    recent = _within_a_day(history)
    suspicious = suspicious_nodes(scores(_outcomes(recent), _SUSPICION))
    corrupt = [node for one in recent if one.cause == "corruption" and _is_blamed(one) for node in one.nodes]
    return tuple(dict.fromkeys((*corrupt, *_parted(recent, mended or {}), *suspicious)))


def parted_pairs(
    history: Sequence[FailedAttempt], mended: Mapping[Pair, float]
) -> Mapping[Pair, Sequence[float]]:
    """The nodes that do not reach each other, as far as is known, and when attempts failed for that."""
    found: dict[Pair, list[float]] = {}
    for way, times in _parted_ways(_within_a_day(history), mended).items():
        found.setdefault(frozenset(way), []).extend(times)
    return found


def _within_a_day(history: Sequence[FailedAttempt]) -> list[FailedAttempt]:
    now_s = max((one.ended_s for one in history), default=0.0)
    return [one for one in history if now_s - one.ended_s <= _HELD_AGAINST_IT_S]


def _parted(history: Sequence[FailedAttempt], mended: Mapping[Pair, float]) -> Iterable[str]:
    """The nodes without which no two are together that do not reach each other. A node that is parted from
    one after another is left out instead of those.
    """
    nodes = [*dict.fromkeys(node for one in history for node in (*one.all_nodes, *one.nodes))]
    numbers = {node: number for number, node in enumerate(nodes)}
    ways = _parted_ways(history, mended)
    return [nodes[number] for number in ends_to_leave((numbers[a], numbers[b]) for a, b in ways)]


def _parted_ways(
    history: Sequence[FailedAttempt], mended: Mapping[Pair, float]
) -> dict[tuple[str, str], list[float]]:
    """From each node that was held responsible to each other one of its attempt, and when that was."""
    ways: dict[tuple[str, str], list[float]] = {}
    newest = 0
    for one in history:
        there = {*one.all_nodes}
        if one.durable_step > newest:
            newest = one.durable_step
            ways = {way: times for way, times in ways.items() if not there.issuperset(way)}
        if one.cause == "partition" and _is_blamed(one):
            for way in product(one.nodes, sorted(there.difference(one.nodes))):
                ways.setdefault(way, []).append(one.ended_s)
    return {way: times for way, times in ways.items() if mended.get(frozenset(way), -inf) < times[-1]}


def _outcomes(history: Iterable[FailedAttempt]) -> Iterable[NodeOutcome]:
    newest = 0
    for one in history:
        has_got_on, newest = one.durable_step > newest, max(newest, one.durable_step)
        for node in dict.fromkeys((*one.nodes, *one.all_nodes)):
            if node in one.nodes and _is_blamed(one) and one.cause in _HELD_AGAINST_A_NODE:
                status = _HELD_AGAINST_A_NODE[one.cause]
            elif has_got_on:
                status = "ok"
            else:
                continue
            yield NodeOutcome(node=node, run=str(one.term), cell="", status=status)


def _is_blamed(one: FailedAttempt) -> bool:
    """Whether a failure is held against its nodes: not if they are all of several. Of those that hang, or do
    not reach each other, at most half: where most are behind, nobody knows who holds them up.
    """
    num_all = len(one.all_nodes)
    most = num_all // 2 if one.cause in ("hang", "partition") else num_all - 1
    return len(one.nodes) <= max(1, most)


def _was_full(group: str, history: Sequence[FailedAttempt]) -> bool:
    """Whether ``group`` is one of those that were full one after another just now."""
    return any(one.group == group for one in takewhile(lambda one: one.is_full, reversed(history)))


def _hopeless(last: FailedAttempt, recent: list[FailedAttempt], policy: Policy) -> str | None:
    """Why to give up, whatever other groups there are."""
    if last.cause == "refused":
        return "it can't succeed like this"
    if last.cause != "preempted" and policy.max_attempts is not None:
        num_failed = sum(one.cause != "preempted" for one in recent)
        if num_failed >= policy.max_attempts:
            return f"{_attempts(num_failed)} without a newer checkpoint"
    return _too_long(last, recent, policy) if last.cause in _OUTAGES else None


def _hopeless_everywhere(
    history: Sequence[FailedAttempt], policy: Policy, groups: Sequence[str]
) -> str | None:
    """Why there is no group to go on in."""
    names = groups if len(groups) > 1 else ("",)
    reasons = _hopeless_groups(history, policy, names)
    return None if len(reasons) < len(names) else reasons.get(history[-1].group, next(iter(reasons.values())))


def _hopeless_groups(
    history: Sequence[FailedAttempt], policy: Policy, groups: Sequence[str]
) -> Mapping[str, str]:
    """The groups in which no attempt is to follow before there was progress, if ever, and why."""
    reasons = {}
    for group in groups:
        own = _in_group(group, history, groups)
        recent = _in_group(group, since_progress(history), groups)
        # A group that computes otherwise does so after progress in another one too.
        counted = [one for one in own if one.cause == "hand-over" and one.group == group] or recent
        if counted and (reason := _hopeless_here(counted[-1], own, recent, policy)):
            reasons[group] = reason
    return reasons


def _in_group(group: str, history: Sequence[FailedAttempt], groups: Sequence[str]) -> Sequence[FailedAttempt]:
    """Those that count for one of ``groups``. For a single group all do, and a failure of which nobody knows
    the group counts for each.
    """
    return [one for one in history if one.group in ("", group)] if len(groups) > 1 else history


def _hopeless_here(
    last: FailedAttempt, history: Sequence[FailedAttempt], recent: Sequence[FailedAttempt], policy: Policy
) -> str | None:
    if last.cause == "hand-over":
        return "it computes other losses than the group that saved the checkpoint"
    same = [one for one in history[:-1] if _is_same(one, last)]
    if same and not (len(same) == 1 and _is_of_a_node(same[0], last)):
        what = "out of memory" if last.cause == "out of memory" else "the same error"
        how_often = "twice" if len(same) == 1 else f"{len(same) + 1} times"
        return f"{what} at step {last.step} {how_often}"
    match last.cause:
        case "store" | "no room" | "cluster away" | "preempted" | "refused":
            return None
        case "invalid loss" | "corruption":
            is_over = _num_alike(last, recent) > policy.step_backs
            return f"stepped back {policy.step_backs} times before" if is_over else None
        case _:
            return _too_often(last, recent, policy)


def _too_long(last: FailedAttempt, recent: list[FailedAttempt], policy: Policy) -> str | None:
    """Why to give up during an outage. An outage ends by itself, so time bounds it and not a number of
    attempts.
    """
    waited_s = _waited_s(last.cause, recent, policy)
    return f"{_OUTAGES[last.cause]} for {_span(waited_s)}" if waited_s > policy.patience_s else None


def _waited_s(cause: Cause, recent: list[FailedAttempt], policy: Policy) -> float:
    """Seconds since the first failure of this cause.

    The time between two failures counts for half of the patience at most. A longer gap means that no attempt
    was made, or that the clock was set.
    """
    times = [one.ended_s for one in dropwhile(lambda one: one.cause != cause, recent)]
    return sum(min(max(0.0, after - before), policy.patience_s / 2) for before, after in pairwise(times))


def _too_often(last: FailedAttempt, recent: Sequence[FailedAttempt], policy: Policy) -> str | None:
    kind = _KINDS[last.cause]
    most = {"lost workers": policy.losses, "hangs": policy.hangs, "errors": policy.errors}[kind]
    count = _num_alike(last, recent)
    return f"{count} {kind} without a newer checkpoint" if count >= most else None


def _num_alike(last: FailedAttempt, recent: Sequence[FailedAttempt]) -> int:
    kind = _KINDS.get(last.cause, last.cause)
    return sum(_KINDS.get(one.cause, one.cause) == kind for one in recent)


def _pause(cause: Cause, count: int, policy: Policy) -> float:
    """Seconds to wait. ``count`` says which failure of its kind in a row it was."""
    match cause:
        case "preempted" | "invalid loss" | "corruption" | "hand-over":
            return 0.0
        case "store" | "no room" | "cluster away":
            first_s = 10 * policy.pause_s
        case "error" | "out of memory":
            first_s = 5 * policy.pause_s
        case _ if count == 1:
            # No bug of the program, and the run has made progress since the last such failure.
            return 0.0
        case _:
            first_s = policy.pause_s / 2
    return min(first_s * 2.0 ** min(count - 1, 20), policy.most_pause_s)


def _is_same(one: FailedAttempt, other: FailedAttempt) -> bool:
    if one.cause != other.cause or one.step != other.step:
        return False
    if one.cause == "device failed":
        return _is_of_the_program(one, other)
    return one.cause == "out of memory" or (
        one.cause == "error" and _essence(one.reason) == _essence(other.reason)
    )


def _is_of_the_program(one: FailedAttempt, other: FailedAttempt) -> bool:
    """Whether devices of different nodes failed at one step alike, which only a faulty kernel explains."""
    is_doubtful = trouble_of(other.reason) == "doubtful"
    return is_doubtful and bool(one.nodes and other.nodes) and set(one.nodes).isdisjoint(other.nodes)


def _is_of_a_node(one: FailedAttempt, other: FailedAttempt) -> bool:
    """Whether a node and not the program may cause the error: an attempt without that node tells."""
    are_few = all(len(ending.nodes) < len(ending.all_nodes) for ending in (one, other))
    return are_few and other.cause == "error" and not set(one.nodes).isdisjoint(other.nodes)


def _essence(reason: str) -> str:
    """The reason without memory addresses and without the ranks that happened to report it."""
    return re.sub(r"0x[0-9a-f]+|^ranks? [0-9, ]+: ", "", reason)


def _span(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds:.0f} s"


def _attempts(count: int) -> str:
    return f"{count} attempt" if count == 1 else f"{count} attempts"
