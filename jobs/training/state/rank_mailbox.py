"""Messages between ranks that need no collective: torch's small store server, which runs in rank 0.

The first rank of each other host has one for its host's ranks, on loopback: what they tell it never comes to
rank 0's machine.

The server does not authenticate its clients and lists its names for everybody. So each message carries a MAC
with the run's key over its name, sender, receiver and content. A message without a valid MAC is refused: the
log names it, and the message counts as not written. Anybody who can connect to the server can still delete
messages; then a save is dropped, as if a rank had been too slow.
"""

import logging
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

from checkpointing.saving.publishing.leading import Host, led_hosts
from checkpointing.saving.save import SaveFailed
from cluster.gate.packet_filter import admit
from cluster.probe.meeting import listen_at, listen_to_ranks, tcp_store
from cluster.probe.signed_store import in_time
from cluster.run_key import Refused, new_key, read, sign
from jobs.training.ranks.gathering import from_rank_0, gather
from jobs.training.task.context import Context

_log = logging.getLogger(__name__)
_CONNECT_TIMEOUT = timedelta(seconds=120)
# torch's server takes no more than this in one message.
_MOST_BYTES = 2**23 - 2**10
# A leader on this machine answers at once.
_LEADER_WITHIN_S = 10.0
_LOOPBACK, _ANYWHERE = "127.0.0.1", ""


class RankMailbox:
    """See ``checkpointing.saving.save.Mailbox``. Used by one thread of each rank."""

    def __init__(self, store: Any, context: Context, key: bytes) -> None:
        self._store = store
        self._rank = context.rank
        self._world_size = context.world_size
        self._key = key

    def post(self, name: str, value: bytes, *, to: int) -> None:
        if len(value) > _MOST_BYTES:
            raise SaveFailed(f"{name}: {len(value)} bytes for rank {to}, expected at most {_MOST_BYTES}")
        self._store.set(name, sign(self._key, (name, self._rank, to), value))

    def take(self, name: str, timeout_s: float, *, sender: int) -> bytes | None:
        end = time.monotonic() + timeout_s
        is_logged = False
        while (message := self._next(name, end)) is not None:
            try:
                return self._read(name, sender, message)
            except Refused as error:
                # Log one line per call: a stranger may write a thousand messages a second.
                if not is_logged:
                    _log.warning("mailbox: %s: a message as of rank %d is refused: %s", name, sender, error)
                is_logged = True
            if time.monotonic() > end:
                break
        return None

    def discard(self, name: str) -> bool:
        try:
            return bool(self._store.delete_key(name))
        except RuntimeError:
            # The server is gone, and what it kept with it.
            return False

    def _read(self, name: str, sender: int, message: bytes) -> bytes:
        if not 0 <= sender < self._world_size:
            raise Refused(f"there are ranks 0 to {self._world_size - 1}")
        return read(self._key, (name, sender, self._rank), message)

    def _next(self, name: str, end: float) -> bytes | None:
        try:
            # Waits too. ``wait`` before it does not bound it: a stranger may delete the message in between.
            self._store.set_timeout(timedelta(seconds=max(0.001, end - time.monotonic())))
            message: bytes = self._store.get(name)
            self._store.delete_key(name)
        except RuntimeError:
            return None
        return message


@dataclass(frozen=True, slots=True, kw_only=True)
class Mailboxes:
    """The way to rank 0, and to the leader of this rank's host, if it is led. ``led`` has all such hosts."""

    to_rank_0: RankMailbox
    host: Host | None = None
    led: tuple[range, ...] = ()


def open_mailboxes(context: Context) -> Mailboxes:
    """Opens the mailboxes, whose servers live as long as the ranks that they lead to. Collective.

    Without a key in the context, rank 0 draws one and sends it through the process group.
    """
    address = _address()
    listener, port_and_key = None, (0, "")
    if context.rank == 0:
        listener = listen_to_ranks(address)
        port_and_key = (listener.getsockname()[1], "" if context.key else new_key().hex())
    port, drawn = from_rank_0(port_and_key, tuple[int, str])
    key = context.key or bytes.fromhex(drawn)
    store = tcp_store(address or os.environ["MASTER_ADDR"], port, listener, _CONNECT_TIMEOUT)
    hosts = led_hosts(gather(context.node, str))
    box, led = _within_hosts(context, hosts, key) if hosts else (None, ())
    host = next((Host(ranks=ranks, mailbox=box) for ranks in led if box and context.rank in ranks), None)
    return Mailboxes(to_rank_0=RankMailbox(store, context, key), host=host, led=led)


def _within_hosts(
    context: Context, hosts: Sequence[range], key: bytes
) -> tuple[RankMailbox | None, tuple[range, ...]]:
    """Returns this rank's way to its leader, and the hosts all of whose ranks reach theirs. Collective.

    Machines may have one name, and ranks of one machine may be in containers that do not reach each other.
    """
    own = next((ranks for ranks in hosts if context.rank in ranks), None)
    box, port, door = None, 0, None
    if own and context.rank == own.start:
        listener = listen_at(_LOOPBACK)
        port, door = listener.getsockname()[1], listener.dup()
        box = RankMailbox(tcp_store(_LOOPBACK, port, listener, _CONNECT_TIMEOUT), context, key)
        for rank in own[1:]:
            box.post(f"led/{rank}", _proof(port), to=rank)
    ports = gather(port, int)
    if own and context.rank != own.start:
        box = _box_of_leader(context, own.start, ports[own.start], key)
    is_reached = gather(own is None or box is not None, bool)
    if door:
        # Only strangers come from now on. Each would take one of the files that this rank may open.
        with door, suppress(OSError):
            admit(door, [])
    return box, tuple(ranks for ranks in hosts if all(is_reached[rank] for rank in ranks))


def _box_of_leader(context: Context, leader: int, port: int, key: bytes) -> RankMailbox | None:
    """Returns None if it is not the leader who answers at ``port``."""

    def box_with_proof() -> RankMailbox | None:
        # torch tries for long, and at great length, where nobody listens.
        socket.create_connection((_LOOPBACK, port), _LEADER_WITHIN_S).close()
        store = tcp_store(_LOOPBACK, port, None, timedelta(seconds=_LEADER_WITHIN_S))
        box = RankMailbox(store, context, key)
        found = box.take(f"led/{context.rank}", _LEADER_WITHIN_S, sender=leader)
        return box if found == _proof(port) else None

    try:
        box: RankMailbox | None = in_time(box_with_proof, 2 * _LEADER_WITHIN_S)
    except (OSError, RuntimeError):
        return None
    return box


def _proof(port: int) -> bytes:
    """What a leader's server holds for each of its ranks. That of an earlier attempt names another port."""
    return str(port).encode()


def _address() -> str:
    """The address where rank 0 listens and all ranks meet. Empty: rank 0 listens on all of its addresses, and
    all ranks connect to ``MASTER_ADDR``.
    """
    place = os.environ
    address = place.get("MASTER_ADDR", "")
    if not address or place.get("LOCAL_WORLD_SIZE") == place.get("WORLD_SIZE"):
        return _LOOPBACK
    try:
        return str(ip_address(address))
    except ValueError:
        # A node name that torchrun gives may stand for another address on that node than on other nodes.
        return _ANYWHERE
