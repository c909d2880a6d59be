"""Measures all-reduce between the nodes of a cluster, and between the devices of each node."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from typing import Any

import ray

from cluster.probe.link_seat import LinkSeat
from cluster.probe.node_facts import LinkRate, NodeFacts
from cluster.run_key import new_key
from jobs.doctor.examination import Link, NodeAnswer
from jobs.doctor.node_sessions import NodeSession, answer_to, renew, start_node_actor
from jobs.doctor.pairing import rounds, shares_of_slow_links
from jobs.doctor.this_machine import num_ranks

_LINK_DEADLINE_S = 60.0
# Nodes that meet do so at once. A new node actor loads its libraries first.
_PAIR_DEADLINE_S = 30.0
# Of nodes that don't meet, each round takes its whole deadline; the pairs that are left are not tried.
_ALL_PAIRS_S = 180.0

_OnDevice = tuple[NodeSession, int | None]


def links_of(visits: Sequence[NodeSession], answers: Sequence[NodeAnswer]) -> Iterator[Link]:
    """Measures one link after another, since parallel tests would share the links."""
    facts = {answer.asked.node_id: answer.facts for answer in answers}
    for _, members in groupby(visits, key=lambda visit: visit.asked.group):
        there = [visit for visit in members if isinstance(facts[visit.asked.node_id], NodeFacts)]
        for visit in there:
            yield from _within(visit, facts[visit.asked.node_id])
        if len(there) > 1:
            devices = _first_devices([facts[visit.asked.node_id] for visit in there])
            if any(device is not None for device in devices):
                # Ranks on devices need gloo as well, between other interfaces perhaps. It comes first: a rank
                # that is stuck in NCCL answers nothing more.
                on_cpus: list[int | None] = [None] * len(there)
                yield _across(there, on_cpus)
                yield from _in_pairs(there, on_cpus)
            yield _across(there, devices)
            yield from _in_pairs(there, devices)


def _within(visit: NodeSession, facts: NodeFacts | str) -> Iterator[Link]:
    assert isinstance(facts, NodeFacts)
    on_cpu = facts.platform == "cpu"
    count = num_ranks(on_cpu, visit.asked.promised_devices if on_cpu else facts.num_devices)
    if count < 2:
        return
    others = [start_node_actor(visit.asked.node_id) for _ in range(count - 1)]
    try:
        devices = [None if on_cpu else rank for rank in range(count)]
        rate = _all_reduce([visit.node_actor, *others], devices, is_of_one_node=True)
    finally:
        for node_actor in others:
            ray.kill(node_actor)
    if isinstance(rate, str):
        _renew([visit])
    yield Link(group=visit.asked.group, node=visit.asked.name, rate=rate)


def _first_devices(told: Sequence[NodeFacts | str]) -> list[int | None]:
    """One device of each node, so that all traffic crosses nodes; None on CPUs."""
    return [None if isinstance(one, NodeFacts) and one.platform == "cpu" else 0 for one in told]


def _across(visits: Sequence[NodeSession], devices: Sequence[int | None]) -> Link:
    rate = _all_reduce([visit.node_actor for visit in visits], devices, is_of_one_node=False)
    if isinstance(rate, str):
        rate = f"{_backend(devices)}: {rate}"
        _renew(visits)
    return Link(group=visits[0].asked.group, node=None, rate=rate)


def _in_pairs(visits: Sequence[NodeSession], devices: Sequence[int | None]) -> Iterator[Link]:
    """Measures each pair of nodes. Pairs of one round share no node, so they are tried at once.

    What is slow is measured once more by itself, and the better figure counts: others at once, or what came
    first, may have been the reason.
    """
    end = time.monotonic() + _ALL_PAIRS_S
    on = list(zip(visits, devices, strict=True))
    found: dict[tuple[int, int], Link] = {}
    for turn in rounds(range(len(on))):
        if time.monotonic() > end:
            break
        with ThreadPoolExecutor(len(turn)) as at_once:
            links = at_once.map(lambda pair: _between(on[pair[0]], on[pair[1]]), turn)
            found.update(zip(turn, links, strict=True))
    rates = {
        pair: link.rate.bus_bytes_per_s for pair, link in found.items() if isinstance(link.rate, LinkRate)
    }
    for one, other in shares_of_slow_links(rates):
        if time.monotonic() > end:
            break
        again = _between(on[one], on[other])
        if isinstance(again.rate, LinkRate) and again.rate.bus_bytes_per_s > rates[one, other]:
            found[one, other] = again
    yield from found.values()


def _between(first: _OnDevice, second: _OnDevice) -> Link:
    (one, own), (other, its) = first, second
    devices, actors = [own, its], [one.node_actor, other.node_actor]
    rate = _all_reduce(actors, devices, is_of_one_node=False, deadline_s=_PAIR_DEADLINE_S)
    if isinstance(rate, str):
        _renew([one, other])
    return Link(
        group=one.asked.group,
        node=one.asked.name,
        peer=other.asked.name,
        backend=_backend(devices),
        rate=rate,
    )


def _renew(visits: Sequence[NodeSession]) -> None:
    """What failed between some nodes must not look like a failure of the next ones."""
    for visit in visits:
        renew(visit)


def _backend(devices: Sequence[int | None]) -> str:
    return "gloo" if devices[0] is None else "nccl"


def _all_reduce(
    node_actors: Sequence[Any],
    devices: Sequence[int | None],
    *,
    is_of_one_node: bool,
    deadline_s: float = _LINK_DEADLINE_S,
) -> Any:
    end = time.monotonic() + deadline_s
    meeting = answer_to(node_actors[0].meeting.remote(is_of_one_node), end, str)
    if not meeting.startswith(("tcp://", "file://")):
        return meeting
    seat = LinkSeat(
        rank=0,
        num_ranks=len(node_actors),
        meeting=meeting,
        device=None,
        deadline_s=deadline_s * 0.8,
        key=new_key().hex(),
    )
    refs = [
        node_actor.all_reduce.remote(replace(seat, rank=rank, device=device))
        for rank, (node_actor, device) in enumerate(zip(node_actors, devices, strict=True))
    ]
    found = [answer_to(ref, end, object) for ref in refs]
    return next((one for one in found if isinstance(one, str)), found[0])
