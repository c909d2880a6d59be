"""Which all-reduces the doctor asks nodes for. The nodes answer at once, and no Ray is started."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.inventory import WorkerGroup
from cluster.probe.link_seat import LinkSeat
from cluster.probe.node_facts import LinkRate, NodeFacts
from jobs.doctor import link_tests
from jobs.doctor.node_sessions import NodeSession
from tests.unit.examinations import A1, A2, answer, nvidia

GROUP = WorkerGroup(name="nvidia", vendor="nvidia", nodes=())
ON_DEVICES, ON_CPUS = nvidia(num_devices=1), nvidia(platform="cpu", num_devices=0)


class Node:
    """Answers as a node actor of one rank. ``refuses`` is a backend of which it says why it does not work."""

    def __init__(self, asked: list[list[int | None]], refuses: str = "") -> None:
        self.meeting = SimpleNamespace(remote=lambda _: "tcp://10.0.0.1:1")
        self.all_reduce = SimpleNamespace(remote=self._all_reduce)
        self._asked, self._refuses = asked, refuses

    def _all_reduce(self, seat: LinkSeat) -> LinkRate | str:
        if seat.rank == 0:
            self._asked.append([])
        self._asked[-1].append(seat.device)
        backend = "gloo" if seat.device is None else "nccl"
        if backend == self._refuses:
            return "no answer in time"
        return LinkRate(num_ranks=2, backend=backend, size_bytes=1, bus_bytes_per_s=1.0, small_s=1.0)


def links_of(monkeypatch: pytest.MonkeyPatch, facts: NodeFacts, refuses: str = "") -> tuple[Any, Any]:
    monkeypatch.setattr(link_tests, "answer_to", lambda found, _end, _kind: found)
    monkeypatch.setattr(link_tests, "num_ranks", lambda _on_cpu, _devices: 1)
    monkeypatch.setattr(link_tests, "renew", lambda _visit: None)
    asked: list[list[int | None]] = []
    visits = [
        NodeSession(asked=one, group=GROUP, machine=one.name, node_actor=Node(asked, refuses))
        for one in (A1, A2)
    ]
    found = [link.rate for link in link_tests.links_of(visits, [answer(one, facts) for one in (A1, A2)])]
    return asked, [rate if isinstance(rate, str) else rate.backend for rate in found]


def test_nodes_with_devices_reduce_over_gloo_too_which_long_runs_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, rates = links_of(monkeypatch, ON_DEVICES)
    assert (asked, rates) == ([[None, None], [0, 0]], ["gloo", "nccl"])


def test_nodes_without_devices_reduce_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, rates = links_of(monkeypatch, ON_CPUS)
    assert (asked, rates) == ([[None, None]], ["gloo"])


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_link_that_does_not_work_says_over_what_and_the_other_is_tried(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, rates = links_of(monkeypatch, ON_DEVICES, refuses=backend)
    assert f"{backend}: no answer in time" in rates
    assert {"gloo", "nccl"} - {backend} < set(rates)


def test_what_fails_between_two_nodes_does_not_make_the_next_pairs_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node actor that took part in a reduction that failed is stuck for good."""
    stuck: set[str] = set()

    def reduced(actors: list[str], *_: object, **__: object) -> LinkRate | str:
        if len(actors) == 2 and set(actors) != {"gpu-0", "gpu-1"} and stuck.isdisjoint(actors):
            return LinkRate(num_ranks=2, backend="nccl", size_bytes=1, bus_bytes_per_s=1.0, small_s=1.0)
        stuck.update(actors)
        return "no answer in time"

    def renewed(visit: NodeSession) -> None:
        stuck.discard(visit.node_actor)

    monkeypatch.setattr(link_tests, "_all_reduce", reduced)
    monkeypatch.setattr(link_tests, "num_ranks", lambda _on_cpu, _devices: 1)
    monkeypatch.setattr(link_tests, "renew", renewed)
    names = [replace(A1, node_id=str(number), name=f"gpu-{number}") for number in range(4)]
    visits = [NodeSession(asked=one, group=GROUP, machine=one.name, node_actor=one.name) for one in names]
    found = link_tests.links_of(visits, [answer(one, ON_CPUS) for one in names])
    lost = [(link.node, link.peer) for link in found if isinstance(link.rate, str)]
    # The group as a whole, and that pair.
    assert lost == [(None, None), ("gpu-0", "gpu-1")]


