"""The actor that runs the doctor's tests on its own node.

Each answer is plain data. Measurements need torch, so torch is imported only in the methods that measure.
"""

import time
from pathlib import Path
from shutil import rmtree

import ray

from checkpointing.stores.contract import StoreError
from checkpointing.stores.opening import open_store
from cluster.probe.link_seat import LinkSeat
from cluster.probe.meeting import folder_of, is_of_one_machine, meet_at, meet_in
from cluster.probe.node_facts import LinkRate, NodeFacts, Question


class NodeActor:
    def clock(self) -> float:
        return time.time()

    def facts(self, question: Question) -> NodeFacts:
        from cluster.probe.node import probe_node

        return probe_node(question)

    def reads(self, url: str, name: str, expected: bytes) -> bool:
        """Says whether this node reads the ``expected`` bytes at ``name`` in the store ``url``."""
        try:
            return open_store(url).get(name) == expected
        except StoreError:
            return False

    def meeting(self, is_of_one_node: bool) -> str:
        """The address where ranks meet; rank 0 runs in this process."""
        if not is_of_one_node:
            return meet_at(ray.util.get_node_ip_address())
        place = ray.get_runtime_context()
        return meet_in(Path(place.get_temp_dir()) / place.get_session_name())

    def all_reduce(self, seat: LinkSeat) -> LinkRate:
        from cluster.probe.links import all_reduce

        try:
            return all_reduce(seat)
        finally:
            if seat.rank == 0 and is_of_one_machine(seat.meeting):
                rmtree(folder_of(seat.meeting), ignore_errors=True)
