"""Who is at fault where ranks don't reach each other, and by which interface a machine reaches its peers."""

import pytest

from cluster.probe.interfaces import advertised, interface_of, source_towards, towards
from cluster.probe.roll_call import Card, Unmet, first_of_each_place, who_is_unreached


def cards(*addresses: str) -> list[Card]:
    return [
        Card(rank=rank, host=f"host-{rank}", address=address, interface="eth0", port=1)
        for rank, address in enumerate(addresses)
    ]


FOUR = cards("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")


def fault(missed: dict[int, tuple[int, ...]], of: list[Card] = FOUR) -> tuple[int, ...]:
    problem = who_is_unreached(of, missed)
    assert isinstance(problem, Unmet)
    return problem.ranks


def test_nobody_is_at_fault_where_all_reach_all() -> None:
    assert who_is_unreached(FOUR, dict.fromkeys(range(4), ())) is None


def test_a_rank_that_no_other_reaches_is_at_fault() -> None:
    assert fault({0: (2,), 1: (2,), 2: (), 3: (2,)}) == (2,)


def test_a_rank_that_reaches_no_other_is_at_fault() -> None:
    assert fault({0: (), 1: (), 2: (), 3: (0, 1, 2)}) == (3,)


def test_one_broken_way_is_the_fault_of_both_its_ends() -> None:
    assert fault({0: (), 1: (3,), 2: (), 3: ()}) == (1, 3)


def test_of_two_machines_the_one_that_offers_loopback_is_at_fault() -> None:
    assert fault({0: (1,), 1: (0,)}, cards("10.0.0.1", "127.0.1.1")) == (1,)


def test_the_ways_are_said_with_addresses_and_interfaces_but_not_all_of_them() -> None:
    many = cards(*(f"10.0.0.{number}" for number in range(1, 12)))
    said = str(who_is_unreached(many, dict.fromkeys(range(10), (10,))))
    assert said.startswith(
        "rank 0 on host-0: 10.0.0.1 by eth0 does not reach rank 10 on host-10: 10.0.0.11 by eth0; rank 1 on "
    )
    assert "; rank 7 on host-7" in said and "rank 8 on" not in said and ", and 2 more ways; name the" in said


def test_ranks_of_one_machine_are_asked_for_one_of_them() -> None:
    first, second = cards("10.0.0.1", "10.0.0.2")
    beside = Card(rank=2, host=first.host, address=first.address, interface="eth0", port=2)
    assert first_of_each_place([first, second, beside]) == [first, second]


def test_an_interface_is_found_by_any_of_its_addresses_and_loopback_by_any_of_that_net() -> None:
    addresses = {"lo": ["127.0.0.1", "::1"], "eth0": ["10.0.0.1", "fd00::1"], "down": []}
    assert interface_of("fd00::1", addresses) == "eth0"
    assert interface_of("127.0.1.1", addresses) == "lo"
    assert interface_of("10.0.0.9", addresses) is None


def test_what_a_user_has_named_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,eth7")
    assert towards("10.0.0.1") == {}
    assert advertised() == ("lo", "127.0.0.1")


def test_the_route_to_this_machine_itself_is_loopback() -> None:
    assert source_towards("127.0.0.1") == "127.0.0.1"
    assert source_towards("no such host.invalid") is None
