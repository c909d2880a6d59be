"""Binds this process to the NUMA node of its device: its threads, and where its memory is taken from.

A rank that runs on the other socket copies each batch and each save across the link between sockets. Needs no
torch. ``near`` is pure over a tree of ``/sys``.
"""

import ctypes
import os
import platform
from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cluster.fingerprint.files import text_of
from cluster.fingerprint.machine import cores_in

# ``off`` leaves a rank where the kernel puts it. A spec's ``environment`` can say so.
SWITCH = "LONGHAUL_NUMA"
# Of set_mempolicy, for which the C library has no function. PREFERRED takes another node's memory when this
# one's is full, where BIND would end the process.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_PREFERRED = 1
# What was bound, for the row of this process's measurements.
_bound: list[str] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """``cores`` are those that this process may use."""

    number: int
    cores: frozenset[int]


def near(pci: str | None, allowed: Set[int], root: Path = Path("/")) -> NumaNode | None:
    """The NUMA node of the device at ``pci`` (``domain:bus:device``).

    None without such an address, on a host that has or tells only one node, and where this process may use
    less than half of the node's share of its cores: it would wait for cores longer than for memory.
    """
    if pci is None:
        return None
    number = text_of(root / f"sys/bus/pci/devices/{pci}.0/numa_node")
    # A host without topology says -1.
    if not number.isdigit():
        return None
    own = allowed & cores_in(text_of(root / f"sys/devices/system/node/node{number}/cpulist"))
    nodes = cores_in(text_of(root / "sys/devices/system/node/online"))
    is_enough = bool(own) and 2 * len(own) * len(nodes) >= len(allowed)
    return NumaNode(number=int(number), cores=frozenset(own)) if is_enough and nodes > {int(number)} else None


def bind(pci: str | None, variables: Mapping[str, str] = os.environ, root: Path = Path("/")) -> None:
    """Binds all threads of this process, and those to come, before it allocates anything for the device.

    Where the kernel refuses, all stays as it was: this only makes a rank faster.
    """
    _bound.clear()
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    node = near(pci, allowed, root)
    if node is None:
        return
    if variables.get(SWITCH) == "off":
        _bound.append(f"off by {SWITCH}")
        return
    try:
        _move(node.cores)
    except OSError as error:
        with suppress(OSError):
            _move(allowed)
        _bound.append(f"refused: {error.strerror}")
        return
    _bound.append(f"threads{' and memory' if _prefer(node) else ''} on node {node.number}")


def _move(cores: Set[int]) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # It has ended since.
            os.sched_setaffinity(int(thread.name), cores)


def bound() -> str:
    """What ``bind`` did, in words; empty if nothing."""
    return "".join(_bound)


def _prefer(node: NumaNode) -> bool:
    """Whether memory comes from ``node`` first from now on. Many containers forbid to say so. Then it still
    comes from where a thread runs that first touches it.
    """
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return False
    word = 8 * ctypes.sizeof(ctypes.c_ulong)
    mask = (ctypes.c_ulong * (node.number // word + 1))()
    mask[node.number // word] = 1 << node.number % word
    # The kernel reads one bit less than it is told.
    told = ctypes.CDLL(None).syscall(number, _PREFERRED, mask, ctypes.c_ulong(len(mask) * word + 1))
    return bool(told == 0)
