"""Who reaches the store where ranks meet, and who does not. Neighbours are other addresses of loopback."""

import logging
import os
import re
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from errno import EADDRNOTAVAIL, EINPROGRESS
from pathlib import Path
from typing import Any

import pytest

from cluster.gate import gate as gates
from cluster.gate import packet_filter
from cluster.gate.gate import Gate, NotRank0, Rank0Ended, enter
from cluster.gate.packet_filter import admit, close_ports
from cluster.probe import meeting, roll_call

KEY = b"the run's own"
DEADLINE_S = 30.0
NEIGHBOUR = "127.0.0.9"
# By ``SO_LINGER``, a connection does not end, but is reset.
RESET = struct.pack("ii", 1, 0)


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


@pytest.mark.parametrize(
    "admitted", [["127.0.0.5"], ["10.0.0.1", "127.0.0.5"], ["10.0.0.1", "fd00::1", "::ffff:127.0.0.5"]]
)
def test_the_kernel_lets_in_those_alone_who_were_admitted(
    admitted: list[str], listener: socket.socket
) -> None:
    admit(listener, [])
    assert not reaches(listener, "127.0.0.5")
    admit(listener, admitted)
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


def test_where_the_kernel_takes_no_more_addresses_nobody_is_kept_off(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that has been told the port would wait in vain before the filter of those who came earlier."""
    monkeypatch.setattr(packet_filter, "_MOST_NETWORKS", {4: 10_000, 6: 10_000})
    admit(listener, ["127.0.0.5"])
    assert not reaches(listener, NEIGHBOUR)
    with pytest.raises(OSError):
        admit(listener, [f"127.{number // 256}.{number % 256}.1" for number in range(5000)])
    assert reaches(listener, NEIGHBOUR)


def test_no_filter_is_longer_than_a_kernel_takes_that_has_20_KB_for_it_and_the_next_one() -> None:
    num_steps: list[int] = []

    class Told(socket.socket):
        def setsockopt(self, *what: Any) -> None:
            num_steps.append(struct.unpack("HP", what[2])[0])

    with Told() as listener:
        many = range(4096)
        admit(listener, [f"10.0.{number // 256}.{number % 256}" for number in many])
        admit(listener, [*(f"10.0.0.{number}" for number in range(128)), *(f"fd00::{one:x}" for one in many)])
    # The kernel makes some 1,100 of them, of 8 bytes each.
    assert len(num_steps) == 2 and max(num_steps) < 700


@pytest.fixture
def gate() -> Iterator[tuple[Gate, int]]:
    """A gate, and the port of its door."""
    door = meeting.listen_at("127.0.0.1")
    made, port = Gate(meeting.listen_at("127.0.0.1"), door), door.getsockname()[1]
    yield made, port
    end(made)


def end(gate: Gate) -> None:
    gate.close()
    wait_for_end()


def wait_for_end() -> None:
    for thread in threading.enumerate():
        if thread.name == "gate":
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), "the gate is not closed"


def test_who_knows_the_key_is_told_the_port_and_reaches_it(gate: tuple[Gate, int]) -> None:
    made, door = gate
    assert not reaches(made.store, "127.0.0.1")
    made.open(KEY)
    assert enter("127.0.0.1", door, KEY, DEADLINE_S) == made.store.getsockname()[1]
    assert reaches(made.store, "127.0.0.1") and not reaches(made.store, NEIGHBOUR)


def test_so_it_is_in_the_other_family() -> None:
    door = meeting.listen_at("::1")
    made = Gate(meeting.listen_at("::1"), door)
    made.open(KEY)
    assert enter("::1", door.getsockname()[1], KEY, 5.0) == made.store.getsockname()[1]
    assert made.admitted == {"::1"} and reaches(made.store, "::1")
    end(made)


def test_a_store_that_is_closed_to_a_rank_does_not_mean_that_rank_0_has_ended(gate: tuple[Gate, int]) -> None:
    """A firewall may refuse for it."""
    made, door = gate
    made.open(KEY)
    made.store.shutdown(socket.SHUT_RDWR)
    with pytest.raises(TimeoutError, match="let it in, but port"):
        enter("127.0.0.1", door, KEY, 2.0)


@pytest.mark.parametrize(
    ("within_s", "pauses_s"), [(DEADLINE_S, [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]), (4.0, None)]
)
def test_a_rank_that_is_sent_away_comes_again_after_longer_and_longer_pauses(
    within_s: float, pauses_s: list[float] | None, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Enough(Exception):
        pass

    def send_away() -> None:
        with suppress(OSError):
            while True:
                listener.accept()[0].close()

    told: list[float] = []

    def sleeps(pause_s: float) -> None:
        told.append(pause_s)
        if len(told) == 7:
            raise Enough

    monkeypatch.setattr(time, "sleep", sleeps)
    threading.Thread(target=send_away, daemon=True).start()
    with pytest.raises(Enough):
        enter("127.0.0.1", listener.getsockname()[1], KEY, within_s)
    assert told == pauses_s if pauses_s else max(told) <= within_s
    # To close it would not wake the thread.
    listener.shutdown(socket.SHUT_RDWR)


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
        assert len(again.recv(66, socket.MSG_WAITALL)) == 66
        again.sendall(said[1])
        assert again.recv(64) == b""
    assert len(said) == 2 and not reaches(made.store, NEIGHBOUR)


def test_the_kernel_is_told_of_an_address_once_however_many_ranks_it_has(
    gate: tuple[Gate, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of thousands it takes a tenth of a second."""
    made, door = gate
    made.open(KEY)
    told: list[frozenset[str]] = []
    monkeypatch.setattr(gates, "admit", lambda store, addresses: told.append(addresses))
    monkeypatch.setattr(gates, "_missed_from", lambda *_: None)
    for _ in range(5):
        enter("127.0.0.1", door, KEY, DEADLINE_S)
    assert told == [{"127.0.0.1"}]


@pytest.fixture
def come_from(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[str]]:
    """From which addresses this machine comes to each port, one after another, where it names none itself."""
    taken: dict[int, list[str]] = {}

    class Chosen(socket.socket):
        def connect(self, place: Any) -> None:
            if self.getsockname()[1] == 0:
                addresses = taken[place[1]]
                super().bind((addresses[0], 0))
                addresses[:] = [*addresses[1:], addresses[0]]
            super().connect(place)

    monkeypatch.setattr(gates, "_STORE_KNOCK_S", 0.1)
    monkeypatch.setattr(socket, "socket", Chosen)
    return taken


def test_a_rank_for_which_the_kernel_takes_another_address_to_the_store_knocks_from_there(
    gate: tuple[Gate, int], come_from: dict[int, list[str]]
) -> None:
    """As its routes may say."""
    made, door = gate
    made.open(KEY)
    store = made.store.getsockname()[1]
    come_from.update({door: ["127.0.0.5"], store: ["127.0.0.6"]})
    assert enter("127.0.0.1", door, KEY, DEADLINE_S) == store
    assert made.admitted == {"127.0.0.5", "127.0.0.6"} and not made.is_for_all


def test_a_rank_whose_address_changes_on_the_way_comes_in_once_the_gate_has_seen_each(
    gate: tuple[Gate, int], come_from: dict[int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind some NAT."""
    made, door = gate
    made.open(KEY)
    store = made.store.getsockname()[1]
    come_from.update({door: ["127.0.0.5", "127.0.0.6"], store: ["127.0.0.6", "127.0.0.5"]})
    # What the machine takes itself is not what the gate sees.
    monkeypatch.setattr(socket.socket, "bind", lambda *_: None)
    assert enter("127.0.0.1", door, KEY, DEADLINE_S) == store
    assert made.admitted == {"127.0.0.5", "127.0.0.6"} and not made.is_for_all


def test_a_rank_knocks_once_from_an_address_that_it_may_have_lost(
    gate: tuple[Gate, int], come_from: dict[int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, door = gate
    made.open(KEY)
    store = made.store.getsockname()[1]
    come_from.update({door: ["127.0.0.5"], store: ["127.0.0.6", "127.0.0.5"]})

    def lost(*_: object) -> None:
        raise OSError(EADDRNOTAVAIL, "it is this machine's no more")

    monkeypatch.setattr(socket.socket, "bind", lost)
    assert enter("127.0.0.1", door, KEY, 5.0) == store


def test_no_knock_is_longer_than_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []

    def refuses(place: object, within_s: float, source: object) -> None:
        told.append(within_s)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuses)
    for within_s in (2.0, DEADLINE_S):
        with pytest.raises(ConnectionRefusedError):
            enter("127.0.0.1", 1, KEY, within_s)
    assert told[0] <= 2.0 and told[1] == 5.0


def test_packets_that_vanish_open_the_port_to_nobody_and_one_sentence_says_what_to_do(
    gate: tuple[Gate, int], come_from: dict[int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can have them vanish for a while could have it opened."""
    made, door = gate
    made.open(KEY)
    store = made.store.getsockname()[1]
    come_from.update({door: ["127.0.0.5"], store: ["127.0.0.6"]})
    monkeypatch.setattr(socket.socket, "bind", lambda *_: None)
    said = f"; the gate had let it in, but port {store} did not answer: if its address is changed on the way"
    with pytest.raises(TimeoutError, match=f"^timed out{said}.*, set LONGHAUL_GATE: .off. in the run's"):
        enter("127.0.0.1", door, KEY, 2.0)
    assert made.admitted == {"127.0.0.5"} and not made.is_for_all
    monkeypatch.setattr(gates, "_missed_from", lambda *_: (end(made), ("", 0))[1])
    with pytest.raises(Rank0Ended, match=f"refused{said}"):
        enter("127.0.0.1", door, KEY, DEADLINE_S)


def test_another_word_than_off_switches_no_gate_off(
    gate: tuple[Gate, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGHAUL_GATE", "on")
    gate[0].open(KEY)
    assert not reaches(gate[0].store, NEIGHBOUR)


def test_where_the_user_switches_the_gate_off_nobody_is_kept_off_and_one_line_says_so(
    gate: tuple[Gate, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LONGHAUL_GATE", "off")
    made, door = gate
    assert not reaches(made.store, NEIGHBOUR)
    with caplog.at_level(logging.WARNING):
        made.open(KEY)
        assert reaches(made.store, NEIGHBOUR)
        enter("127.0.0.1", door, KEY, DEADLINE_S)
    assert reaches(made.store, NEIGHBOUR)
    assert caplog.messages == ["rendezvous: nobody is kept off its port: LONGHAUL_GATE is off"]


class OnTheWay:
    """Passes on what a rank and the gate say to each other, and may change or repeat what the gate says."""

    def __init__(self, door: int) -> None:
        self.said: list[bytes] = []
        self.change: Callable[[bytes], bytes] = bytes
        self._door = door
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                with self._listener.accept()[0] as rank:
                    self._pass_on(rank)

    def _pass_on(self, rank: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self._door), DEADLINE_S) as asked:
            for num_heard, num_said in ((32, 66), (32, 1)):
                asked.sendall(rank.recv(num_heard, socket.MSG_WAITALL))
                self.said.append(asked.recv(num_said, socket.MSG_WAITALL))
                rank.sendall(self.change(self.said[-1]))


@pytest.fixture
def on_the_way(gate: tuple[Gate, int]) -> Iterator[OnTheWay]:
    gate[0].open(KEY)
    made = OnTheWay(gate[1])
    yield made
    made.close()


def test_who_stands_on_the_way_sends_no_rank_to_a_port_of_his(on_the_way: OnTheWay) -> None:
    on_the_way.change = lambda said: said[:32] + bytes(2) + said[34:]
    with pytest.raises(NotRank0, match="it does not know the run's key"):
        enter("127.0.0.1", on_the_way.port, KEY, DEADLINE_S)


def test_what_rank_0_said_to_another_rank_is_believed_by_none(on_the_way: OnTheWay) -> None:
    enter("127.0.0.1", on_the_way.port, KEY, DEADLINE_S)
    first = on_the_way.said[0]
    on_the_way.change = lambda said: first
    with pytest.raises(NotRank0, match="it does not know the run's key"):
        enter("127.0.0.1", on_the_way.port, KEY, DEADLINE_S)


def test_where_rank_0_ends_while_a_rank_waits_at_the_gate_nobody_seems_cut_off(
    listener: socket.socket,
) -> None:
    def end_soon() -> None:
        with listener.accept()[0]:
            listener.close()

    threading.Thread(target=end_soon, daemon=True).start()
    port = listener.getsockname()[1]
    with pytest.raises(Rank0Ended):
        enter("127.0.0.1", port, KEY, DEADLINE_S)
    with pytest.raises(ConnectionRefusedError):
        enter("127.0.0.1", port, KEY, DEADLINE_S)


def test_of_more_addresses_than_guests_no_more_are_remembered_and_few_are_named(
    gate: tuple[Gate, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gates, "_MOST_GUESTS", 3)
    monkeypatch.setattr(gates, "_MOST_NAMED", 2)
    made, door = gate
    with caplog.at_level(logging.WARNING):
        for last in (3, 4, 5, 6, 6):
            with socket.create_connection(
                ("127.0.0.1", door), DEADLINE_S, source_address=(f"127.0.0.{last}", 0)
            ) as stranger:
                stranger.shutdown(socket.SHUT_WR)
                assert stranger.recv(1) == b""
        end(made)
    assert caplog.messages[0].endswith("key: 1 from 127.0.0.3, 1 from 127.0.0.4")


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
            with suppress(ConnectionResetError):  # What he said was not heard yet.
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


def test_a_rank_whose_first_packets_find_the_kernels_queue_full_comes_in_later(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a flood. To give up at once would blame its node."""
    monkeypatch.setattr(gates, "_KNOCK_S", 0.2)
    tries: list[float] = []
    connect = socket.create_connection

    def connects(place: tuple[str, int], within_s: float, source: None) -> socket.socket:
        tries.append(within_s)
        return connect(place, within_s)

    with socket.create_server(("127.0.0.1", 0), backlog=0) as door:
        port = door.getsockname()[1]
        while reaches(door, NEIGHBOUR):
            pass
        monkeypatch.setattr(socket, "create_connection", connects)
        entered: list[int] = []
        comes = threading.Thread(target=lambda: entered.append(enter("127.0.0.1", port, KEY, DEADLINE_S)))
        comes.start()
        while len(tries) < 2 and comes.is_alive():
            time.sleep(0.01)
        made = Gate(listener, door)
        made.open(KEY)
        comes.join(DEADLINE_S)
        assert entered == [listener.getsockname()[1]]
        end(made)


def test_a_rank_that_reaches_nobody_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "_KNOCK_S", 0.2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as door:
        while reaches(door, NEIGHBOUR):
            pass
        with pytest.raises(TimeoutError):
            enter("127.0.0.1", door.getsockname()[1], KEY, 0.3)
        monkeypatch.setattr(gates, "_UNREACHED_S", 0.3)
        with pytest.raises(TimeoutError):
            enter("127.0.0.1", door.getsockname()[1], KEY, DEADLINE_S)


def test_a_rank_that_is_not_answered_for_a_while_knocks_again(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a flood the kernel may drop the last packet of a handshake: the rank alone is connected."""
    monkeypatch.setattr(gates, "_ANSWER_S", 0.2)
    door = socket.create_server(("127.0.0.1", 0))
    entered: list[int] = []

    def come() -> None:
        with suppress(NotRank0):
            entered.append(enter("127.0.0.1", door.getsockname()[1], KEY, 5.0))

    comes = threading.Thread(target=come)
    comes.start()
    with door.accept()[0]:
        made = Gate(listener, door)
        made.open(KEY)
        comes.join(DEADLINE_S)
    assert entered == [listener.getsockname()[1]]
    end(made)


def test_a_flood_from_one_address_sends_away_no_guest_from_another(
    gate: tuple[Gate, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "_MOST_GUESTS", 5)
    monkeypatch.setattr(gates, "_MOST_OF_ADDRESS", 2)
    guests = [
        socket.create_connection(("127.0.0.1", gate[1]), DEADLINE_S, source_address=(address, 0))
        for address in ("127.0.0.5", "127.0.0.5", *[NEIGHBOUR] * 10)
    ]
    assert [guest.recv(1) for guest in guests[2:9]] == [b""] * 7
    gate[0].open(KEY)
    for guest in guests[:2]:
        guest.sendall(bytes(32))
        assert len(guest.recv(66, socket.MSG_WAITALL)) == 66


def test_of_many_addresses_a_machine_of_many_ranks_is_not_the_first_to_go(
    gate: tuple[Gate, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "_MOST_GUESTS", 5)
    for _ in range(20):
        with socket.create_connection(
            ("127.0.0.1", gate[1]), DEADLINE_S, source_address=(NEIGHBOUR, 0)
        ) as gone:
            gone.shutdown(socket.SHUT_WR)
            assert gone.recv(1) == b""
    guests = [
        socket.create_connection(("127.0.0.1", gate[1]), DEADLINE_S, source_address=(address, 0))
        for address in [f"127.0.0.{last}" for last in (3, 4, 5, 5, 5, 6, 7)]
    ]
    assert [guest.recv(1) for guest in guests[:2]] == [b""] * 2
    gate[0].open(KEY)
    for guest in guests[2:]:
        guest.sendall(bytes(32))
        assert len(guest.recv(66, socket.MSG_WAITALL)) == 66


def test_strangers_leave_rank_0_its_files(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, 40))
    door = meeting.listen_at("127.0.0.1")
    made = Gate(listener, door)
    strangers = [socket.create_connection(door.getsockname(), DEADLINE_S) for _ in range(11)]
    assert strangers[0].recv(1) == b""
    strangers[1].setblocking(False)
    with pytest.raises(BlockingIOError):
        strangers[1].recv(1)
    end(made)


def test_guests_that_go_or_speak_as_they_are_sent_away_end_no_gate(
    gate: tuple[Gate, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, door = gate
    silent, asks, comes = (socket.socket() for _ in range(3))
    for guest in (silent, asks):
        guest.connect(("127.0.0.1", door))
    asks.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    asks.sendall(bytes(32))
    proof, is_past = gates._proof, threading.Event()

    def meanwhile(key: bytes, who: str, what: bytes) -> bytes:
        """While the one is answered, it goes. The other is sent away for one who comes, and then heard."""
        if not is_past.is_set():
            monkeypatch.setattr(gates, "_MOST_GUESTS", 1)
            comes.connect(("127.0.0.1", door))
            silent.sendall(b"x")
            asks.close()
            is_past.set()
        return proof(key, who, what)

    monkeypatch.setattr(gates, "_proof", meanwhile)
    made.open(KEY)
    assert is_past.wait(DEADLINE_S)
    assert enter("127.0.0.1", door, KEY, DEADLINE_S) == made.store.getsockname()[1]


def test_a_gate_that_is_closed_leaves_nobody_waiting_and_no_file_open() -> None:
    num_files = len([*Path("/proc/self/fd").iterdir()])
    door = meeting.listen_at("127.0.0.1")
    made, port = Gate(meeting.listen_at("127.0.0.1"), door), door.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as guest:
        made.close()
        assert guest.recv(1) == b""
    end(made)
    assert len([*Path("/proc/self/fd").iterdir()]) == num_files


@pytest.mark.parametrize("num_free", [0, 2])
def test_where_no_more_files_can_be_opened_silent_connections_go_and_ranks_come_in_later(
    gate: tuple[Gate, int], num_free: int
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    strangers = [socket.socket() for _ in range(4)]
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + num_free, hard))
    try:
        for stranger in strangers:
            stranger.connect(("127.0.0.1", gate[1]))
        strangers[0].settimeout(DEADLINE_S)
        if num_free:
            assert strangers[0].recv(1) == b""
        else:  # Nobody is there who could go.
            time.sleep(0.2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for stranger in strangers:
            stranger.close()
    gate[0].open(KEY)
    assert enter("127.0.0.1", gate[1], KEY, DEADLINE_S) == gate[0].store.getsockname()[1]


def test_who_says_too_much_or_goes_again_is_sent_away_and_others_come_in(gate: tuple[Gate, int]) -> None:
    made, door = gate
    with (
        socket.create_connection(("127.0.0.1", door), DEADLINE_S) as one,
        pytest.raises(ConnectionResetError),
    ):
        one.sendall(bytes(65))
        one.recv(1)
    made.open(KEY)
    for what in (bytes(1000), b"GET / HTTP/1.1\r\n\r\n", b"x"):
        with socket.create_connection(("127.0.0.1", door), DEADLINE_S, source_address=(NEIGHBOUR, 0)) as one:
            one.sendall(what)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    assert enter("127.0.0.1", door, KEY, DEADLINE_S) == made.store.getsockname()[1]
    assert not reaches(made.store, NEIGHBOUR)


def test_who_answers_a_byte_now_and_then_holds_nobody_up(listener: socket.socket) -> None:
    def trickle() -> None:
        with suppress(OSError), listener.accept()[0] as asked:
            for _ in range(66):
                asked.sendall(b"x")
                time.sleep(0.05)

    threading.Thread(target=trickle, daemon=True).start()
    # With all of it, it would be told that the key is wrong.
    with pytest.raises(NotRank0, match=r"^no answer within 0 s"):
        enter("127.0.0.1", listener.getsockname()[1], KEY, 0.4)


def test_what_listens_later_is_for_those_who_came_to_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_admitted", set())
    with meeting.listen_to_ranks("127.0.0.1") as to_all:
        assert reaches(to_all, NEIGHBOUR)
    monkeypatch.setattr(meeting, "_admitted", {"127.0.0.5"})
    with meeting.listen_to_ranks("127.0.0.1") as to_ranks:
        assert reaches(to_ranks, "127.0.0.5") and not reaches(to_ranks, NEIGHBOUR)


def test_no_stranger_reaches_a_port_before_its_filter_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """His connection would stay: the filter of what listens is not that of what has come by then."""
    listen, seen = socket.socket.listen, []

    def listens(listener: socket.socket, backlog: int) -> None:
        listen(listener, backlog)
        seen.append(reaches(listener, NEIGHBOUR))

    monkeypatch.setattr(socket.socket, "listen", listens, raising=False)
    monkeypatch.setattr(meeting, "_admitted", set())
    place = meeting.meet_at("127.0.0.1")
    with meeting._gate_of(place) as gate:
        assert gate is not None
    end(gate)
    monkeypatch.setattr(meeting, "_admitted", {"127.0.0.5"})
    meeting.listen_to_ranks("127.0.0.1").close()
    assert seen == [True, False, False]  # The gate itself, the store behind it, the mailbox.


@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.1"], ids=["its own", "behind NAT"])
def test_rank_0_reaches_its_store_within_its_machine_before_anybody_proves(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "_admitted", set())
    with meeting._gate_of(meeting.meet_at(address)) as gate:
        assert gate is not None
        to, source = meeting._way_to_oneself(gate.store)
        port = gate.store.getsockname()[1]
        socket.create_connection((to, port), 5.0, source_address=(source, 0)).close()
    end(gate)


def test_nobody_is_told_the_port_before_rank_0_answers_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more ranks than the kernel lets wait, one would seem to be kept off."""
    monkeypatch.setattr(meeting, "_admitted", set())
    place = meeting.meet_at("127.0.0.1")
    outcomes: list[str] = []

    def takes_a_while(*_: object) -> str:
        try:
            outcomes.append(f"told {enter('127.0.0.1', meeting._place_of(place)[1], KEY, 0.5)}")
        except NotRank0:
            outcomes.append("not yet")
        return "the store"

    monkeypatch.setattr(meeting, "tcp_store", takes_a_while)
    with meeting._gate_of(place) as gate:
        assert gate is not None
        assert meeting._store(place, gate, 0, 2, KEY, timedelta(seconds=DEADLINE_S)) == "the store"
        assert outcomes == ["not yet"]
        assert enter("127.0.0.1", meeting._place_of(place)[1], KEY, DEADLINE_S)
    end(gate)


def test_a_later_meeting_of_the_process_has_ranks_of_its_own() -> None:
    """One machine's has no gate: what listens later there would keep its own ranks off."""
    first = meeting.meet_at("127.0.0.1")
    with meeting._gate_of(first) as gate:
        assert gate is not None
        gate.open(KEY)
        enter("127.0.0.1", meeting._place_of(first)[1], KEY, DEADLINE_S)
    with meeting.listen_to_ranks("127.0.0.1") as to_ranks:
        assert reaches(to_ranks, "127.0.0.1") and not reaches(to_ranks, NEIGHBOUR)
    wait_for_end()
    with meeting._gate_of("file:///somewhere/ranks"), meeting.listen_to_ranks("127.0.0.1") as to_all:
        assert reaches(to_all, NEIGHBOUR)


def test_where_the_gate_keeps_nobody_off_what_listens_later_does_not_either(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no filters here")

    monkeypatch.setattr(gates, "admit", fail)
    monkeypatch.setattr(meeting, "admit", fail)
    place = meeting.meet_at("127.0.0.1")
    with meeting._gate_of(place) as gate:
        assert gate is not None
        gate.open(KEY)
        enter("127.0.0.1", meeting._place_of(place)[1], KEY, DEADLINE_S)
        assert reaches(gate.store, NEIGHBOUR)
    end(gate)
    with meeting.listen_to_ranks("127.0.0.1") as to_all:
        assert reaches(to_all, NEIGHBOUR)
    assert caplog.messages == ["rendezvous: nobody is kept off its port: the kernel can't (no filters here)"]


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


def told_by_gloo(listener: socket.socket) -> bytes:
    """As it copies out of the kernel's structure where it listens."""
    address, port = listener.getsockname()[:2]
    family = struct.pack("=H", listener.family) + struct.pack("!H", port)
    return b"its host" + family + bytes(4 * (":" in address)) + socket.inet_pton(listener.family, address)


def test_the_port_that_gloo_tells_is_closed_and_no_other_one_that_was_opened_meanwhile(
    listener: socket.socket,
) -> None:
    """As Ray, a profiler or another thread of the process may open them at any time."""
    with socket.create_server(("127.0.0.1", 0)) as gloos:
        with socket.create_connection(gloos.getsockname(), DEADLINE_S) as client, gloos.accept()[0] as served:
            num_files = len([*Path("/proc/self/fd").iterdir()])
            close_ports(told_by_gloo(gloos))
            assert len([*Path("/proc/self/fd").iterdir()]) == num_files
            client.sendall(b"x")
            assert served.recv(1) == b"x"
        assert not reaches(gloos, "127.0.0.1")
    assert reaches(listener, "127.0.0.1")


def test_a_port_stays_open_whose_file_has_the_number_of_one_that_was_closed_since(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gloos:
        seen = {listener.fileno(): gloos.getsockname()}
        monkeypatch.setattr(packet_filter, "listening", lambda: seen)
        close_ports(told_by_gloo(gloos))
    assert reaches(listener, "127.0.0.1")


def test_so_is_one_of_the_other_family() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as gloos:
        close_ports(told_by_gloo(gloos))
        assert not reaches(gloos, "::1")


def test_where_gloo_connects_at_the_first_word_its_port_stays_open(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_GLOO_LAZY_INIT", "1")
    close_ports(told_by_gloo(listener))
    assert reaches(listener, "127.0.0.1")
