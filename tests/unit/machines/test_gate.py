"""Who reaches the store where ranks meet, and who does not. Neighbours are other addresses of loopback."""

import logging
import os
import re
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from errno import EINPROGRESS
from pathlib import Path

import pytest

from cluster.gate import gate as gates
from cluster.gate.gate import Gate, NotRank0, enter
from cluster.gate.packet_filter import admit, closed_afterwards
from cluster.probe import meeting, roll_call

KEY = b"the run's own"
DEADLINE_S = 60.0
NEIGHBOUR = "127.0.0.9"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def reaches(listener: socket.socket, address: str) -> bool:
    """On loopback a first packet is answered, or dropped, before the call that sends it returns."""
    with socket.socket(listener.family) as client:
        client.setblocking(False)
        client.bind((address, 0))
        assert client.connect_ex((listener.getsockname()[0], listener.getsockname()[1])) == EINPROGRESS
        return client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO) == 1


@pytest.mark.parametrize("before", [[], ["10.0.0.1"], ["10.0.0.1", "fd00::1", "::ffff:10.0.0.2"]])
def test_the_kernel_lets_in_those_alone_who_were_admitted(before: list[str], listener: socket.socket) -> None:
    admit(listener, [])
    assert not reaches(listener, "127.0.0.5")
    admit(listener, [*before, "127.0.0.5"])
    assert [reaches(listener, f"127.0.0.{last}") for last in (4, 5, 6, 9)] == [False, True, False, False]


@pytest.mark.parametrize(
    ("admitted", "is_in"), [(["::1"], True), (["::2", "1::1", "::1%lo"], True), (["::2", "10.0.0.1"], False)]
)
def test_so_it_does_for_the_other_family(admitted: list[str], is_in: bool) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        admit(listener, admitted)
        assert reaches(listener, "::1") is is_in


def test_of_very_many_addresses_the_smallest_networks_that_hold_them_are_let_in(
    listener: socket.socket,
) -> None:
    admit(listener, [f"127.1.{number // 256}.{number % 256}" for number in range(2000)])
    assert reaches(listener, "127.1.0.0") and reaches(listener, "127.1.7.207")
    assert not reaches(listener, "127.2.0.0") and not reaches(listener, "127.0.0.1")


def test_so_many_addresses_of_the_other_family_are_no_more_than_a_kernel_takes() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        admit(listener, [f"fd00::{number:x}" for number in range(5000)])
        assert not reaches(listener, "::1")


@pytest.fixture
def gate() -> Iterator[tuple[Gate, int]]:
    """A gate, and the port of its door."""
    door = meeting.listen_at("127.0.0.1")
    made, port = Gate(meeting.listen_at("127.0.0.1"), door), door.getsockname()[1]
    yield made, port
    end(made)


def end(gate: Gate) -> None:
    gate.close()
    for thread in threading.enumerate():
        if thread.name == "gate":
            thread.join(DEADLINE_S)


def test_who_knows_the_key_is_told_the_port_and_reaches_it(gate: tuple[Gate, int]) -> None:
    made, door = gate
    assert not reaches(made.store, "127.0.0.1")
    made.open(KEY)
    assert enter("127.0.0.1", door, KEY, DEADLINE_S) == made.store.getsockname()[1]
    assert reaches(made.store, "127.0.0.1") and not reaches(made.store, NEIGHBOUR)


def test_who_has_another_key_is_told_that_nobody_there_has_his(gate: tuple[Gate, int]) -> None:
    made, door = gate
    made.open(KEY)
    with pytest.raises(NotRank0, match="it does not know the run's key"):
        enter("127.0.0.1", door, b"another", DEADLINE_S)
    assert not reaches(made.store, "127.0.0.1")


