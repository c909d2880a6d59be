"""The meeting place of a group's ranks, and the proof that each rank knows the group's key.

torch's rendezvous knows no secret: any process that can connect to its store may take a rank's place.
Secret names do not help, since a ``TCPStore`` lists them for every client (``list_keys``). Therefore:

- Ranks of one machine meet in a file that only their user can read, and their sockets listen on loopback.
- Ranks of several machines need a ``TCPStore``. Rank 0 opens it at its node's address alone, behind a
  ``gate`` that lets in the addresses of those who know the group's key.
- Before a group is used for anything, each rank proves to all others that it knows the group's key.

A process without the key that takes a rank's place is detected before any of its data is used. The network
between machines must still be a trusted one. An attacker in it can keep ranks from meeting.

An attacker between two ranks, who writes into the store or intercepts the connection, can forward the
proof. Such an attacker can change what the ranks send, since torch sends it in the clear and without a MAC.
Running code is impossible even then: nothing that is sent is unpickled.
"""

import os
import secrets
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from errno import EADDRNOTAVAIL
from hmac import compare_digest
from ipaddress import ip_address
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from cluster.gate.gate import Gate, NotRank0, Rank0Ended, enter
from cluster.gate.packet_filter import admit, close_ports
from cluster.probe.interfaces import towards
from cluster.probe.roll_call import (
    COMING_S,
    KEEP_OFF,
    REMEDY,
    Rank0Gone,
    Unmet,
    all_met,
    connecting_s,
    told_if_late,
)
from cluster.probe.signed_store import SignedStore, in_time
from cluster.run_key import KEY_BYTES, mac

if TYPE_CHECKING:
    import torch

    from cluster.probe.gloo_store import GlooGroup

# These variables keep gloo and NCCL on loopback; values that the user has set stay.
ON_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}

_FILE, _TCP = "file://", "tcp://"
_LOOPBACK = "127.0.0.1"
_BACKLOG = 1024
# Held from ``meet_at`` until rank 0 joins: otherwise another process could take the port.
_gates: dict[str, Gate] = {}
# From where ranks came to the last gate here.
_admitted: set[str] = set()


class Stranger(Exception):
    """A process that does not know the group's key is in a rank's place."""


def meet_in(folder: Path) -> str:
    """Makes a meeting for ranks of one machine, in a new folder below ``folder``, which the caller
    deletes.
    """
    return f"{_FILE}{Path(mkdtemp(prefix='longhaul-meeting-', dir=folder)) / 'ranks'}"


def folder_of(meeting: str) -> Path:
    """Returns the folder of a meeting on one machine, to be deleted afterwards."""
    return Path(meeting.removeprefix(_FILE)).parent


def meet_at(address: str) -> str:
    """Makes a meeting for ranks of several machines. Rank 0's process must call it and then join."""
    door = listen_at(address)
    meeting = f"{_TCP}{address}:{door.getsockname()[1]}"
    store = listen_at(address, only=())
    _gates[meeting] = Gate(store, door, {_way_to_oneself(store)[1]})
    return meeting


def listen_at(address: str, *, only: Collection[str] | None = None) -> socket.socket:
    """Listens at a free port of ``address`` alone. Listens on all addresses if it is empty or no interface
    here has it (NAT). Where ``only`` is given, nobody else was ever let in, if the kernel can do that.
    """
    try:
        return _listener(address, socket.AF_INET6 if ":" in address else socket.AF_INET, only)
    except OSError as error:
        if error.errno != EADDRNOTAVAIL:
            raise
        return _listener("", socket.AF_INET, only)


def listen_to_ranks(address: str) -> socket.socket:
    """As ``listen_at``, for those alone who came to the gate of this process, if it had one."""
    return listen_at(address, only=_admitted or None)


def _listener(address: str, family: socket.AddressFamily, only: Collection[str] | None) -> socket.socket:
    is_dual = not address and socket.has_dualstack_ipv6()
    # Not to be used again (``SO_REUSEADDR``): where rank 0 dies, another user could take its port, whom ranks
    # then ask. As it is, the kernel keeps it for a minute, unless rank 0 had closed its own connection first.
    listener = socket.socket(socket.AF_INET6 if is_dual else family)
    try:
        if is_dual:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((address, 0))
        if only is not None:
            with suppress(OSError):  # The gate says that the kernel can't.
                admit(listener, only)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _way_to_oneself(listener: socket.socket) -> tuple[str, str]:
    """Returns to which address this process connects to reach its own ``listener`` within this machine, and
    from which one: the kernel may choose another one of its own.
    """
    address = listener.getsockname()[0]
    if ip_address(address).is_unspecified:
        return _LOOPBACK, _LOOPBACK
    with socket.socket(listener.family, socket.SOCK_DGRAM) as asked:
        asked.connect(listener.getsockname())
        return address, asked.getsockname()[0]


def on_loopback() -> dict[str, str]:
    """Returns the variables to set while groups are made, if all ranks are on this machine."""
    return {name: value for name, value in ON_LOOPBACK.items() if name not in os.environ}


def on_the_way_to(meeting: str) -> dict[str, str]:
    """Returns the variables to set before groups are made, so that ranks take addresses that others reach."""
    return on_loopback() if is_of_one_machine(meeting) else towards(_place_of(meeting)[0])


def is_of_one_machine(meeting: str) -> bool:
    return meeting.startswith(_FILE)


