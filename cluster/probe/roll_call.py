"""The roll call of a group's ranks before they connect: who came, and who reaches whom.

gloo and NCCL wait for a rank that they can't reach until a timeout of theirs, and then name nobody. So each
rank first leaves a card in the store where they meet. On several machines it then tries to connect to one
rank of each other machine, at the address that gloo will use. All ranks read the same answers, so they all
say the same.

Whoever reaches the store may write to it. So words carry a MAC, and a rank is only blamed for its absence by
rank 0, which comes first: each other rank sees soon if a word of its own is gone.
"""

import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from ipaddress import ip_address
from itertools import chain
from math import ceil
from threading import Event, Thread, Timer

from cluster.probe.broken_ways import ends_to_leave
from cluster.probe.interfaces import NoInterface, advertised
from cluster.probe.signed_store import SignedStore, in_time
from cluster.run_key import Refused

# Ranks come when they have imported torch, from a slow disk too. Their driver gives up a little later.
COMING_S = 240.0
# What connecting takes at most: a minute or two, longer with more ranks.
_CONNECTING_S, _CONNECTING_PER_RANK_S = 120.0, 0.5
# The kernel accepts, however busy the process is.
_REACH_S = 10.0
_AT_ONCE = 32
_BACKLOG = 1024
_MOST_NAMED = 8
_MOST_WEIGHED = 4096
_MOST_INTERFACE_CHARS = 15
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.5
_LINGER_S = 4 * _LONGEST_PAUSE_S
# torch's client tries twice, and pauses for as long.
_ASKING_S = 3 * _REACH_S + _LINGER_S
_CARD, _REACH, _OVER = "card", "reach", "longhaul/over"
# The numbers of a hundred thousand ranks.
_MOST_TOLD_BYTES = 2**20
# What strangers write may be anything.
_NOT_AS_EXPECTED = (ValueError, TypeError, KeyError, OverflowError, RecursionError)
REMEDY = (
    "name the interface between the nodes (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME), and open all ports "
    "between them: ranks use ports of the kernel's choice (net.ipv4.ip_local_port_range)"
)
KEEP_OFF = "keep others off the network between the machines"


class Unmet(Exception):
    """The ranks did not meet. ``ranks`` are those at fault."""

    def __init__(self, text: str, ranks: Sequence[int]) -> None:
        super().__init__(text)
        self.ranks = tuple(ranks)


class Rank0Gone(RuntimeError):
    """The store of rank 0 has ended, as it does with rank 0's process: what ended that one is the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a rank says of itself. ``address`` and ``interface`` are empty where gloo chooses them itself."""

    rank: int
    host: str
    address: str = ""
    interface: str = ""
    port: int = 0

    def __str__(self) -> str:
        at = f": {self.address} by {self.interface}" if self.address else ""
        return f"rank {self.rank} on {self.host}{at}"

    @property
    def place(self) -> tuple[str, str]:
        return self.host, self.address


def connecting_s(num_ranks: int) -> float:
    return _CONNECTING_S + _CONNECTING_PER_RANK_S * num_ranks


def all_met(
    store: SignedStore, rank: int, num_ranks: int, *, of_one_machine: bool, within_s: float
) -> list[Card]:
    """Returns the cards of all ranks once they came and reach each other. Every rank calls this.

    Raises ``Unmet``, with the same text on all ranks that came by then, and ``Rank0Gone``.
    """
    try:
        return _told_if_disturbed(store, rank, num_ranks, of_one_machine, within_s)
    except Unmet as problem:
        text = json.dumps([str(problem), problem.ranks])
        with suppress(RuntimeError):  # Rank 0 is gone.
            in_time(lambda: _tell(store, text), _ASKING_S)
        if rank == 0:
            # The store may be this process's, and ends with what follows: others read it first.
            time.sleep(_LINGER_S)
        raise


def _tell(store: SignedStore, problem: str) -> None:
    answering = _answering(store)
    if not answering.check([_OVER]):
        answering.set(_OVER, problem)


def _told_if_disturbed(
    store: SignedStore, rank: int, num_ranks: int, of_one_machine: bool, within_s: float
) -> list[Card]:
    try:
        return _told_if_lost(store, rank, num_ranks, of_one_machine, within_s)
    except Refused:
        raise stranger_wrote(store.place) from None


def stranger_wrote(place: str) -> Unmet:
    # Which word it was differs between ranks, who all say the same.
    text = f"somebody else writes to the rendezvous at {place}: words of ranks are changed or gone"
    return Unmet(f"{text}; {KEEP_OFF}", [])


