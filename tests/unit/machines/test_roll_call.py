"""Who is at fault where ranks don't reach each other, and by which interface a machine reaches its peers."""

import json
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta
from threading import Event, Lock

import pytest

from cluster.probe import interfaces, roll_call
from cluster.probe.interfaces import NoInterface, advertised, interface_of, source_towards, towards
from cluster.probe.roll_call import (
    Card,
    Rank0Gone,
    Unmet,
    all_met,
    called,
    check_reach,
    first_of_each_place,
    who_is_unreached,
)
from cluster.probe.signed_store import SignedStore
from cluster.run_key import Refused
from jobs.execution.causes import cause_of, is_echo
from jobs.training.task.measurement import Failure

NUM_RANKS = 8
KEY = b"the run's own"


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


def test_of_one_broken_way_one_end_is_done_without() -> None:
    assert fault({0: (), 1: (3,), 2: (), 3: ()}) == (3,)
    assert fault({0: (), 1: (), 2: (), 3: (1,)}) == (3,)


def test_of_two_that_do_not_reach_each_other_one_is_done_without() -> None:
    assert fault({0: (1,), 1: (0,)}, cards("10.0.0.1", "10.0.0.2")) == (1,)


def test_that_ranks_do_not_reach_each_other_is_a_cause_of_its_own() -> None:
    problem = who_is_unreached(FOUR, {1: (3,)})
    assert cause_of(Failure(status="hang", reason=str(problem))) == "partition"


def test_where_nobody_reaches_anybody_all_are_named_however_many_they_are() -> None:
    """As behind a closed firewall. Who counted each pair for each rank would not come to an end."""
    many = [Card(rank=rank, host=f"host-{rank}", address="10.0.0.1", port=1) for rank in range(1500)]
    missed = {rank: [other for other in range(1500) if other != rank] for rank in range(1500)}
    told = {rank: roll_call._missed(json.dumps(others), missed) for rank, others in missed.items()}
    problem = who_is_unreached(many, told)
    assert problem is not None and problem.ranks == tuple(range(1500))


def test_only_numbers_of_ranks_are_taken_for_ranks_that_were_missed() -> None:
    assert roll_call._missed('[true, 1.0, "1", [], {}, 9, 1]', {0, 1}) == [1]
    assert roll_call._missed('{"1": 1}', {0, 1}) == []


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


