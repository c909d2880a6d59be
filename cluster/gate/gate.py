"""The gate before a store where ranks meet: who does not know the group's key reaches no server of torch's.

torch's server keeps whatever anybody sends: any number of words, and 4 KB for each byte that comes alone of a
word that is not whole. No option of it bounds that. So the kernel drops what comes to its port, except from
addresses whose ranks have proved at the gate that they know the key. Only then are they told the port.

Nothing that a rank misses opens the port to more: whoever can make packets vanish could have it opened.

The kernel looks at addresses alone: other users of a rank's machine reach the port too.
"""

import logging
import os
import resource
import secrets
import selectors
import socket
import time
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from errno import EMFILE, ENFILE
from hmac import compare_digest
from operator import itemgetter
from threading import Thread

from cluster.gate.packet_filter import admit, let_all_in
from cluster.run_key import KEY_BYTES, MAC_BYTES, mac

_log = logging.getLogger(__name__)
# At most so many wait at once: a rank that is sent away comes again.
_MOST_GUESTS = 512
# Of the files that rank 0 may open: its store needs one for each rank.
_SHARE = 4
# In a flood so many are taken in each pause: a guest stays for a tenth of a second, and rank 0 gets on.
_AT_ONCE, _FLOOD_PAUSE_S = 64, 0.01
# A machine of the run may have so many ranks.
_MOST_OF_ADDRESS = 16
_TICK_S = 0.1
_MOST_NAMED = 8
# A first packet that is lost is sent again after 1 and 3 seconds. In a flood the kernel drops more of them.
_KNOCK_S, _UNREACHED_S = 5.0, 60.0
_STORE_KNOCK_S = 5.0
# Then a rank knocks again: the kernel may have dropped its connection, and says so a minute later.
_ANSWER_S = 10.0
# Of thousands of ranks that come before rank 0 is ready, most are sent away, and must not keep it busy.
_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_PORT_BYTES = 2
_WELCOME = b"\x01"
_RANK_0, _RANK = "rank 0", "a rank"
_SWITCH = "LONGHAUL_GATE"
_REMEDY = (
    f"if its address is changed on the way, another way for each port, set {_SWITCH}: 'off' in the run's "
    "environment, and nobody is kept off"
)


@dataclass(slots=True)
class _Guest:
    """Says 32 random bytes, hears 32 others and the port with a MAC, says a MAC, and is told to come in."""

    address: str
    own: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES))
    heard: bytes = b""
    is_answered: bool = False

    @property
    def nonces(self) -> bytes:
        return self.heard[:KEY_BYTES] + self.own