def test_what_a_rank_said_lets_nobody_in_who_says_it_again(
    gate: tuple[Gate, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, door = gate
    made.open(KEY)
    said: list[bytes] = []

    class Heard(socket.socket):
        def sendall(self, data: bytes, flags: int = 0) -> None:  # type: ignore[override]  # bytes are all
            said.append(data)
            super().sendall(data)

    with monkeypatch.context() as patched:
        patched.setattr(socket, "socket", Heard)
        enter("127.0.0.1", door, KEY, DEADLINE_S)
    with socket.create_connection(("127.0.0.1", door), DEADLINE_S, source_address=(NEIGHBOUR, 0)) as again:
        again.sendall(said[0])
        assert len(again.recv(64, socket.MSG_WAITALL)) == 64
        again.sendall(said[1])
        assert again.recv(64) == b""
    assert len(said) == 2 and not reaches(made.store, NEIGHBOUR)


def test_a_flood_of_silent_connections_keeps_no_rank_out_and_opens_no_files_without_bound(
    gate: tuple[Gate, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gates, "_MOST_GUESTS", 50)
    made, door = gate
    entered: list[int] = []
    comes = threading.Thread(target=lambda: entered.append(enter("127.0.0.1", door, KEY, DEADLINE_S)))
    comes.start()
    kept = []
    with caplog.at_level(logging.WARNING):
        for _ in range(300):
            kept.append(
                socket.create_connection(("127.0.0.1", door), DEADLINE_S, source_address=(NEIGHBOUR, 0))
            )
        # All but those that may wait were sent away.
        for stranger in kept[:250]:
            assert stranger.recv(1) == b""
        made.open(KEY)
        comes.join(DEADLINE_S)
        assert entered == [made.store.getsockname()[1]]
        end(made)
    [line] = caplog.messages
    # The rank that waits may have the place of one.
    assert re.fullmatch(
        "rendezvous: connections did not prove that they know the run's key: 25[01] from 127.0.0.9", line
    )


def test_who_says_too_much_or_goes_again_is_sent_away_and_others_come_in(gate: tuple[Gate, int]) -> None:
    made, door = gate
    made.open(KEY)
    for what in (bytes(1000), b"GET / HTTP/1.1\r\n\r\n", b"x"):
        with socket.create_connection(("127.0.0.1", door), DEADLINE_S, source_address=(NEIGHBOUR, 0)) as one:
            one.sendall(what)
            # A reset, not an end.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    assert enter("127.0.0.1", door, KEY, DEADLINE_S) == made.store.getsockname()[1]
    assert not reaches(made.store, NEIGHBOUR)


def test_who_answers_a_byte_now_and_then_holds_nobody_up(listener: socket.socket) -> None:
    def trickle() -> None:
        with suppress(OSError), listener.accept()[0] as asked:
            for _ in range(64):
                asked.sendall(b"x")
                time.sleep(0.05)

    threading.Thread(target=trickle, daemon=True).start()
    # With all of it, it would be told that the key is wrong.
    with pytest.raises(NotRank0, match=r"^no answer within 0 s"):
        enter("127.0.0.1", listener.getsockname()[1], KEY, 0.4)


def test_what_listens_later_is_for_those_who_came_to_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    with meeting.listen_to_ranks("127.0.0.1") as to_all:
        assert reaches(to_all, NEIGHBOUR)
    monkeypatch.setattr(meeting, "_admitted", {"127.0.0.5"})
    with meeting.listen_to_ranks("127.0.0.1") as to_ranks:
        assert reaches(to_ranks, "127.0.0.5") and not reaches(to_ranks, NEIGHBOUR)


def test_the_port_of_the_roll_call_answers_again_once_files_can_be_opened_again() -> None:
    """A flood elsewhere may use up all files of the process for a while."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with roll_call._open_port(0, "127.0.0.1") as port, socket.socket() as first:
        with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as before:
            assert before.recv(1) == b""
        first.settimeout(DEADLINE_S)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            first.connect(("127.0.0.1", port))
            time.sleep(0.2)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert first.recv(1) == b""


def test_what_began_to_listen_inside_is_reached_by_nobody_afterwards_and_all_else_as_before(
    listener: socket.socket,
) -> None:
    path = Path("/proc/self/fd")
    with closed_afterwards():
        gloos = socket.create_server(("127.0.0.1", 0))
        with socket.create_connection(gloos.getsockname(), DEADLINE_S) as client, gloos.accept()[0] as served:
            num_files = len([*path.iterdir()])
            with closed_afterwards():
                pass
            assert len([*path.iterdir()]) == num_files
            client.sendall(b"x")
            assert served.recv(1) == b"x"
    with gloos:
        assert not reaches(gloos, "127.0.0.1")
    assert reaches(listener, "127.0.0.1")