def test_an_interface_is_left_to_gloo_whose_first_address_is_not_that_of_the_route(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(interfaces, "source_towards", lambda host: "10.0.0.1")
    for of_lo, expected in (["127.0.0.1", "10.0.0.1"], {}), (["10.0.0.1"], {"GLOO_SOCKET_IFNAME": "lo"}):
        monkeypatch.setattr(interfaces, "interfaces", lambda found=of_lo: {"lo": found})
        assert towards("somewhere") == expected


class Store:
    """As torch's, in this process; counts what is read."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.num_read = 0
        self._lock = Lock()

    def set(self, name: str, value: str | bytes) -> None:
        self.held[name] = value.encode() if isinstance(value, str) else value

    def get(self, name: str) -> bytes:
        self.num_read += 1
        return self.held[name]

    def add(self, name: str, amount: int) -> int:
        with self._lock:
            self.held[name] = str(int(self.held.get(name, b"0")) + amount).encode()
            return int(self.held[name])

    def check(self, names: Sequence[str]) -> bool:
        return all(name in self.held for name in names)

    def clone(self) -> "Store":
        again = Store()
        again.held = self.held
        return again


def signed(store: Store, *, is_open: bool = True) -> SignedStore:
    return SignedStore(store, KEY, "10.0.0.1:7", is_open=is_open)


def at_the_roll_call(store: Store, of_all: Sequence[Card]) -> list[Sequence[Card] | Unmet]:
    def one(card: Card) -> Sequence[Card] | Unmet:
        own = signed(store)
        try:
            cards = called(own, card, len(of_all), within_s=30)
            check_reach(own, card, cards)
        except Unmet as error:
            return error
        return cards

    with ThreadPoolExecutor(len(of_all)) as pool:
        return list(pool.map(one, of_all))


def test_each_answer_is_read_once_from_the_store_and_once_by_each_rank_with_all_others() -> None:
    store, of_all = Store(), [Card(rank=rank, host=f"host-{rank}") for rank in range(NUM_RANKS)]
    assert at_the_roll_call(store, of_all) == [of_all] * NUM_RANKS
    # The cards, and how the others get them and learn that nobody has an address.
    assert store.num_read == NUM_RANKS + 2 * (NUM_RANKS - 1)


def test_rank_0_asks_for_all_words_once_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask for thousands of names takes long."""

    class Asked(Store):
        num_asked = num_paused = 0

        def check(self, names: Sequence[str]) -> bool:
            self.num_asked += names == ["longhaul/card/0", "longhaul/card/1"]
            return super().check(names)

        def pause(self, _: float) -> None:
            self.num_paused += 1
            assert self.num_paused <= 3
            if self.num_paused == 3:
                self.add("longhaul/card/num", 1)

    store, both = Asked(), [Card(rank=rank, host="a") for rank in (0, 1)]
    monkeypatch.setattr(time, "sleep", store.pause)
    signed(store).set("longhaul/card/1", json.dumps(asdict(both[1])))
    assert called(signed(store), both[0], 2, within_s=30) == both
    assert (store.num_asked, store.num_paused) == (1, 3)


def test_whoever_connects_is_let_in_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_call, "_BACKLOG", 4)
    monkeypatch.setattr(roll_call, "_REACH_S", 5.0)
    with roll_call._open_port(0, "127.0.0.1") as port:
        for _ in range(20):
            socket.create_connection(("127.0.0.1", port), 5.0).close()
        [waiting] = [thread for thread in threading.enumerate() if thread.name == "roll call"]
    waiting.join(timeout=30)
    assert not waiting.is_alive()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), 5.0)


def test_machines_of_one_name_are_tried_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_call, "_reaches", lambda own, card: False)
    same = [
        Card(rank=rank, host="worker", address=f"10.0.0.{rank}", interface="eth0", port=1) for rank in (0, 1)
    ]
    found = at_the_roll_call(Store(), same)
    assert [error.ranks for error in found if isinstance(error, Unmet)] == [(1,)] * 2


def test_an_address_that_is_not_there_is_no_traceback() -> None:
    with (
        pytest.raises(Unmet, match=r"^rank 3: nobody can listen at 192\.0\.2\.7 "),
        roll_call._open_port(3, "192.0.2.7"),
    ):
        pass


@pytest.mark.parametrize(
    "change",
    [
        {"port": 10**9},
        {"port": float("inf")},
        {"host": None, "address": 7.5},
        {"address": "fe80::1%\x1b[2J"},
        {"address": f"fe80::1%{'a' * 200}"},
        None,
    ],
)
def test_what_no_rank_says_of_itself_is_told_as_that(change: dict[str, object] | None) -> None:
    card = asdict(Card(rank=1, host="b", address="10.0.0.1", interface="eth0", port=1))
    text = json.dumps(card | change) if change else "[" * 100_000
    with pytest.raises(Unmet, match=r"^rank 1 says what no rank does"):
        roll_call._card(1, text)


def test_an_address_of_one_link_names_its_interface() -> None:
    card = Card(rank=1, host="b", address="fe80::1%eth0.7", interface="eth0.7", port=1)
    assert roll_call._card(1, json.dumps(asdict(card))) == card


def test_an_address_that_is_no_name_of_a_host_is_not_reached() -> None:
    own, other = cards("10.0.0.1", f"fe80::1%{'a' * 200}")
    assert not roll_call._reaches(own, other)


class Spoilt(Store):
    """A stranger wrote a text where ranks are counted: torch's store then ends the connection."""

    is_lost = False
    is_server_there = True

    def add(self, name: str, amount: int) -> int:
        self.is_lost = True
        return self._fail()

    def check(self, names: Sequence[str]) -> bool:
        return self._fail() if self.is_lost else super().check(names)

    def set_timeout(self, timeout: timedelta) -> None:
        """Nothing waits."""

    def clone(self) -> Store:
        if not self.is_server_there:
            self._fail()
        return super().clone()

    def _fail(self) -> int:
        raise RuntimeError("Failed to recv, got 0 bytes")