def join(
    meeting: str,
    backend: str,
    *,
    rank: int,
    world_size: int,
    key: bytes,
    timeout_s: float,
    device: "torch.device | None" = None,
    tell_late: Callable[[Unmet], None] = lambda _: None,
) -> None:
    """Joins the default process group. Every rank calls it with the same ``meeting`` and ``key``.

    With a ``device``, which is no CPU, its ranks are connected when this returns, not at their first
    collective. If they connect for too long, ``tell_late`` is called in another thread, and this call goes
    on. Raises ``Unmet`` if ranks do not come or do not reach each other, and ``Stranger`` on all ranks if one
    does not know the key.
    """
    import torch.distributed as dist

    from cluster.probe.gloo_store import close_ports_of_default_group, for_default_group

    timeout = timedelta(seconds=timeout_s)
    is_of_one, place = is_of_one_machine(meeting), meeting.removeprefix(_TCP)
    with _gate_of(meeting) as gate:
        store = _store(meeting, gate, rank, world_size, key, timeout)
        signed = SignedStore(store, key, place, is_open=not is_of_one)
        within_s = min(timeout_s, COMING_S)
        cards = all_met(signed, rank, world_size, of_one_machine=is_of_one, within_s=within_s)
    if backend == "gloo" and not is_of_one:
        # NCCL asks its store in threads of its own, which must not wait for Python.
        store = for_default_group(store, key, place)
    with told_if_late(cards, connecting_s(world_size), tell_late):
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=world_size, timeout=timeout, device_id=device
        )
        if backend == "gloo" and is_of_one:
            close_ports(Path(meeting.removeprefix(_FILE)).read_bytes())
        elif backend == "gloo":
            close_ports_of_default_group()
        try:
            prove(key)
        except Stranger:
            dist.destroy_process_group()
            raise


@contextmanager
def _gate_of(meeting: str) -> Iterator[Gate | None]:
    """Inside, ranks come to the gate, if this process has it."""
    gate = _gates.pop(meeting, None)
    _admitted.clear()
    try:
        yield gate
    finally:
        if gate is not None:
            gate.close()
            if not gate.is_for_all:
                _admitted.update(gate.admitted)


def _store(
    meeting: str, gate: Gate | None, rank: int, world_size: int, key: bytes, timeout: timedelta
) -> Any:
    if is_of_one_machine(meeting):
        import torch.distributed as dist

        path = meeting.removeprefix(_FILE)
        store = dist.FileStore(path, world_size)  # type: ignore[attr-defined]  # torch does not list it
        store.set_timeout(timeout)
        return store
    address, door = _place_of(meeting)
    within_s = min(timeout.total_seconds(), COMING_S)
    try:
        if gate is not None:
            store = tcp_store(address, gate.store.getsockname()[1], gate.store.dup(), timeout)
            # Whoever is told the port tries it at once, and says so if nobody answers.
            gate.open(key)
            return store
        port = enter(address, door, key, within_s)
        # torch asks an impostor again and again until then.
        store = in_time(lambda: tcp_store(address, port, None, timedelta(seconds=within_s)), within_s)
    except Rank0Ended as error:
        raise Rank0Gone(
            f"rank {rank} on {socket.gethostname()}: connection closed, and rank 0 does not answer at "
            f"{address}:{door} any more ({error}); look into rank 0's log"
        ) from None
    except OSError as error:
        text = f"rank {rank} on {socket.gethostname()} does not reach rank 0 at {address}:{door} ({error})"
        raise Unmet(f"{text}; {REMEDY}", [rank]) from None
    except (NotRank0, RuntimeError) as error:
        raise Unmet(
            f"rank {rank} on {socket.gethostname()}: what answers at {address}:{door} is not rank 0's store "
            f"({error}): another process may be in its place; {KEEP_OFF}",
            [],
        ) from None
    store.set_timeout(timeout)
    return store


def _place_of(meeting: str) -> tuple[str, int]:
    address, _, port = meeting.removeprefix(_TCP).rpartition(":")
    return address, int(port)


def tcp_store(address: str, port: int, listener: socket.socket | None, timeout: timedelta) -> Any:
    """Returns a client. With a ``listener`` it is also the server, which uses the socket of ``listener``, and
    the client asks it within this machine.
    """
    import torch.distributed as dist

    if listener is not None:
        address, _ = _way_to_oneself(listener)
    return dist.TCPStore(  # type: ignore[attr-defined]  # as above
        address,
        port,
        is_master=listener is not None,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=None if listener is None else listener.detach(),
    )


def prove(key: bytes, group: "GlooGroup | None" = None) -> None:
    """Proves that all ranks of the group know the key; every rank must call it. Raises ``Stranger``
    otherwise. Without a ``group`` it is the default one.

    Each rank answers to random bytes that all ranks have just drawn, so an old answer is worthless.
    """
    import torch.distributed as dist

    ranks: Any = group or dist.group.WORLD
    own = secrets.token_bytes(KEY_BYTES)
    challenges = _gathered(own, ranks)
    rank, challenge = ranks.rank(), b"".join(challenges)
    answers = _gathered(mac(key, _subject(rank), challenge), ranks)
    wrong = [
        f"rank {rank}"
        for rank, answer in enumerate(answers)
        if not compare_digest(answer, mac(key, _subject(rank), challenge))
    ]
    if wrong or challenges[rank] != own:
        raise Stranger(
            f"{', '.join(wrong) or 'somebody'}: another process sits in this place, which does not know the "
            "group's key; keep others off the network between its machines"
        )


def _subject(rank: int) -> tuple[str | int, ...]:
    return ("sits in the place of", rank)


def _gathered(own: bytes, ranks: Any) -> list[bytes]:
    """Returns all ranks' bytes. The length is the same on each rank, so no rank decides how many bytes are
    read.
    """
    import torch

    device = "cpu" if ranks.name() == "gloo" else "cuda"
    tensor = torch.tensor(list(own), dtype=torch.uint8, device=device)
    gathered = [torch.empty_like(tensor) for _ in range(ranks.size())]
    ranks.allgather([gathered], [tensor]).wait()
    return [bytes(one.tolist()) for one in gathered]