def _told_if_lost(
    store: SignedStore, rank: int, num_ranks: int, of_one_machine: bool, within_s: float
) -> list[Card]:
    """Meets. Raises ``Unmet`` too if the store ends this rank's connection, and ``Rank0Gone`` if it has ended
    itself.
    """
    try:
        return _met(store, rank, num_ranks, of_one_machine, within_s)
    except (RuntimeError, ValueError) as error:  # torch's ``DistError`` is the first.
        here = f"rank {rank} on {socket.gethostname()}" if rank else "rank 0"
        if rank:
            try:
                # Rank 0 meets the same, and tells of it before it ends. Whoever has its port by then need not
                # answer.
                in_time(
                    lambda: _until(_answering(store), lambda: False, time.monotonic() + _LINGER_S, num_ranks),
                    _ASKING_S,
                )
            except RuntimeError:
                raise Rank0Gone(
                    f"{here}: connection closed, and rank 0's store does not answer any more ({error}); look "
                    "into rank 0's log"
                ) from None
        raise Unmet(
            f"{here} cannot read what ranks tell ({error}): another process may have written in their place; "
            f"{KEEP_OFF}",
            [],
        ) from None


def _answering(store: SignedStore) -> SignedStore:
    """Returns the store, or another connection to it: torch's server ends that of a rank which asks for what
    somebody else spoilt. Raises ``RuntimeError`` if no server answers.
    """
    try:
        store.check([_OVER])
    except RuntimeError:
        store.set_timeout(timedelta(seconds=_REACH_S))
        return store.clone()
    return store


def _met(store: SignedStore, rank: int, num_ranks: int, of_one_machine: bool, within_s: float) -> list[Card]:
    host = socket.gethostname()
    if of_one_machine:
        return called(store, Card(rank=rank, host=host), num_ranks, within_s)
    try:
        interface, address = advertised()
    except NoInterface as error:
        raise Unmet(f"rank {rank}: {error}", [rank]) from None
    if not address:
        return called(store, Card(rank=rank, host=host), num_ranks, within_s)
    with _open_port(rank, address) as port:
        own = Card(rank=rank, host=host, address=address, interface=interface, port=port)
        cards = called(store, own, num_ranks, within_s)
        check_reach(store, own, cards)
    return cards