@pytest.fixture
def no_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_call, "_LINGER_S", 0.0)


@pytest.mark.usefixtures("no_lingering")
@pytest.mark.parametrize(("rank", "who"), [(0, "rank 0"), (1, "rank 1 on .*")])
def test_where_a_stranger_spoilt_the_count_each_rank_says_so_and_blames_nobody(rank: int, who: str) -> None:
    with pytest.raises(Unmet, match=rf"^{who} cannot read what ranks tell \(Failed to recv") as found:
        all_met(signed(Spoilt()), rank, 2, of_one_machine=True, within_s=30)
    assert found.value.ranks == ()


@pytest.mark.usefixtures("no_lingering")
def test_what_rank_0_says_of_it_is_what_the_others_say() -> None:
    store = Spoilt()
    with pytest.raises(Unmet) as of_rank_0:
        all_met(signed(store), 0, 2, of_one_machine=True, within_s=30)
    store.is_lost = False
    with pytest.raises(Unmet) as of_rank_1:
        all_met(signed(store), 1, 2, of_one_machine=True, within_s=30)
    assert str(of_rank_1.value) == str(of_rank_0.value)


@pytest.mark.usefixtures("no_lingering")
def test_where_rank_0_is_gone_the_others_only_echo_it() -> None:
    store = Spoilt()
    store.is_server_there = False
    with pytest.raises(
        Rank0Gone, match=r"^rank 1 on .*: connection closed, and rank 0's store does"
    ) as found:
        all_met(signed(store), 1, 2, of_one_machine=True, within_s=30)
    assert is_echo(f"Rank0Gone: {found.value}")


STRANGER = (
    "somebody else writes to the rendezvous at 10.0.0.1:7: words of ranks are changed or gone; keep others "
    "off the network between the machines"
)


def said_by(store: Store, rank: int, within_s: float = 30) -> tuple[str, tuple[int, ...]]:
    with pytest.raises(Unmet) as found:
        all_met(signed(store), rank, 2, of_one_machine=True, within_s=within_s)
    return str(found.value), found.value.ranks


@pytest.mark.usefixtures("no_lingering")
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("key", [None, b"his own"])
def test_a_stranger_who_ends_the_roll_call_blames_nobody(key: bytes | None, rank: int) -> None:
    store, word = Store(), json.dumps(["the disk of host-1 is broken", [1]])
    if key is None:
        store.set("longhaul/over", word)
    else:
        SignedStore(store, key, "", is_open=True).set("longhaul/over", word)
    assert said_by(store, rank) == (STRANGER, ())


@pytest.mark.usefixtures("no_lingering")
def test_a_word_of_a_rank_counts_in_no_other_place() -> None:
    store = Store()
    signed(store).set("longhaul/reach/1", json.dumps(["the disk of host-1 is broken", [1]]))
    store.held["longhaul/over"] = store.held["longhaul/reach/1"]
    assert said_by(store, 0) == (STRANGER, ())


@pytest.mark.usefixtures("no_lingering")
def test_what_a_rank_gave_up_for_is_what_the_others_say() -> None:
    store = Store()
    signed(store).set("longhaul/over", json.dumps(["rank 1 did\x1b not come", [1]]))
    assert said_by(store, 0) == ("rank 1 did not come", (1,))


