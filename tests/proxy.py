"""A server's bad days: a proxy in front of a real one, whose fault is changed while a test runs.

The faults are those of the network and of load balancers. The server behind stays a real one.
"""

import asyncio
import re
import ssl
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, assert_never

HOST = "127.0.0.1"
_PIECE = 64 << 10
_BUSY_BODY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_CONDITION = re.compile(rb"\r\nif-none-match:", re.IGNORECASE)
_WRITE = re.compile(rb"PUT |POST |DELETE ")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """Everything passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """After so many bytes towards the server all connections are reset, and new ones too."""

    after_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hung:
    """After so many bytes towards the server nothing moves any more, and nothing is closed."""

    after_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """All connections together carry so much in each direction."""

    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """The first ``num_requests`` are answered 503; ``None``: all of them."""

    num_requests: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mute:
    """The first ``num_answers`` get lost: the server did what it was asked, and the connection breaks."""

    num_answers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Careless:
    """The condition of a request that is to create gets lost, so that it overwrites."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflicted:
    """Of the requests that are to write, that numbered ``at`` (the first is 1) is answered 409 with ``code``,
    as if another one for the same name were under way; with ``lands`` it has its effect all the same.
    ``of_all`` also counts those that set no condition.
    """

    at: int
    code: str
    lands: bool
    of_all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """Of the requests, each ``every``-th is answered 503 after all of its bytes have come. One with a large
    body takes ``takes_s``, as on a slow link.
    """

    every: int
    takes_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiesNothing:
    """What asks for a copy is answered 411, as Ceph's RGW 16 answers it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LooksThenWrites:
    """Whether an object exists is looked up before it is created, and ``between_s`` later it is written, as
    Swift does it: of several who create one name in the same moment all win.
    """

    between_s: float = 0.05


Fault = (
    Failing | Conflicted | Nothing | Killed | Hung | Slow | Busy | Mute | Careless | CopiesNothing
    | LooksThenWrites
)  # fmt: skip


class Proxy:
    """Listens on a port and in a thread of its own until it is left. With ``tls`` it speaks HTTPS."""

    def __init__(self, upstream_port: int, *, tls: ssl.SSLContext | None = None) -> None:
        self._upstream_port = upstream_port
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._connections: set[asyncio.Task[None]] = set()
        self._fault: Fault = Nothing()
        self._num_bytes = 0
        self._num_requests = 0
        self._free_at = {"up": 0.0, "down": 0.0}

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._accept, HOST, 0, ssl=self._tls, limit=16 * _PIECE))
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(self._leave())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{HOST}:{self.port}"

    @property
    def num_bytes(self) -> int:
        """Moved towards the server since the fault began."""
        return self._num_bytes

    @property
    def num_faults(self) -> int:
        """Requests answered 503 or not at all, since the fault began; those that may be answered 409."""
        return self._num_requests

    def become(self, fault: Fault) -> None:
        """From now on; connections that are open break."""
        self._do(self._become(fault))

    async def _become(self, fault: Fault) -> None:
        self._fault, self._num_bytes, self._num_requests = fault, 0, 0
        await self._drop_all()

    async def _leave(self) -> None:
        self._server.close()
        await self._drop_all()

    async def _drop_all(self) -> None:
        connections = [*self._connections]
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.ensure_future(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            match self._fault:
                case Busy(num_requests=limit) if limit is None or self._num_requests < limit:
                    await self._answer_busy(reader, writer)
                case Mute(num_answers=limit) if self._num_requests < limit:
                    await self._lose_answer(reader)
                case Failing():
                    await self._fail_some(reader, writer, self._fault)
                case Conflicted():
                    await self._refuse_one(reader, writer, self._fault)
                case CopiesNothing():
                    await self._refuse_copies(reader, writer)
                case LooksThenWrites():
                    await self._look_then_write(reader, writer, self._fault)
                case Nothing() | Killed() | Hung() | Slow() | Busy() | Mute() | Careless():
                    await self._pass(reader, writer)
                case _:
                    assert_never(self._fault)
        except (OSError, asyncio.IncompleteReadError):
            pass  # one side went away, which is what faults are for
        finally:
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(HOST, self._upstream_port)
        ways = {
            asyncio.ensure_future(self._pump(reader, server_writer, "up")),
            asyncio.ensure_future(self._pump(server_reader, writer, "down")),
        }
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.gather(*done)
        finally:
            for way in ways:
                way.cancel()
            server_writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        while piece := await reader.read(_PIECE):
            if way == "up":
                self._num_bytes += len(piece)
            await self._suffer(len(piece), way)
            if isinstance(self._fault, Careless):
                piece = piece.replace(b"if-none-match:", b"x-lost-header:")
            writer.write(piece)
            await writer.drain()

    async def _suffer(self, num_bytes: int, way: str) -> None:
        match self._fault:
            case Killed(after_bytes=limit) if self._num_bytes > limit:
                raise ConnectionResetError
            case Hung(after_bytes=limit) if self._num_bytes > limit:
                await asyncio.Event().wait()
            case Slow(bytes_per_s=rate):
                now = self._loop.time()
                self._free_at[way] = max(self._free_at[way], now) + num_bytes / rate
                await asyncio.sleep(self._free_at[way] - now)
            case _:
                pass

    async def _answer_busy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self._num_requests += 1
        length = _LENGTH.search(head)
        await reader.readexactly(int(length[1]) if length else 0)
        writer.write(
            b"HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(_BUSY_BODY)
            + _BUSY_BODY
        )
        await writer.drain()

    async def _lose_answer(self, reader: asyncio.StreamReader) -> None:
        """One request goes through; what comes back is read to its head and dropped."""
        self._num_requests += 1
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await reader.readexactly(int(length[1]) if length else 0)
        server_reader, server_writer = await asyncio.open_connection(HOST, self._upstream_port)
        try:
            server_writer.write(head + body)
            await server_writer.drain()
            await server_reader.readuntil(b"\r\n\r\n")
        finally:
            server_writer.transport.abort()

    async def _refuse_one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: Conflicted
    ) -> None:
        """One request of this connection; the next one comes on another."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await reader.readexactly(int(length[1]) if length else 0)
        counts = _WRITE.match(head) and (fault.of_all or _CONDITION.search(head))
        self._num_requests += bool(counts)
        is_refused = bool(counts) and self._num_requests == fault.at
        answer = b"" if is_refused and not fault.lands else await self._forward(head, body)
        if is_refused:
            told = f"<Error><Code>{fault.code}</Code><Message>Try again.</Message></Error>".encode()
            answer = b"HTTP/1.1 409 Conflict\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(told)
            answer += told
        writer.write(answer)
        await writer.drain()

    async def _refuse_copies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request of this connection; the next one comes on another."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await reader.readexactly(int(length[1]) if length else 0)
        if b"\r\nx-amz-copy-source:" in head.lower():
            self._num_requests += 1
            told = b"<Error><Code>MissingContentLength</Code></Error>"
            answer = b"HTTP/1.1 411 Length Required\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
            writer.write(answer % (len(told), told))
        else:
            writer.write(await self._forward(head, body))
        await writer.drain()

    async def _look_then_write(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: LooksThenWrites
    ) -> None:
        """One request of this connection; the next one comes on another."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await reader.readexactly(int(length[1]) if length else 0)
        if _CONDITION.search(head):
            path = head.split(b" ", 2)[1]
            found = await self._forward(b"HEAD %s HTTP/1.1\r\nHost: server\r\n\r\n" % path, b"")
            if b" 404 " in found.partition(b"\r\n")[0]:
                await asyncio.sleep(fault.between_s)
                head = _CONDITION.sub(b"\r\nx-lost-header:", head)
        writer.write(await self._forward(head, body))
        await writer.drain()

    async def _fail_some(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: Failing
    ) -> None:
        """One request of this connection; the next one comes on another."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await reader.readexactly(int(length[1]) if length else 0)
        self._num_bytes += len(head) + len(body)
        self._num_requests += 1
        is_failing = self._num_requests % fault.every == 0
        if len(body) > _PIECE:
            await asyncio.sleep(fault.takes_s)
        if is_failing:
            answer = b"HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
            writer.write(answer % (len(_BUSY_BODY), _BUSY_BODY))
        else:
            writer.write(await self._forward(head, body))
        await writer.drain()

    async def _forward(self, head: bytes, body: bytes) -> bytes:
        """The whole answer, after which the server closes."""
        reader, writer = await asyncio.open_connection(HOST, self._upstream_port)
        try:
            writer.write(head[:-2] + b"Connection: close\r\n\r\n" + body)
            await writer.drain()
            return await reader.read()
        finally:
            writer.transport.abort()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)
