"""One host's end of the links that are tried: what others send to it, and how fast. Needs no Ray.

Bytes are sent for a quarter of a second, then the receiver closes; what is under way is dropped. Who comes
has the address of one of the hosts, where the kernel can see to that, and the token of this look. What
arrives is counted and thrown away. A way without a figure was not there in time.
"""

import socket
import struct
import time
from collections.abc import Collection
from contextlib import suppress
from hmac import compare_digest
from threading import Thread

from cluster.probe.meeting import listen_at

TOKEN_BYTES = 16
# How long bytes are counted, and how many at most.
_COUNTED_S, _MOST_BYTES = 0.25, 2**28
_CONNECT_S = 2.0
_NUMBER = struct.Struct(">I")
_CHUNK_BYTES = 2**18
# Enough for 100 Gb/s in a rack. More would stand before the training's bytes on a slow link.
_SEND_BUFFER_BYTES = 2**20
_MOST_GUESTS = 32
# A socket that is closed drops what is under way.
_DROPS = struct.pack("ii", 1, 0)


class LinkEnd:
    """Listens until its process ends. Raises ``OSError`` if it can't."""

    def __init__(self, address: str, others: Collection[str], token: bytes) -> None:
        self._listener = listen_at(address, only=others)
        self._token = token
        self._rates: dict[int, float] = {}
        Thread(target=self._serve, name="link-end", daemon=True).start()

    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def send(self, place: tuple[str, int], number: int) -> None:
        """Sends to another end, as host ``number``, until that has counted enough."""
        chunk = bytes(_CHUNK_BYTES)
        with suppress(OSError), socket.create_connection(place, _CONNECT_S) as way:
            way.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROPS)
            way.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            way.sendall(self._token + _NUMBER.pack(number))
            end = time.monotonic() + 2 * _COUNTED_S
            while (left_s := end - time.monotonic()) > 0:
                way.settimeout(left_s)
                way.send(chunk)

    def received(self) -> dict[int, float]:
        """Bytes/s by the number of the host that sent them; of several tries the best."""
        return dict(self._rates)

    def _serve(self) -> None:
        for _ in range(_MOST_GUESTS):
            guest, _ = self._listener.accept()
            Thread(target=self._take, args=[guest], daemon=True).start()

    def _take(self, guest: socket.socket) -> None:
        with guest, suppress(OSError):
            guest.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROPS)
            guest.settimeout(_CONNECT_S)
            head = guest.recv(TOKEN_BYTES + _NUMBER.size, socket.MSG_WAITALL)
            if not compare_digest(head[:TOKEN_BYTES], self._token):
                return
            (number,) = _NUMBER.unpack(head[TOKEN_BYTES:])
            self._rates[number] = max(self._rates.get(number, 0.0), _count(guest))


def _count(guest: socket.socket) -> float:
    """The rate at which bytes come. Raises ``OSError`` if the sender goes before they are counted."""
    into, num_bytes, began = bytearray(_CHUNK_BYTES), 0, time.monotonic()
    end = began + _COUNTED_S
    while num_bytes < _MOST_BYTES and (left_s := end - time.monotonic()) > 0:
        guest.settimeout(left_s)
        with suppress(TimeoutError):
            if not (count := guest.recv_into(into)):
                raise ConnectionError("the sender is gone")
            num_bytes += count
    return num_bytes / (time.monotonic() - began)
