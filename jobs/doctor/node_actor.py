"""Who asks a node on the node itself, as an actor.

Each answer is plain data. What is measured needs torch, which is imported where it is asked for.
"""

import socket
import time

import ray

from checkpointing.stores.contract import StoreError
from checkpointing.stores.opening import open_store
from cluster.probe.link_seat import Seat
from cluster.probe.node_facts import LinkRate, NodeFacts, Question


class Envoy:
    def clock(self) -> float:
        return time.time()

    def facts(self, question: Question) -> NodeFacts:
        from cluster.probe.node import probe_node

        return probe_node(question)

    def reads(self, url: str, name: str, expected: bytes) -> bool:
        """Whether the store of this url has it here, too."""
        try:
            return open_store(url).get(name) == expected
        except StoreError:
            return False

    def meeting(self) -> str:
        """Where ranks may meet: a port of this node that was free a moment ago."""
        host = ray.util.get_node_ip_address()
        with socket.socket() as listener:
            listener.bind((host, 0))
            return f"tcp://{host}:{listener.getsockname()[1]}"

    def all_reduce(self, seat: Seat) -> LinkRate:
        from cluster.probe.links import all_reduce

        return all_reduce(seat)