@contextmanager
def _open_port(rank: int, address: str) -> Iterator[int]:
    """Inside, whoever connects to this port is sent away at once: the kernel's queue holds only so many."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, 0), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise Unmet(f"rank {rank}: nobody can listen at {address} ({error}); {REMEDY}", [rank]) from None
    is_over = Event()
    try:
        Thread(target=_let_in, args=[listener, is_over], name="roll call", daemon=True).start()
        yield int(listener.getsockname()[1])
    finally:
        is_over.set()
        with suppress(OSError):
            # To close it would not wake the thread.
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _let_in(listener: socket.socket, is_over: Event) -> None:
    while not is_over.is_set():
        try:
            listener.accept()[0].close()
        except OSError:  # Whoever came has gone again, or this process may open no more files at the moment.
            is_over.wait(_FIRST_PAUSE_S)


def called(store: SignedStore, own: Card, num_ranks: int, within_s: float) -> list[Card]:
    """Returns the cards of all ranks, rank 0's first. Every rank calls this.

    Raises ``Unmet``, and ``Refused`` if a stranger wrote or deleted.
    """
    told = _shared(store, _CARD, own.rank, asdict(own), range(num_ranks), num_ranks, within_s)
    if told is None:
        there = [rank for rank in range(num_ranks) if store.check([_name(_CARD, rank)])]
        first = [_card(rank, store.get(_name(_CARD, rank))) for rank in there[:_MOST_NAMED]]
        raise _known_to(own.rank, store, _who_is_missing(there, first, num_ranks, within_s))
    return [_card(rank, text) for rank, text in enumerate(told)]


def _known_to(rank: int, store: SignedStore, problem: Unmet) -> Unmet:
    """Returns the problem, which blames nobody unless ``rank`` can know whose word was never there. Of other
    ranks, those who told it may not look after it any more when a stranger deletes it.
    """
    return problem if rank == 0 or not store.is_open else Unmet(str(problem), [])


def check_reach(store: SignedStore, own: Card, cards: Sequence[Card]) -> None:
    """Every rank calls this while its port is open. Raises ``Unmet`` on all of them, or ``Refused``."""
    firsts = [card for card in first_of_each_place(cards) if card.address]
    missed_here = None
    if own in firsts:
        missed_here = [card.rank for card in _unreached(own, firsts)]
    ranks, within_s = [card.rank for card in firsts], connecting_s(len(cards))
    # Rank 0 tries all others first, and it alone knows who is missing: none may give up before it.
    trying_s = 0.0 if own.rank == 0 else _REACH_S * ceil(len(firsts) / _AT_ONCE)
    told = _shared(store, _REACH, own.rank, missed_here, ranks, len(cards), within_s + trying_s)
    if told is None:
        silent = [card for card in firsts if not store.check([_name(_REACH, card.rank)])] or firsts[:1]
        named = "; ".join(map(str, silent[:_MOST_NAMED]))
        text = f"{named}: came, and did not say within {within_s:.0f} s whom it reaches; {REMEDY}"
        raise _known_to(own.rank, store, Unmet(text, [card.rank for card in silent]))
    known = frozenset(ranks)
    missed = {rank: _missed(text, known) for rank, text in zip(ranks, told, strict=True)}
    if problem := who_is_unreached(firsts, missed):
        raise problem


def _shared(
    store: SignedStore,
    kind: str,
    rank: int,
    told: object,
    ranks: Sequence[int],
    num_ranks: int,
    within_s: float,
) -> list[str] | None:
    """Returns what ``ranks`` tell as ``kind``; None if one does not in time. First, this rank tells ``told``,
    if that is not None. Rank 0 collects for all, so that the store is asked once for each answer.

    Raises ``Unmet`` if another rank has given up meanwhile, and ``Refused`` if a stranger wrote or deleted.
    """
    names, counter, all_of_them = [_name(kind, one) for one in ranks], _name(kind, "num"), _name(kind, "all")
    if told is not None:
        store.set(_name(kind, rank), json.dumps(told))
        store.add(counter, 1)
    end = time.monotonic() + within_s
    if rank == 0:
        # One number is cheap to ask for, a thousand names are not. But anybody may have lowered it.
        if not _until(
            store, lambda: store.add(counter, 0) >= len(names) and store.check(names), end, num_ranks
        ) and not store.check(names):
            return None
        found = [store.get(name)[:_MOST_TOLD_BYTES].decode(errors="replace") for name in names]
        store.set(all_of_them, json.dumps(found))
        return found
    # Rank 0 knows best who is missing.
    if not _until(store, lambda: store.check([all_of_them]), end + _LINGER_S, num_ranks):
        return None
    collected = _parsed(store.get(all_of_them))
    if not isinstance(collected, list) or [type(one) for one in collected] != [str] * len(names):
        raise _impostor(0)
    return collected


def _until(store: SignedStore, is_there: Callable[[], bool], end: float, num_ranks: int) -> bool:
    pause_s = _FIRST_PAUSE_S
    while not is_there():
        if store.check([_OVER]):
            raise _told(store, num_ranks)
        store.check_own()
        if time.monotonic() > end:
            return False
        time.sleep(pause_s)
        pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
    return True


def first_of_each_place(cards: Sequence[Card]) -> list[Card]:
    firsts: dict[tuple[str, str], Card] = {}
    for card in cards:
        firsts.setdefault(card.place, card)
    return [*firsts.values()]


def who_is_unreached(firsts: Sequence[Card], missed: Mapping[int, Sequence[int]]) -> Unmet | None:
    """Says who reaches whom. ``missed`` are the ranks that each rank of ``firsts`` did not reach.

    A rank that more than half of the others miss, or that misses more than half of them, is at fault. Without
    such a rank those are, without whom all others reach each other, as ``ends_to_leave`` says.
    """
    pairs = [(rank, other) for rank, others in missed.items() for other in others]
    if not pairs:
        return None
    by_rank = {card.rank: card for card in firsts}
    most, times_missed = (len(firsts) - 1) / 2, Counter(other for _, other in pairs)
    at_fault = [rank for rank in by_rank if max(times_missed[rank], len(missed.get(rank, ()))) > most]
    # Of two machines each misses the other, or only one is known to be wrong: it has loopback to offer.
    loopback = [rank for rank, card in by_rank.items() if card.address and _is_loopback(card.address)]
    # Of very many pairs, to weigh them would take too long.
    ends = ends_to_leave(pairs) if len(pairs) <= _MOST_WEIGHED else {*chain(*pairs)}
    ranks = loopback or (at_fault if len(at_fault) < len(firsts) else []) or sorted(ends)
    ways = [f"{by_rank[rank]} does not reach {by_rank[other]}" for rank, other in pairs[:_MOST_NAMED]]
    more = f", and {len(pairs) - len(ways)} more ways" if len(pairs) > len(ways) else ""
    return Unmet(f"{'; '.join(ways)}{more}; {REMEDY}", ranks)


@contextmanager
def told_if_late(cards: Sequence[Card], limit_s: float, tell: Callable[[Unmet], None]) -> Iterator[None]:
    """Inside, ranks connect. ``tell`` is called in another thread if that takes longer than ``limit_s``."""
    named = "; ".join(map(str, first_of_each_place(cards)[:_MOST_NAMED]))
    problem = Unmet(
        f"all {len(cards)} ranks came, and did not connect within {limit_s:.0f} s ({named}); {REMEDY}",
        [card.rank for card in cards],
    )
    timer = Timer(limit_s, tell, [problem])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _who_is_missing(there: Sequence[int], first: Sequence[Card], num_ranks: int, within_s: float) -> Unmet:
    # If all are there, rank 0 has not collected what they say.
    missing = sorted({*range(num_ranks)} - {*there}) or [0]
    return Unmet(
        f"{_ranks(missing)} did not come within {within_s:.0f} s; {len(there)} of {num_ranks} ranks came "
        f"({'; '.join(map(str, first))}); look into the logs of the missing, and {REMEDY}",
        missing,
    )


def _ranks(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:_MOST_NAMED])) + (" and more" if len(ranks) > _MOST_NAMED else "")
    return f"rank {named}" if len(ranks) == 1 else f"ranks {named}"


def _unreached(own: Card, firsts: Sequence[Card]) -> list[Card]:
    others = [card for card in firsts if card.place != own.place]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(lambda card: _reaches(own, card), others))
    return [card for card, is_reached in zip(others, answers, strict=True) if not is_reached]


def _reaches(own: Card, card: Card) -> bool:
    # Each machine reaches its own loopback, and with it whoever listens there.
    if card.host != own.host and _is_loopback(card.address):
        return False
    try:
        socket.create_connection((card.address, card.port), _REACH_S).close()
    except (OSError, ValueError):  # A text that no name of a host can be.
        return False
    return True


def _is_loopback(address: str) -> bool:
    return ip_address(address).is_loopback


def _card(rank: int, text: str | bytes) -> Card:
    """Reads what another process wrote, which may be a stranger's."""
    try:
        told = json.loads(text)
        address = _address(told["address"]) if told["address"] else ""
        host, interface = (_printable(told[name]) for name in ("host", "interface"))
        port = int(told["port"])
    except _NOT_AS_EXPECTED:
        raise _impostor(rank) from None
    if not 0 <= port < 2**16:
        raise _impostor(rank)
    return Card(rank=rank, host=host, address=address, interface=interface, port=port)