@pytest.mark.usefixtures("no_lingering")
def test_what_the_first_rank_gave_up_for_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks say the same."""

    def nowhere() -> tuple[str, str]:
        raise NoInterface("eth7 is not there")

    monkeypatch.setattr(roll_call, "advertised", nowhere)
    store = Store()
    for rank, told in (1, "rank 1: eth7 is not there"), (0, "rank 0: eth7 is not there"):
        with pytest.raises(Unmet, match=told):
            all_met(signed(store), rank, 2, of_one_machine=False, within_s=30)
    assert json.loads(signed(store).get("longhaul/over")) == ["rank 1: eth7 is not there", [1]]


@pytest.mark.usefixtures("no_lingering")
@pytest.mark.parametrize("ranks", [[-1], [0, -1_000_000], [2], ["x"], [1.5e300]])
def test_no_rank_that_is_not_there_is_blamed(ranks: list[object]) -> None:
    store = Store()
    signed(store).set("longhaul/over", json.dumps(["the disk of host-7 is broken", ranks]))
    assert said_by(store, 0) == ("a rank gave up meeting the others, and does not say why", ())


@pytest.mark.usefixtures("no_lingering")
def test_a_stranger_who_overwrites_a_card_blames_nobody() -> None:
    store, card = Store(), asdict(Card(rank=1, host="his"))
    store.set("longhaul/card/1", json.dumps(card | {"port": -1}))
    store.add("longhaul/card/num", 1)
    assert said_by(store, 0) == (STRANGER, ())
    assert said_by(store, 1) == (STRANGER, ())


@pytest.mark.usefixtures("no_lingering")
@pytest.mark.parametrize(("rank", "outcome"), [(0, Unmet), (1, Rank0Gone)])
def test_who_has_the_port_of_a_rank_0_that_is_gone_and_never_answers_holds_nobody_up(
    rank: int, outcome: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    over, is_held_up = Event(), []

    class Silent(Spoilt):
        def clone(self) -> Store:
            is_held_up.append(not over.wait(30.0))
            return super().clone()

    monkeypatch.setattr(roll_call, "_ASKING_S", 0.1, raising=False)
    with pytest.raises(outcome):
        all_met(signed(Silent()), rank, 2, of_one_machine=True, within_s=30)
    assert not is_held_up
    over.set()


@pytest.mark.usefixtures("no_lingering")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_whose_card_is_deleted_says_so(rank: int) -> None:
    class Deleting(Store):
        def set(self, name: str, value: str | bytes) -> None:
            super().set(name, value)
            self.held.pop(f"longhaul/card/{rank}", None)

    assert said_by(Deleting(), rank) == (STRANGER, ())


def test_a_rank_looks_after_its_words_by_another_connection_too() -> None:
    store = Store()
    first = signed(store)
    first.set("longhaul/card/1", "")
    again = first.clone()
    again.check_own()
    del store.held["longhaul/card/1"]
    with pytest.raises(Refused):
        again.check_own()


@pytest.mark.usefixtures("no_lingering")
def test_only_rank_0_knows_who_did_not_come_where_others_may_delete() -> None:
    """To the others a card may be missing whose rank has met, and looks after it no more."""
    came = r"^rank . did not come within 0 s; 1 of 2 ranks came"
    for rank, is_open, blamed in ((0, True, (1,)), (1, True, ()), (1, False, (0,))):
        with pytest.raises(Unmet, match=came) as found:
            called(signed(Store(), is_open=is_open), Card(rank=rank, host="a"), 2, within_s=0.0)
        assert found.value.ranks == blamed


@pytest.mark.usefixtures("no_lingering")
def test_only_rank_0_knows_who_did_not_say_whom_it_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_call, "connecting_s", lambda num_ranks: 0.0)
    monkeypatch.setattr(roll_call, "_REACH_S", 0.0)
    monkeypatch.setattr(roll_call, "_reaches", lambda own, card: True)
    both = cards("10.0.0.1", "10.0.0.2")
    for rank, blamed in ((0, (1,)), (1, ())):
        with pytest.raises(Unmet, match="and did not say within") as found:
            check_reach(signed(Store()), both[rank], both)
        assert found.value.ranks == blamed


@pytest.mark.usefixtures("no_lingering")
def test_no_rank_gives_up_before_rank_0_has_tried_all_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be told that nobody is to blame, though rank 0 can say who did not answer."""
    ends: dict[int, float] = {}
    together = cards(*(f"10.0.0.{number}" for number in range(65)))

    def waited(store: SignedStore, kind: str, rank: int, *_: object) -> list[str]:
        ends[rank] = clock[rank] + float(str(_[-1]))
        return ["[]"] * 65

    monkeypatch.setattr(roll_call, "_shared", waited)
    monkeypatch.setattr(roll_call, "_unreached", lambda own, firsts: [])
    # Of 64 others, 32 at once, each takes ten seconds; a rank that tries nobody begins to wait at once.
    clock = {0: 20.0, 1: 0.0}
    for rank in clock:
        check_reach(signed(Store()), together[rank], together)
    assert ends[1] >= ends[0]


