"""Simulates a mixed cluster on one machine: one Ray node per promised node, with CPU processes as devices.

The head has no devices, so drivers have a node that no test or user takes away. Each node that the file
promises gets a Ray node with its labels. All nodes listen on loopback alone, require a token of their own,
and end with the block, like a private Ray.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster.inventory import (
    DEVICE_LABEL,
    GROUP_LABEL,
    SIMULATED_LABEL,
    VENDOR_LABEL,
    ClusterError,
    Inventory,
    WorkerGroup,
)
from cluster.local_ray.marked_directory import check_closed, environment_of, marked_directory
from cluster.local_ray.private_ray import OBJECT_STORE_BYTES, random_token
from cluster.local_ray.timeouts import ON_ONE_MACHINE, where_unset
from cluster.local_ray.variables import variables
from cluster.nodes import query_cluster
from cluster.ray_internals import address_kept_in, on_loopback, ray_on_loopback
from cluster.this_machine import this_machine

START_TIMEOUT_S = 120.0
_POLL_INTERVAL_S = 0.1
_LOOPBACK = "127.0.0.1"
_RAY = f"from {ray_on_loopback.__module__} import {ray_on_loopback.__name__} as ray; ray()"
# The rest of the memory is for the driver, the command and the page cache.
_SHARE_OF_MEMORY = 0.7
_LOG_CHARS = 600


class NotStarted(Exception):
    """A node did not start; the message holds the last output of Ray."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNode:
    """One Ray node to start. ``name`` is unique in its cluster and stays the same when the node returns."""

    name: str
    labels: Mapping[str, str]
    num_cpus: int
    num_gpus: int


def nodes_to_start(inventory: Inventory) -> list[LocalNode]:
    """Returns one node per promised node.

    Raises ``ClusterError`` for a group that stands for real accelerators: its results would claim what was
    never measured.
    """
    return [node for group in inventory.groups for node in _nodes_of(group, inventory.source)]


def _nodes_of(group: WorkerGroup, source: str) -> Iterator[LocalNode]:
    if group.vendor != "cpu" and not group.simulated:
        raise ClusterError(
            f"{source}: group {group.name!r} stands for real {group.vendor} devices; on one machine they are "
            f'simulated: give its labels {SIMULATED_LABEL}: "true"'
        )
    for node in group.nodes:
        num_gpus = 0 if group.vendor == "cpu" else node.num_devices
        yield LocalNode(name=node.node_id, labels=_labels(group), num_cpus=node.num_cpus, num_gpus=num_gpus)


def _labels(group: WorkerGroup) -> dict[str, str]:
    labels = {GROUP_LABEL: group.name, VENDOR_LABEL: group.vendor}
    if group.device:
        labels[DEVICE_LABEL] = group.device
    if group.simulated:
        labels[SIMULATED_LABEL] = "true"
    return labels


@contextmanager
def mixed_cluster(inventory: Inventory) -> Iterator["MixedCluster"]:
    """Starts the cluster; all its nodes are up inside the block.

    Raises ``ClusterError`` for a group that cannot be simulated, and ``NotStarted``. Afterwards, also after
    an exception, no process and no directory of the cluster is left: neither nodes nor processes started
    with its ``environment``. After ``kill -9`` of this process that takes up to 15 s.
    """
    nodes = nodes_to_start(inventory)
    settings = where_unset(ON_ONE_MACHINE, os.environ)
    with (
        marked_directory() as root,
        random_token(),
        variables(environment_of(root) | settings),
        on_loopback(),
    ):
        cluster = MixedCluster(root, num_nodes=len(nodes))
        cluster.start(nodes)
        yield cluster


class MixedCluster:
    """A running simulated cluster. Use it inside ``mixed_cluster``, which sets the variables that
    it needs.
    """

    def __init__(self, root: str, *, num_nodes: int) -> None:
        self.root = Path(root)
        self._memory_bytes = _memory_of_each(num_nodes)
        self.address = self._start_head()

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make a program a driver of the cluster if it inherits this process's environment."""
        return {"RAY_ADDRESS": self.address}

    def start(self, nodes: Sequence[LocalNode]) -> None:
        """Starts the nodes together and returns once they are registered. A lost node comes back under its
        name.
        """
        starting = [(node.name, self._start_node(node)) for node in nodes]
        deadline = time.monotonic() + START_TIMEOUT_S
        for name, process in starting:
            self._wait_for(name, process, deadline)
        self._wait_until_registered({node.name for node in nodes}, deadline)
        check_closed(str(self.root))

    def _start_head(self) -> str:
        process = self._ray_start(
            "head",
            "--head",
            "--port=0",
            "--num-cpus=0",
            "--num-gpus=0",
            "--include-dashboard=false",
            # Ray's default is one fixed port for the whole machine, and Ray refuses 0.
            f"--ray-client-server-port={_free_port()}",
            # Idle workers cannot become Train workers, whose environment differs; they only cost a core.
            '--system-config={"prestart_worker_first_driver": false}',
        )
        self._wait_for("head", process, time.monotonic() + START_TIMEOUT_S)
        return address_kept_in(self.root / "head")

    def _start_node(self, node: LocalNode) -> "subprocess.Popen[bytes]":
        return self._ray_start(
            node.name,
            f"--address={self.address}",
            f"--num-cpus={node.num_cpus}",
            f"--num-gpus={node.num_gpus}",
            f"--memory={self._memory_bytes}",
            f"--labels={','.join(f'{key}={value}' for key, value in node.labels.items())}",
            # The head's log monitor is enough for one machine.
            "--include-log-monitor=false",
        )

    def _ray_start(self, name: str, *flags: str) -> "subprocess.Popen[bytes]":
        """Returns before the node is up. Each node has a folder of its own, which it gets again when it
        returns.
        """
        common = [
            f"--node-name={name}",
            f"--temp-dir={self.root / name}",
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            "--dashboard-agent-listen-port=0",
            "--disable-usage-stats",
        ]
        with self._log(name).open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-c", _RAY, "start", *flags, *common],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is meant for the command alone; its cluster must outlive it.
                start_new_session=True,
                cwd=self.root,
            )

    def _wait_for(self, name: str, process: "subprocess.Popen[bytes]", deadline: float) -> None:
        try:
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise NotStarted(
                f"{name} did not start within {START_TIMEOUT_S:.0f} s{self._log_end(name)}"
            ) from None
        if code != 0:
            raise NotStarted(f"{name} did not start{self._log_end(name)}")

    def _wait_until_registered(self, names: set[str], deadline: float) -> None:
        while missing := names - {
            node.name for node in query_cluster(self.address).nodes if node.state == "alive"
        }:
            if time.monotonic() > deadline:
                raise NotStarted(f"{', '.join(sorted(missing))} did not join within {START_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_INTERVAL_S)

    def _log(self, name: str) -> Path:
        return self.root / f"{name}.log"

    def _log_end(self, name: str) -> str:
        output = " ".join(self._log(name).read_text(encoding="utf-8", errors="replace").split())
        return f": {output[-_LOG_CHARS:]}" if output else ""


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((_LOOPBACK, 0))
        return int(listener.getsockname()[1])


def _memory_of_each(num_nodes: int) -> int:
    """Returns each node's share. By default every node would claim the whole machine's memory, and plans
    would count that memory several times.
    """
    (group,) = this_machine().groups
    total = group.nodes[0].memory_bytes or 0
    return int(total * _SHARE_OF_MEMORY / max(1, num_nodes)) - OBJECT_STORE_BYTES
