"""An S3 server a round trip away that keeps nothing: ``python -m tests.bench.distant_s3 PORT``.

Every request is answered ``ROUND_TRIP_S`` after its last byte; many are under way side by side. Every PUT
below ``/denied/`` is refused with 403. What a client reaches here is the client's own speed.
"""

import asyncio
import re
import sys
from contextlib import suppress

ROUND_TRIP_S = 0.02
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_XML = b'<?xml version="1.0" encoding="UTF-8"?>'
_STARTED = _XML + b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
_COMPLETED = _XML + b'<CompleteMultipartUploadResult><ETag>"1"</ETag></CompleteMultipartUploadResult>'
_DENIED = _XML + b"<Error><Code>AccessDenied</Code></Error>"


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, asyncio.IncompleteReadError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"100-continue" in head.lower():
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            length = _LENGTH.search(head)
            left = int(length[1]) if length else 0
            while left:
                left -= len(await reader.read(min(left, 1 << 20))) or left
            await asyncio.sleep(ROUND_TRIP_S)
            writer.write(answer(head))
            await writer.drain()
    writer.transport.abort()


def answer(head: bytes) -> bytes:
    method, path, _ = head.split(b" ", 2)
    if b"/denied/" in path and method == b"PUT":
        return message(b"403 Forbidden", _DENIED)
    if method == b"POST":
        return message(b"200 OK", _STARTED if b"uploads" in path.partition(b"?")[2] else _COMPLETED)
    if method == b"HEAD":
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    return message(b"200 OK", b"")


def message(status: bytes, body: bytes) -> bytes:
    return b'HTTP/1.1 %b\r\nETag: "1"\r\nContent-Length: %d\r\n\r\n%b' % (status, len(body), body)


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), limit=4 << 20)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
