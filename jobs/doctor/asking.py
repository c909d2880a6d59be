"""All nodes of the cluster that ``RAY_ADDRESS`` names, asked at the same time, each with a deadline.

Nodes that share a machine are asked one after another, as they would measure each other. A node that does not
answer, or leaves while it is asked, is an answer too.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from checkpointing.probing import marker
from checkpointing.store import Store, StoreError
from cluster.facts import NodeFacts, Question
from cluster.inventory import ClusterError, Inventory, WorkerGroup
from cluster.live import live_inventory
from cluster.local import ray_for_driver
from cluster.probe.seats import Seat
from jobs.doctor.envoy import Envoy
from jobs.doctor.examination import Answer, Asked, Link, Skew, Unusable
from jobs.doctor.local import FACTS_DEADLINE_S, num_ranks

QuestionOf = Callable[[WorkerGroup], Question]
Told = tuple[Inventory, tuple[Answer, ...], tuple[Link, ...]]

_QUICK_DEADLINE_S = 15.0
_LINK_DEADLINE_S = 60.0
_NUM_CLOCKS = 5

# With no claim to a device a worker would be shown none.
_SEES_ALL = {
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES": "1",
    "RAY_EXPERIMENTAL_NOSET_ROCR_VISIBLE_DEVICES": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Visit:
    """A node that is being asked. ``machine`` is the address that it shares with its neighbours."""

    asked: Asked
    group: WorkerGroup
    machine: str
    envoy: Any


def ask_cluster(question_of: QuestionOf, store: Store | None) -> Told:
    """Everything of all nodes with devices, or ``Unusable``. ``store`` None: nobody is asked for it."""
    try:
        with ray_for_driver():
            inventory = live_inventory()
            visits = _visits(inventory)
            try:
                answers = _answers(visits, question_of, store)
                return inventory, answers, tuple(_links(visits, answers))
            finally:
                _end(visits)
    except ClusterError as error:
        raise Unusable(str(error)) from error
    except (ConnectionError, RayError) as error:
        address = os.environ.get("RAY_ADDRESS")
        raise Unusable(
            f"RAY_ADDRESS={address}: the cluster does not answer ({_first_line(error)}); start it, correct "
            "the address, or unset it to look at this machine alone"
        ) from error


def _visits(inventory: Inventory) -> list[_Visit]:
    machines = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    in_use = _in_use()
    return [
        _Visit(
            asked=Asked(
                node_id=node.node_id,
                name=node.short_name,
                group=group.name,
                vendor=group.vendor,
                promised_devices=node.num_devices,
                simulated=group.simulated,
                in_use=in_use.get(node.node_id),
            ),
            group=group,
            machine=machines.get(node.node_id, node.node_id),
            envoy=_envoy(node.node_id),
        )
        for group in inventory.groups
        for node in group.nodes
    ]


def _in_use() -> dict[str, str]:
    """What somebody else has of each node right now, in words; a node that is free is not in it."""
    free = ray._private.state.available_resources_per_node()
    found = {}
    for node in (node for node in ray.nodes() if node["Alive"]):
        left = free.get(node["NodeID"], {})
        taken = {
            name: total - left.get(name, 0.0)
            for name in ("CPU", "GPU")
            if (total := node["Resources"].get(name, 0.0))
        }
        if words := [f"{count:g} {name}" for name, count in taken.items() if count > 0]:
            found[node["NodeID"]] = f"{' and '.join(words)} in use"
    return found


def _envoy(node_id: str) -> Any:
    """An actor on that node. It claims neither device nor core, so it never waits for one."""
    actor = ray.remote(num_cpus=0, max_restarts=0)(Envoy)
    there = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    return actor.options(scheduling_strategy=there, runtime_env={"env_vars": _SEES_ALL}).remote()


def _answers(visits: Sequence[_Visit], question_of: QuestionOf, store: Store | None) -> tuple[Answer, ...]:
    facts: dict[str, NodeFacts | str] = {}
    for turn in _turns(visits):
        asked = [(visit, visit.envoy.facts.remote(question_of(visit.group))) for visit in turn]
        end = time.monotonic() + FACTS_DEADLINE_S
        facts |= {visit.asked.node_id: _answer_to(ref, end, NodeFacts) for visit, ref in asked}
    there = [visit for visit in visits if isinstance(facts[visit.asked.node_id], NodeFacts)]
    seen = _who_sees(store, there) if store and len(there) > 1 else {}
    return tuple(
        Answer(
            asked=visit.asked,
            facts=facts[visit.asked.node_id],
            skew=_skew(visit) if visit in there else None,
            sees_store=seen.get(visit.asked.node_id),
        )
        for visit in visits
    )


def _turns(visits: Sequence[_Visit]) -> Iterator[list[_Visit]]:
    """Each with at most one node of a machine."""
    ordered = sorted(visits, key=lambda visit: visit.machine)
    machines = [list(members) for _, members in groupby(ordered, key=lambda visit: visit.machine)]
    for turn in zip_longest(*machines):
        yield [visit for visit in turn if visit is not None]


def _answer_to(ref: Any, end: float, kind: type) -> Any:
    """The answer, or in words why there is none."""
    try:
        found = ray.get(ref, timeout=max(0.0, end - time.monotonic()))
    except GetTimeoutError:
        return "no answer in time"
    except RayError as error:
        return _first_line(error)
    return found if isinstance(found, kind) else f"answered {found!r:.60}"


def _first_line(error: BaseException) -> str:
    """Of the cause, where a task's own exception is wrapped in Ray's."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[0] if lines else ''}"


