"""Asks this machine alone, in this process, without Ray."""

import threading

from cluster.inventory import Inventory
from cluster.probe.node_facts import NodeFacts, Question
from jobs.doctor.examination import Asked, Link, NodeAnswer, Skew

# Enough to start a worker process, load torch and time some dozens of products on each of eight devices.
FACTS_DEADLINE_S = 90.0
_MOST_RANKS = 8
_LINK_DEADLINE_S = 20.0


def ask_this_machine(
    inventory: Inventory, question: Question
) -> tuple[tuple[NodeAnswer, ...], tuple[Link, ...]]:
    (group,) = inventory.groups
    (node,) = group.nodes
    asked = Asked(
        node_id=node.node_id,
        name=node.short_name,
        group=group.name,
        vendor=group.vendor,
        promised_devices=node.num_devices,
    )
    facts = _facts(question)
    answer = NodeAnswer(asked=asked, facts=facts, skew=Skew(offset_s=0.0, uncertainty_s=0.0))
    if isinstance(facts, str):
        return (answer,), ()
    return (answer,), _links(asked, facts.num_devices, on_cpu=facts.platform == "cpu")


def _facts(question: Question) -> NodeFacts | str:
    """The facts of this machine, or the reason in words why there are none.

    A driver that hangs and a torch that can't be imported are reported as reasons.
    """
    box: list[NodeFacts | str] = []

    def probe() -> None:
        try:
            from cluster.probe.node import probe_node

            box.append(probe_node(question))
        except Exception as error:
            box.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=probe, name="probe", daemon=True)
    thread.start()
    thread.join(FACTS_DEADLINE_S)
    return box[0] if box else f"no answer within {FACTS_DEADLINE_S:.0f} s"


def num_ranks(on_cpu: bool, num_devices: int) -> int:
    """Two processes are enough on a CPU: more show nothing new about its memory."""
    return min(num_devices, 2 if on_cpu else _MOST_RANKS)


def _links(asked: Asked, num_devices: int, *, on_cpu: bool) -> tuple[Link, ...]:
    count = num_ranks(on_cpu, num_devices)
    if count < 2:
        return ()
    from cluster.probe.links import LinkError, within_machine

    try:
        rate = within_machine(count, on_cpu=on_cpu, deadline_s=_LINK_DEADLINE_S)
    except LinkError as error:
        return (Link(group=asked.group, node=asked.name, rate=str(error)),)
    return (Link(group=asked.group, node=asked.name, rate=rate),)