def test_a_stranger_who_lowers_the_count_keeps_nobody_from_meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    store, both = Store(), [Card(rank=rank, host="a") for rank in (0, 1)]
    store.add("longhaul/card/num", -100)
    signed(store).set("longhaul/card/1", json.dumps(asdict(both[1])))
    assert called(signed(store), both[0], 2, within_s=0.0) == both


class Leaving(Spoilt):
    """Says for how long the first connection waits before another one is made of it."""

    waits_s = None

    def set_timeout(self, timeout: timedelta) -> None:
        self.waits_s = timeout.total_seconds()


@pytest.mark.usefixtures("no_lingering")
def test_another_connection_is_waited_for_only_as_long_as_a_connection_may_take() -> None:
    """And not as long as a collective, which is what torch's store was told for ranks to come."""
    store = Leaving()
    with pytest.raises(Unmet):
        all_met(signed(store), 1, 2, of_one_machine=True, within_s=30)
    assert store.waits_s == roll_call._REACH_S


def test_a_stranger_who_raises_the_count_lets_nobody_seem_there() -> None:
    """torch's store waits without a word for what is not there."""
    store = Store()
    store.add("longhaul/card/num", 100)
    with pytest.raises(Unmet, match=r"^rank 1 did not come within 0 s"):
        called(signed(store), Card(rank=0, host="a"), 2, within_s=0.0)


def test_loopback_is_reached_on_the_same_machine_alone() -> None:
    own = Card(rank=0, host="a", address="127.0.0.1", interface="lo")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        beside, elsewhere = (
            Card(rank=1, host=host, address="127.0.0.1", interface="lo", port=port) for host in "ab"
        )
        assert roll_call._reaches(own, beside)
        assert not roll_call._reaches(own, elsewhere)


def test_what_a_rank_says_is_passed_on_up_to_a_bound() -> None:
    store = Store()
    signed(store).set("longhaul/card/1", json.dumps(asdict(Card(rank=1, host="b" * 2**20))))
    with pytest.raises(Unmet, match=r"^rank 1 says what no rank does"):
        called(signed(store), Card(rank=0, host="a"), 2, within_s=0.0)
    assert len(store.held["longhaul/card/all"]) < 2**20 + 2**17


def test_nothing_that_a_rank_says_of_itself_ends_a_line_of_a_log_or_clears_a_screen() -> None:
    store, his = Store(), Card(rank=1, host="b\n\x1b[2J", address="10.0.0.1", interface="eth0\r")
    signed(store).set("longhaul/card/1", json.dumps(asdict(his)))
    cards = called(signed(store), Card(rank=0, host="a"), 2, within_s=0.0)
    assert str(cards[1]) == "rank 1 on b[2J: 10.0.0.1 by eth0"


@pytest.mark.parametrize("told", ["{}", "[]", '["a", 1]', '["a", "b", "c"]', "nothing"])
def test_what_rank_0_passes_on_is_a_text_of_each_rank(told: str) -> None:
    store = Store()
    signed(store).set("longhaul/card/all", told)
    with pytest.raises(Unmet, match=r"^rank 0 says what no rank does"):
        called(signed(store), Card(rank=1, host="b"), 2, within_s=0.0)


def test_rank_0_who_knows_most_gives_up_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: dict[int, float] = {}
    monkeypatch.setattr(roll_call, "_LINGER_S", 1000.0)
    for rank in (0, 1):

        def waited(store: SignedStore, is_there: object, end: float, num_ranks: int, who: int = rank) -> bool:
            ends[who] = end
            return False

        monkeypatch.setattr(roll_call, "_until", waited)
        with pytest.raises(Unmet):
            called(signed(Store()), Card(rank=rank, host="a"), 2, within_s=0.0)
    assert ends[1] - ends[0] >= 1000.0