class Gate:
    """Rank 0's. Guests wait until ``open``. ``close`` closes this process's hold of the socket ``store`` too:
    whoever serves there has one of its own, and the same are let in to it: the ``admitted``, or all.
    """

    def __init__(
        self, store: socket.socket, door: socket.socket, admitted: Collection[str] = frozenset()
    ) -> None:
        self.store = store
        self.admitted = frozenset(admitted)
        self.is_for_all = False
        self._door = door
        self._key: bytes | None = None
        self._guests: dict[socket.socket, _Guest] = {}
        self._num_guests: Counter[str] = Counter()
        self._strangers: Counter[str] = Counter()
        self._is_over = False
        self._selector = selectors.DefaultSelector()
        num_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._share = max(1, num_files // _SHARE)
        self._admit()
        door.setblocking(False)
        self._selector.register(door, selectors.EVENT_READ)
        Thread(target=self._serve, name="gate", daemon=True).start()

    def open(self, key: bytes) -> None:
        if os.environ.get(_SWITCH) == "off":
            self._let_all_in(f"{_SWITCH} is off")
        self._key = key

    def close(self) -> None:
        self._is_over = True

    def _serve(self) -> None:
        while not self._is_over:
            for ready, _ in self._selector.select(_TICK_S):
                if ready.fileobj is self._door:
                    self._take()
                elif isinstance(ready.fileobj, socket.socket):
                    self._hear(ready.fileobj)
            # Of many, all at once: to make a filter of thousands takes a while.
            proved = [guest for guest in [*self._guests] if self._has_proved(guest)]
            addresses = {self._guests[guest].address for guest in proved}
            if not addresses <= self.admitted:
                self.admitted |= addresses
                self._admit()
            for guest in proved:
                self._say(guest, _WELCOME)
                self._send_away(guest)
        for guest in self._guests:
            guest.close()
        self._selector.close()
        self._door.close()
        self.store.close()
        if strangers := [one for one in self._strangers.most_common() if one[0] not in self.admitted]:
            named = ", ".join(f"{count} from {address}" for address, count in strangers[:_MOST_NAMED])
            _log.warning("rendezvous: connections did not prove that they know the run's key: %s", named)

    def _take(self) -> None:
        num_before = len(self._guests)
        for _ in range(_AT_ONCE):
            try:
                guest, place = self._door.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (EMFILE, ENFILE) and self._guests:
                    self._make_room()
                else:  # It has gone again.
                    time.sleep(_TICK_S / 10)
                return
            if len(self._guests) >= min(_MOST_GUESTS, self._share):
                self._make_room()
            guest.setblocking(False)
            self._guests[guest] = _Guest(place[0])
            self._num_guests[place[0]] += 1
            self._selector.register(guest, selectors.EVENT_READ)
        if len(self._guests) == num_before:
            time.sleep(_FLOOD_PAUSE_S)

    def _make_room(self) -> None:
        most, num_of_it = max(self._num_guests.items(), key=itemgetter(1))
        is_flood = num_of_it > _MOST_OF_ADDRESS
        self._send_away(
            next(one for one, known in self._guests.items() if not is_flood or known.address == most)
        )

    def _hear(self, guest: socket.socket) -> None:
        known = self._guests.get(guest)
        if known is None:  # Sent away since it was ready.
            return
        try:
            # Who says too much is heard for 0 bytes, as who has gone.
            said = guest.recv(KEY_BYTES + MAC_BYTES - len(known.heard))
        except OSError:
            said = b""
        known.heard += said
        if not said:
            self._send_away(guest)

    def _has_proved(self, guest: socket.socket) -> bool:
        known, key = self._guests[guest], self._key
        if key is None or len(known.heard) < KEY_BYTES:
            return False
        if not known.is_answered:
            known.is_answered = True
            told = known.own + self.store.getsockname()[1].to_bytes(_PORT_BYTES, "big")
            self._say(guest, told + _proof(key, _RANK_0, known.heard[:KEY_BYTES] + told))
        if len(known.heard) < KEY_BYTES + MAC_BYTES:
            return False
        if not compare_digest(known.heard[KEY_BYTES:], _proof(key, _RANK, known.nonces)):
            self._send_away(guest)
            return False
        return True

    def _say(self, guest: socket.socket, what: bytes) -> None:
        with suppress(OSError):  # It has gone: the next look at it says so.
            guest.send(what)

    def _send_away(self, guest: socket.socket) -> None:
        known = self._guests.pop(guest)
        self._num_guests[known.address] -= 1
        if not self._num_guests[known.address]:
            del self._num_guests[known.address]
        if known.address in self._strangers or len(self._strangers) < _MOST_GUESTS:
            self._strangers[known.address] += 1
        self._selector.unregister(guest)
        guest.close()

    def _admit(self) -> None:
        if not self.is_for_all:
            try:
                admit(self.store, self.admitted)
            except OSError as error:
                self._let_all_in(f"the kernel can't ({error})")

    def _let_all_in(self, why: str) -> None:
        self.is_for_all = True
        let_all_in(self.store)
        _log.warning("rendezvous: nobody is kept off its port: %s", why)


class NotRank0(Exception):
    """Who answers at the gate does not know the group's key, or nobody answers."""


class Rank0Ended(Exception):
    """Nobody listens at the gate any more."""


def enter(address: str, port: int, key: bytes, within_s: float) -> int:
    """Returns the port of the store behind the gate. Raises ``NotRank0`` and ``Rank0Ended``; ``OSError`` if
    nobody was ever reached, or nobody at the store.
    """
    end, pause_s, is_reached = time.monotonic() + within_s, _PAUSE_S, False
    unreached = end - max(0.0, within_s - _UNREACHED_S)
    source, kept_off = None, ""
    while (left_s := end - time.monotonic()) > 0:
        # Once: it may be this machine's no more, or not reach the gate.
        knocks_from, source = source, None
        try:
            with socket.create_connection((address, port), min(_KNOCK_S, left_s), knocks_from) as gate:
                is_reached = True
                store = _entered(gate, key, min(end, time.monotonic() + _ANSWER_S))
            source = _missed_from(address, store)
            if source is None:
                return store
            kept_off = f"; the gate had let it in, but port {store} did not answer: {_REMEDY}"
        except TimeoutError:
            if not is_reached and time.monotonic() >= unreached:
                raise
            continue
        except OSError as error:
            if not is_reached:
                raise
            if isinstance(error, ConnectionRefusedError):
                raise Rank0Ended(f"{error}{kept_off}") from None
            # Sent away, as many others were there.
        time.sleep(min(pause_s, left_s))
        pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
    if kept_off:
        raise TimeoutError(f"timed out{kept_off}")
    raise NotRank0(f"no answer within {within_s:.0f} s, as if rank 0 had not come: look into its log")


def _entered(gate: socket.socket, key: bytes, end: float) -> int:
    own = secrets.token_bytes(KEY_BYTES)
    gate.sendall(own)
    told, proof = _heard(gate, KEY_BYTES + _PORT_BYTES, end), _heard(gate, MAC_BYTES, end)
    if not compare_digest(proof, _proof(key, _RANK_0, own + told)):
        raise NotRank0("it does not know the run's key")
    gate.sendall(_proof(key, _RANK, own + told[:KEY_BYTES]))
    _heard(gate, len(_WELCOME), end)
    return int.from_bytes(told[KEY_BYTES:], "big")


def _missed_from(address: str, port: int) -> tuple[str, int] | None:
    """Returns None if somebody answers there, else from where this machine asked, to knock from there at the
    gate: of several addresses, the kernel may take another one for each port.
    """
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as asks:
        asks.settimeout(_STORE_KNOCK_S)
        try:
            asks.connect((address, port))
        except OSError:
            return str(asks.getsockname()[0]), 0
    return None


def _heard(gate: socket.socket, num_bytes: int, end: float) -> bytes:
    heard = b""
    while len(heard) < num_bytes:
        # Who sends a byte now and then holds nobody up for longer.
        gate.settimeout(max(0.001, end - time.monotonic()))
        if not (said := gate.recv(num_bytes - len(heard))):
            raise ConnectionResetError("sent away")
        heard += said
    return heard


def _proof(key: bytes, who: str, what: bytes) -> bytes:
    return mac(key, ("gate", who), what)