def _address(told: str | int) -> str:
    address = ip_address(told)
    # Any text may stand behind the ``%`` of IPv6, where the kernel's names of interfaces are short.
    scope = getattr(address, "scope_id", None) or ""
    if not scope.isprintable() or len(scope) > _MOST_INTERFACE_CHARS:
        raise ValueError(f"an interface {scope!r}")
    return str(address)


def _missed(text: str, ranks: Collection[int]) -> list[int]:
    told = _parsed(text)
    return [one for one in told if type(one) is int and one in ranks] if isinstance(told, list) else []


def _told(store: SignedStore, num_ranks: int) -> Unmet:
    """Returns what another rank gave up for."""
    with suppress(*_NOT_AS_EXPECTED):
        text, told = json.loads(store.get(_OVER))
        ranks = [int(rank) for rank in told]
        # Others would blame the wrong host: the driver looks up by them where the ranks are.
        if all(0 <= rank < num_ranks for rank in ranks):
            return Unmet(_printable(text), ranks)
    return Unmet("a rank gave up meeting the others, and does not say why", [])


def _impostor(rank: int) -> Unmet:
    return Unmet(f"rank {rank} says what no rank does: another process is in its place", [rank])


def _parsed(text: str | bytes) -> object:
    try:
        return json.loads(text)
    except _NOT_AS_EXPECTED:
        return None


def _printable(text: object) -> str:
    return "".join(letter for letter in str(text) if letter.isprintable())


def _name(kind: str, what: int | str) -> str:
    return f"longhaul/{kind}/{what}"
