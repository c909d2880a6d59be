"""What a rank says of whoever answers in the place of rank 0."""

import socket
from collections.abc import Iterator
from datetime import timedelta
from threading import Event

import pytest

from cluster.gate.gate import Rank0Ended
from cluster.probe import meeting
from cluster.probe.roll_call import Rank0Gone, Unmet
from jobs.execution.causes import is_echo

DEADLINE_S = 30.0


@pytest.fixture
def impostor() -> Iterator[str]:
    """Takes connections: the kernel does, whatever its process answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_who_takes_connections_and_never_answers_is_told_with_the_address(
    impostor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = Event()
    # As torch's constructor does.
    monkeypatch.setattr(meeting, "tcp_store", lambda *_: is_over.wait(DEADLINE_S))
    monkeypatch.setattr(meeting, "enter", lambda *_: 1)
    monkeypatch.setattr(meeting, "COMING_S", 0.1)
    try:
        said, ranks = said_at(impostor)
    finally:
        is_over.set()
    assert f": what answers at {impostor} is not rank 0's store (no answer within 0 s" in said
    assert ranks == ()


def test_what_torch_says_of_who_answers_otherwise_is_told_with_the_address(
    impostor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise RuntimeError("Ping failed")

    monkeypatch.setattr(meeting, "tcp_store", refuses)
    monkeypatch.setattr(meeting, "enter", lambda *_: 1)
    said, ranks = said_at(impostor)
    assert f": what answers at {impostor} is not rank 0's store (Ping failed): another process" in said
    assert ranks == ()


def test_where_rank_0_has_ended_no_rank_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*_: object) -> int:
        raise Rank0Ended("Connection refused")

    monkeypatch.setattr(meeting, "enter", ended)
    with pytest.raises(Rank0Gone, match=r"rank 0 does not answer at 10\.0\.0\.1:7 any more") as found:
        meeting._store("tcp://10.0.0.1:7", None, 1, 2, b"", timedelta(seconds=DEADLINE_S))
    assert is_echo(f"Rank0Gone: {found.value}")


def test_nobody_takes_the_port_of_a_rank_0_that_has_died_while_ranks_may_ask_it_again() -> None:
    with meeting.listen_at("127.0.0.1") as listener:
        place = listener.getsockname()
        with socket.create_connection(place, DEADLINE_S), listener.accept()[0] as served:
            served.close()
    with socket.socket() as another:
        another.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="already in use"):
            another.bind(place)


def said_at(place: str) -> tuple[str, tuple[int, ...]]:
    with pytest.raises(Unmet) as found:
        meeting._store(f"tcp://{place}", None, 1, 2, b"the run's own", timedelta(seconds=2 * DEADLINE_S))
    return str(found.value), found.value.ranks
