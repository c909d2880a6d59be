"""Where a rank sits: the NUMA node of its device, over trees of /sys that look like known machines."""

import errno
import multiprocessing
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from cluster.probe.numa import SWITCH, NumaNode, bind, bound, near

# Constructed, none was recorded: buses, nodes and cores as people's listings of such machines have them.
DGX_H100 = {
    **dict.fromkeys(("1b", "43", "52", "61"), 0),
    **dict.fromkeys(("9d", "c3", "d1", "df"), 1),
}
MI300X = {
    **dict.fromkeys(("0c", "22", "38", "5c"), 0),
    **dict.fromkeys(("9f", "af", "bf", "df"), 1),
}
OF_DGX = ("0-55,112-167", "56-111,168-223")
OF_MI300X = ("0-95,192-287", "96-191,288-383")
ALL = frozenset(range(384))


def tree(root: Path, buses: Mapping[str, int], cpulists: tuple[str, ...]) -> Path:
    for bus, node in buses.items():
        write(root / f"sys/bus/pci/devices/0000:{bus}:00.0/numa_node", f"{node}\n")
    for number, cpulist in enumerate(cpulists):
        write(root / f"sys/devices/system/node/node{number}/cpulist", f"{cpulist}\n")
    write(root / "sys/devices/system/node/online", f"0-{len(cpulists) - 1}\n" if len(cpulists) > 1 else "0\n")
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("buses", "cpulists", "num_cores"),
    [(DGX_H100, OF_DGX, 112), (MI300X, OF_MI300X, 192)],
    ids=["H100", "MI300X"],
)
def test_each_device_has_the_cores_of_its_socket(
    tmp_path: Path, buses: dict[str, int], cpulists: tuple[str, ...], num_cores: int
) -> None:
    root = tree(tmp_path, buses, cpulists)
    found = {bus: near(f"0000:{bus}:00", ALL, root) for bus in buses}
    assert {bus: node and node.number for bus, node in found.items()} == buses
    one, other = found["df"], next(node for bus, node in found.items() if not buses[bus])
    assert one is not None and other is not None
    assert len(one.cores) == len(other.cores) == num_cores
    assert not one.cores & other.cores
    assert {0, num_cores} <= other.cores


def test_cores_that_a_container_does_not_have_are_left_out(tmp_path: Path) -> None:
    root = tree(tmp_path, DGX_H100, OF_DGX)
    assert near("0000:9d:00", {3, 57, 58}, root) == NumaNode(number=1, cores=frozenset({57, 58}))
    assert near("0000:9d:00", {3, 4}, root) is None


@pytest.mark.parametrize(
    ("buses", "cpulists"),
    [({"00": -1}, ("0-15",)), ({"00": -1}, ("0-7", "8-15")), ({"00": 0}, ("0-15",)), ({}, ("0-7", "8-15"))],
    ids=["no topology", "no topology of the bus", "one node", "no such device"],
)
def test_in_a_cloud_machine_without_topology_nothing_is_bound(
    tmp_path: Path, buses: dict[str, int], cpulists: tuple[str, ...]
) -> None:
    assert near("0000:00:00", ALL, tree(tmp_path, buses, cpulists)) is None


def test_a_host_without_sys_and_a_rank_without_a_device_are_left_alone(tmp_path: Path) -> None:
    assert near("0000:1b:00", ALL, tmp_path) is None
    assert near(None, ALL, tree(tmp_path, DGX_H100, OF_DGX)) is None


def test_a_rank_with_few_cores_near_its_device_keeps_the_many_elsewhere(tmp_path: Path) -> None:
    root = tree(tmp_path, DGX_H100, OF_DGX)
    assert near("0000:1b:00", {0, *range(56, 112)}, root) is None
    assert near("0000:1b:00", {*range(14), *range(56, 98)}, root) == NumaNode(
        number=0, cores=frozenset(range(14))
    )


@pytest.mark.parametrize("code", [errno.EPERM, errno.EINVAL])
def test_a_kernel_that_refuses_to_bind_leaves_a_rank_where_it_was(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[frozenset[int]] = []

    def refuse(_thread: int, cores: frozenset[int]) -> None:
        given.append(frozenset(cores))
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(224)))
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    bind("0000:1b:00", {}, tree(tmp_path, DGX_H100, OF_DGX))
    assert bound() == f"refused: {os.strerror(code)}"
    assert given[-1] == frozenset(range(224))


def test_all_threads_and_their_children_are_bound_and_a_variable_switches_it_off(tmp_path: Path) -> None:
    """In a process of its own, which stays bound. Which word follows is this machine's to allow."""
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        pytest.skip("this process has one core")
    root = tree(tmp_path, {"1b": 0, "9d": 1}, (str(first), ",".join(map(str, others))))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_bound_by, (root, "off")) == (f"off by {SWITCH}", [len(others) + 1])
        words, cores = pool.apply(_bound_by, (root, ""))
    assert cores == [1]
    assert words in ("threads on node 0", "threads and memory on node 0")


def _bound_by(root: Path, switch: str) -> tuple[str, list[int]]:
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    bind("0000:1b:00", {SWITCH: switch}, root)
    cores = [len(os.sched_getaffinity(int(thread.name))) for thread in Path("/proc/self/task").iterdir()]
    assert len(cores) > 1
    over.set()
    other.join()
    return bound(), sorted(set(cores))
