"""This machine alone, asked in this process: nothing of Ray is started."""

from cluster.facts import Question
from cluster.inventory import Inventory
from jobs.doctor.examination import Answer, Asked, Link, Skew

_MOST_RANKS = 8
_LINK_DEADLINE_S = 20.0


def ask_this_machine(inventory: Inventory, question: Question) -> tuple[tuple[Answer, ...], tuple[Link, ...]]:
    from cluster.probe.node import probe_node

    (group,) = inventory.groups
    (node,) = group.nodes
    asked = Asked(
        node_id=node.node_id,
        name=node.short_name,
        group=group.name,
        vendor=group.vendor,
        promised_devices=node.num_devices,
    )
    facts = probe_node(question)
    answer = Answer(asked=asked, facts=facts, skew=Skew(offset_s=0.0, uncertainty_s=0.0))
    return (answer,), _links(asked, facts.num_devices, on_cpu=facts.platform == "cpu")


def num_ranks(on_cpu: bool, num_devices: int) -> int:
    """Two processes tell of a CPU's memory all that more would."""
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
