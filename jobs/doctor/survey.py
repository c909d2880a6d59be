"""Asks all nodes of the cluster at ``RAY_ADDRESS`` in parallel, each with a deadline.

Nodes that share a machine are asked one after another, because parallel tests would disturb each other. A
node that does not answer, or leaves meanwhile, gets a recorded reason instead of facts.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby, zip_longest

from ray.exceptions import RayError

from checkpointing.stores.contract import Store, StoreError
from checkpointing.stores.probing import marker
from cluster.inventory import ClusterError, Inventory, WorkerGroup
from cluster.live import live_inventory
from cluster.probe.node_facts import NodeFacts, Question
from jobs.doctor.examination import Link, NodeAnswer, Skew, Unusable
from jobs.doctor.link_tests import links_of
from jobs.doctor.node_sessions import NodeSession, answer_to, connect, visits_of, words
from jobs.doctor.this_machine import FACTS_DEADLINE_S

QuestionOf = Callable[[WorkerGroup], Question]
SurveyAnswers = tuple[Inventory, tuple[NodeAnswer, ...], tuple[Link, ...]]

_QUICK_DEADLINE_S = 15.0
_NUM_CLOCKS = 5


def ask_cluster(question_of: QuestionOf, store: Store | None) -> SurveyAnswers:
    """Returns the answers of all nodes with devices, or raises ``Unusable``.

    With ``store`` None no node is asked whether it sees the store.
    """
    with ExitStack() as stack:
        connect(stack)
        try:
            inventory = live_inventory()
            visits = visits_of(inventory)
            answers = _answers(visits, question_of, store)
            return inventory, answers, tuple(links_of(visits, answers))
        except (ClusterError, RayError) as error:
            raise Unusable(words(error)) from error


def _answers(
    visits: Sequence[NodeSession], question_of: QuestionOf, store: Store | None
) -> tuple[NodeAnswer, ...]:
    facts: dict[str, NodeFacts | str] = {}
    for turn in _turns(visits):
        asked = [(visit, visit.node_actor.facts.remote(question_of(visit.group))) for visit in turn]
        end = time.monotonic() + FACTS_DEADLINE_S
        facts |= {visit.asked.node_id: answer_to(ref, end, NodeFacts) for visit, ref in asked}
    there = [visit for visit in visits if isinstance(facts[visit.asked.node_id], NodeFacts)]
    seen = _who_sees(store, there) if store and len(there) > 1 else {}
    return tuple(
        NodeAnswer(
            asked=visit.asked,
            facts=facts[visit.asked.node_id],
            skew=_skew(visit) if visit in there else None,
            sees_store=seen.get(visit.asked.node_id),
        )
        for visit in visits
    )


def _turns(visits: Sequence[NodeSession]) -> Iterator[list[NodeSession]]:
    """Yields rounds of nodes, with at most one node per machine in each."""
    ordered = sorted(visits, key=lambda visit: visit.machine)
    machines = [list(members) for _, members in groupby(ordered, key=lambda visit: visit.machine)]
    for turn in zip_longest(*machines):
        yield [visit for visit in turn if visit is not None]


def _who_sees(store: Store, visits: Sequence[NodeSession]) -> dict[str, bool]:
    try:
        with marker(store) as (name, data):
            asked = [(visit, visit.node_actor.reads.remote(store.url, name, data)) for visit in visits]
            end = time.monotonic() + _QUICK_DEADLINE_S
            return {visit.asked.node_id: answer_to(ref, end, bool) is True for visit, ref in asked}
    except StoreError:
        return {}


def _skew(visit: NodeSession) -> Skew | None:
    """The clock offset by the fastest of several round trips.

    The node's clock was read at some moment within the round trip, so half its duration bounds the error.
    """
    found = [skew for _ in range(_NUM_CLOCKS) if (skew := _skew_once(visit)) is not None]
    return min(found, key=lambda skew: skew.uncertainty_s, default=None)


def _skew_once(visit: NodeSession) -> Skew | None:
    sent_s, start = time.time(), time.perf_counter()
    there_s = answer_to(visit.node_actor.clock.remote(), time.monotonic() + _QUICK_DEADLINE_S, float)
    half_s = (time.perf_counter() - start) / 2
    if not isinstance(there_s, float):
        return None
    return Skew(offset_s=there_s - (sent_s + half_s), uncertainty_s=half_s)