def test_a_node_whose_own_reduction_fails_gets_another_actor_for_what_comes_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: list[object] = []
    renewed: list[object] = []
    monkeypatch.setattr(link_tests, "num_ranks", lambda _on_cpu, _devices: 2)
    monkeypatch.setattr(link_tests, "start_node_actor", lambda _node: "beside")
    monkeypatch.setattr(link_tests.ray, "kill", killed.append)
    monkeypatch.setattr(link_tests, "_all_reduce", lambda *_, **__: "no answer in time")
    monkeypatch.setattr(link_tests, "renew", lambda visit: renewed.append(visit.node_actor))
    visit = NodeSession(asked=A1, group=GROUP, machine=A1.name, node_actor="own")
    (link,) = link_tests._within(visit, ON_CPUS)
    assert (link.rate, killed, renewed) == ("no answer in time", ["beside"], ["own"])


@pytest.mark.parametrize(("second", "counts"), [(0.9, 0.9), (0.2, 0.2), (0.05, 0.1), ("no answer", 0.1)])
def test_a_pair_that_is_slow_is_measured_once_more_and_the_better_figure_counts(
    second: float | str, counts: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float | str] = [1.0, 0.1, 1.1, second]

    def measured(*_: object, **__: object) -> LinkRate | str:
        rate = rates[len(told)]
        told.append(rate)
        if isinstance(rate, str):
            return rate
        return LinkRate(num_ranks=2, backend="gloo", size_bytes=1, bus_bytes_per_s=rate, small_s=1.0)

    told: list[float | str] = []
    monkeypatch.setattr(link_tests, "_all_reduce", measured)
    monkeypatch.setattr(link_tests, "renew", lambda _visit: None)
    names = [replace(A1, node_id=str(number), name=f"gpu-{number}") for number in range(3)]
    visits = [NodeSession(asked=one, group=GROUP, machine=one.name, node_actor=None) for one in names]
    found = [link.rate for link in link_tests._in_pairs(visits, [None] * 3)]
    assert sorted(rate.bus_bytes_per_s for rate in found if isinstance(rate, LinkRate)) == [counts, 1.0, 1.1]
    assert len(told) == 4


def test_each_pair_of_three_nodes_reduces_alone_over_gloo_and_then_over_nccl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_tests, "answer_to", lambda found, _end, _kind: found)
    monkeypatch.setattr(link_tests, "num_ranks", lambda _on_cpu, _devices: 1)
    monkeypatch.setattr(link_tests, "renew", lambda _visit: None)
    names = [replace(A1, node_id=str(number), name=f"gpu-{number}") for number in range(3)]
    visits = [
        NodeSession(asked=one, group=GROUP, machine=one.name, node_actor=Node([[]], refuses="nccl"))
        for one in names
    ]
    found = list(link_tests.links_of(visits, [answer(one, ON_DEVICES) for one in names]))
    pairs = [(link.backend, link.node, link.peer) for link in found if link.peer]
    expected = [("gpu-0", "gpu-2"), ("gpu-0", "gpu-1"), ("gpu-1", "gpu-2")]
    for backend in ("gloo", "nccl"):
        assert sorted(pair[1:] for pair in pairs if pair[0] == backend) == sorted(expected)
    assert [backend for backend, *_ in pairs] == ["gloo"] * 3 + ["nccl"] * 3
    assert {link.backend for link in found if link.peer and isinstance(link.rate, str)} == {"nccl"}