def _who_sees(store: Store, visits: Sequence[_Visit]) -> dict[str, bool]:
    try:
        with marker(store) as (name, data):
            asked = [(visit, visit.envoy.reads.remote(store.url, name, data)) for visit in visits]
            end = time.monotonic() + _QUICK_DEADLINE_S
            return {visit.asked.node_id: _answer_to(ref, end, bool) is True for visit, ref in asked}
    except StoreError:
        return {}


def _skew(visit: _Visit) -> Skew | None:
    """By the quickest of some round trips: the node's clock was read somewhere within it."""
    found = [skew for _ in range(_NUM_CLOCKS) if (skew := _skew_once(visit)) is not None]
    return min(found, key=lambda skew: skew.uncertainty_s, default=None)


def _skew_once(visit: _Visit) -> Skew | None:
    sent_s, start = time.time(), time.perf_counter()
    there_s = _answer_to(visit.envoy.clock.remote(), time.monotonic() + _QUICK_DEADLINE_S, float)
    half_s = (time.perf_counter() - start) / 2
    if not isinstance(there_s, float):
        return None
    return Skew(offset_s=there_s - (sent_s + half_s), uncertainty_s=half_s)


def _links(visits: Sequence[_Visit], answers: Sequence[Answer]) -> Iterator[Link]:
    """One after another: they would share the links that they measure."""
    facts = {answer.asked.node_id: answer.facts for answer in answers}
    for _, members in groupby(visits, key=lambda visit: visit.asked.group):
        there = [visit for visit in members if isinstance(facts[visit.asked.node_id], NodeFacts)]
        for visit in there:
            yield from _within(visit, facts[visit.asked.node_id])
        if len(there) > 1:
            yield _across(there, facts)


def _within(visit: _Visit, facts: NodeFacts | str) -> Iterator[Link]:
    assert isinstance(facts, NodeFacts)
    on_cpu = facts.platform == "cpu"
    count = num_ranks(on_cpu, visit.asked.promised_devices if on_cpu else facts.num_devices)
    if count < 2:
        return
    others = [_envoy(visit.asked.node_id) for _ in range(count - 1)]
    try:
        devices = [None if on_cpu else rank for rank in range(count)]
        rate = _all_reduce([visit.envoy, *others], devices)
    finally:
        for envoy in others:
            ray.kill(envoy)
    yield Link(group=visit.asked.group, node=visit.asked.name, rate=rate)


def _across(visits: Sequence[_Visit], facts: dict[str, NodeFacts | str]) -> Link:
    """One device of each node, so that all that is sent goes between nodes."""
    told = [facts[visit.asked.node_id] for visit in visits]
    devices = [None if isinstance(one, NodeFacts) and one.platform == "cpu" else 0 for one in told]
    rate = _all_reduce([visit.envoy for visit in visits], devices)
    return Link(group=visits[0].asked.group, node=None, rate=rate)


def _all_reduce(envoys: Sequence[Any], devices: Sequence[int | None]) -> Any:
    end = time.monotonic() + _LINK_DEADLINE_S
    meeting = _answer_to(envoys[0].meeting.remote(), end, str)
    if not meeting.startswith("tcp://"):
        return meeting
    seat = Seat(
        rank=0, num_ranks=len(envoys), meeting=meeting, device=None, deadline_s=_LINK_DEADLINE_S * 0.8
    )
    refs = [
        envoy.all_reduce.remote(replace(seat, rank=rank, device=device))
        for rank, (envoy, device) in enumerate(zip(envoys, devices, strict=True))
    ]
    found = [_answer_to(ref, end, object) for ref in refs]
    return next((one for one in found if isinstance(one, str)), found[0])


def _end(visits: Sequence[_Visit]) -> None:
    for visit in visits:
        ray.kill(visit.envoy)
