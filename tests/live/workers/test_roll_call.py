"""A group whose ranks can't meet ends soon, and says who came and what to set: real processes."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from cluster.probe import meeting as meetings
from cluster.probe import roll_call
from cluster.probe.meeting import join, meet_at, meet_in, on_the_way_to
from cluster.probe.roll_call import Card, Unmet, told_if_late
from cluster.probe.signed_store import SignedStore
from tests.live.ranks import FORKS

KEY = b"the run's own"
SOON_S = 3.0
DEADLINE_S = 240.0


def test_a_rank_that_never_comes_is_named_by_those_that_came(tmp_path: Path) -> None:
    for place in (str(tmp_path), None):
        said = ranks_at(place, [nothing_special, nothing_special], world_size=3)
        assert said[0] == said[1]
        assert said[0].startswith("(2,) rank 2 did not come within 3 s; 2 of 3 ranks came (rank 0 on ")
        assert "GLOO_SOCKET_IFNAME" in said[0]


def test_others_are_taken_for_able_to_delete_where_ranks_meet_at_an_address_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def meets(store: SignedStore, *_: object, **__: object) -> None:
        seen.append(store.is_open)
        raise Unmet("enough", [])

    monkeypatch.setattr(meetings, "all_met", meets)
    for meeting in (meet_in(tmp_path), meet_at("127.0.0.1")):
        with pytest.raises(Unmet, match="enough"):
            join(meeting, "gloo", rank=0, world_size=2, key=KEY, timeout_s=DEADLINE_S)
    assert seen == [False, True]


def test_a_rank_at_an_address_that_nobody_reaches_is_named_with_it(tmp_path: Path) -> None:
    said = ranks_at(None, [be_host_a, be_host_b_on_loopback, be_host_c], world_size=3)
    assert said[0] == said[1] == said[2]
    assert said[0].startswith("(1,) ")
    assert "rank 0 on a: " in said[0] and "does not reach rank 1 on b: 127.0.0.1 by lo" in said[0]


def test_a_rank_whose_ports_are_closed_is_named(tmp_path: Path) -> None:
    said = ranks_at(None, [be_host_a, be_host_b_behind_a_firewall, be_host_c], world_size=3)
    assert said[0] == said[1] == said[2]
    assert said[0].startswith("(1,) ") and "does not reach rank 1 on b" in said[0]


def test_ranks_on_hosts_that_reach_each_other_meet(tmp_path: Path) -> None:
    assert ranks_at(None, [be_host_a, be_host_b, be_host_c], world_size=3) == ["met"] * 3


def test_a_rank_that_does_not_reach_rank_0_says_so_at_once() -> None:
    said = ranks_at("tcp://127.0.0.1:9", [nothing_special], world_size=2, first_rank=1)
    assert said[0].startswith("(1,) rank 1 on ")
    assert "does not reach rank 0 at 127.0.0.1:9 (" in said[0]


def test_ranks_that_connect_for_too_long_are_told_of_while_they_wait() -> None:
    cards = [Card(rank=rank, host="ab"[rank], address=f"10.0.0.{rank}", interface="eth1") for rank in (0, 1)]
    told: list[Unmet] = []
    with told_if_late(cards, 0.05, told.append):
        end = time.monotonic() + DEADLINE_S
        while not told and time.monotonic() < end:
            time.sleep(0.01)
    assert told[0].ranks == (0, 1)
    assert str(told[0]).startswith(
        "all 2 ranks came, and did not connect within 0 s (rank 0 on a: 10.0.0.0 by eth1; rank 1 on b: "
        "10.0.0.1 by eth1); name the interface between the nodes (GLOO_SOCKET_IFNAME"
    )


# The ranks' processes.


def nothing_special() -> None:
    pass


def be_host(name: str, interface: str) -> None:
    roll_call.socket.gethostname = lambda: name  # type: ignore[assignment]  # a host for this process
    os.environ["GLOO_SOCKET_IFNAME"] = interface


def other_interface() -> str:
    """One that is no loopback."""
    from cluster.this_machine import interfaces

    return next(name for name, addresses in interfaces().items() if addresses and name != "lo")


def be_host_a() -> None:
    be_host("a", other_interface())


def be_host_b() -> None:
    be_host("b", other_interface())


def be_host_c() -> None:
    be_host("c", other_interface())


def be_host_b_on_loopback() -> None:
    be_host("b", "lo")


def be_host_b_behind_a_firewall() -> None:
    """Its port is closed before anybody comes, as if nothing got through."""
    be_host_b()
    opened = roll_call._open_port

    @contextmanager
    def closed(rank: int, address: str) -> Iterator[int]:
        with opened(rank, address) as port:
            pass
        yield port

    roll_call._open_port = closed


def ranks_at(
    place: str | None, roles: Sequence[Callable[[], None]], *, world_size: int, first_rank: int = 0
) -> list[str]:
    """What each rank says. ``place`` is a folder, an address where nobody listens, or None: rank 0's."""
    meeting = place if place is None or place.startswith("tcp://") else meet_in(Path(place))
    pipes = [FORKS.Pipe() for _ in roles]
    processes = []
    try:
        for number, role in enumerate(roles):
            _, theirs = pipes[number]
            given = (meeting, role, first_rank + number, world_size, theirs)
            processes.append(FORKS.Process(target=be_rank, args=given, daemon=True))
            processes[-1].start()
            if meeting is None:
                assert pipes[0][0].poll(DEADLINE_S)
                meeting = pipes[0][0].recv()
        answers = [ours for ours, _ in pipes]
        assert all(ours.poll(DEADLINE_S) for ours in answers), "a rank says nothing"
        return [ours.recv() for ours in answers]
    finally:
        for process in processes:
            process.kill()
            process.join()


def be_rank(
    meeting: str | None, role: Callable[[], None], rank: int, world_size: int, answers: Connection
) -> None:
    role()
    meetings.COMING_S = SOON_S if world_size > 2 and role is nothing_special else DEADLINE_S
    if meeting is None:
        meeting = meet_at("127.0.0.1")
        answers.send(meeting)
    os.environ.update(on_the_way_to(meeting))
    try:
        join(meeting, "gloo", rank=rank, world_size=world_size, key=KEY, timeout_s=DEADLINE_S)
    except Unmet as error:
        answers.send(f"{error.ranks} {error}")
    except Exception as error:
        answers.send(f"{type(error).__name__}: {error}")
    else:
        answers.send("met")
