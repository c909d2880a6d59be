"""Who asks a node on the node itself, as an actor.

Each answer is plain data. What is measured needs torch, which is imported where it is asked for.
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
        """Whether the store of this url has it here, too."""
        try:
            return open_store(url).get(name) == expected
        except StoreError:
            return False

    def meeting(self, is_of_one_node: bool) -> str:
        """Where ranks may meet, of whom the first is in this process."""
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
