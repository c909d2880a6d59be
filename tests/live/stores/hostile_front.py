"""A server of HTTP before a real one of S3, which does to each request what ``tests.unit.hostile`` draws.

So the product's own client meets the answers themselves: statuses and codes, ``Retry-After``, connections
that break before an answer or in the middle of a body, ranges of nothing, and pages as short as a server
likes.
"""

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

from checkpointing.stores.contract import Conflict, Denied, Store, StoreError, Unavailable, Undecided
from tests.live.servers import BUCKET, HOST
from tests.unit.hostile import HostileStore, Sky, Unanswered

# Method, name below the store's folder, body. Told after the server has done it.
Witness = Callable[[str, str, bytes], None]
_OWN_HEADERS = {"connection", "content-length", "date", "server", "transfer-encoding"}
_DEADLINE_S = 60.0


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class Front(ThreadingHTTPServer):
    """``sky`` and ``witness`` may be exchanged between two requests."""

    daemon_threads = True
    request_queue_size = 100

    def __init__(self, upstream_port: int, sky: Sky, witness: Witness | None = None) -> None:
        super().__init__((HOST, 0), _Request)
        self.upstream_port = upstream_port
        self.sky = sky
        self.witness = witness

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away needs no word."""


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Front

    def do_GET(self) -> None:
        sky = self.server.sky
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            answer = self._answer(sky, body)
        except Unanswered:
            self.connection.close()
            self.close_connection = True
        except StoreError as error:
            self._send(_refusal(error, sky.rng), sky)
        else:
            self._send(answer, sky)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, sky: Sky, body: bytes) -> Answer:
        url = urlsplit(self.path)
        asked = parse_qs(url.query, keep_blank_values=True)
        name = _name(f"/{BUCKET}/{asked['prefix'][0]}" if "prefix" in asked else url.path)
        hostile = HostileStore(sky.base, sky)
        if self.command in ("GET", "HEAD"):
            hostile.before_a_read(name)
            if "list-type" in asked:
                asked["max-keys"] = [str(sky.weather.page)]
            answer = self._forward(f"{url.path}?{urlencode(asked, doseq=True)}" if asked else url.path, body)
            # A range of nothing, as Azure and some gateways of S3 answer it.
            if answer.status == 416 and sky.happens(0.5):
                return Answer(206, {"Content-Range": "bytes */0", "ETag": '"1"'}, b"")
            return answer
        if self.command == "DELETE" and "uploadId" not in asked and sky.is_denied(name):
            sky.note("denied")
            raise Denied("store: 403 AccessDenied")
        answers: list[Answer] = []

        def write(_: Store) -> None:
            answers.append(self._forward(self.path, body))
            if self.server.witness and answers[-1].status < 300:
                self.server.witness(self.command, name, body)

        is_create = self.headers.get("If-None-Match") is not None
        if body and not is_create and sky.happens(sky.weather.flipped):
            body = sky.flip(name, body)
        hostile.write(name, write, Conflict if is_create else Undecided)
        return answers[-1]

    def _forward(self, path: str, body: bytes) -> Answer:
        server = HTTPConnection(HOST, self.server.upstream_port, timeout=_DEADLINE_S)
        try:
            server.request(self.command, path, body, dict(self.headers))
            answer = server.getresponse()
            return Answer(answer.status, dict(answer.headers), answer.read())
        finally:
            server.close()

    def _send(self, answer: Answer, sky: Sky) -> None:
        """The second half of a body comes later, or never. Without a body the client goes on at once: nothing
        is drawn behind its back, so that a seed gives the same again.
        """
        body, is_head = answer.body, self.command == "HEAD"
        is_torn = self.command == "GET" and body and sky.happens(sky.weather.torn)
        later_s = sky.rng.random() * sky.weather.slow_s
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in _OWN_HEADERS:
                self.send_header(name, value)
        length = answer.headers["Content-Length"] if is_head and answer.status < 300 else len(body)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if is_head or not body:
            return
        half = len(body) // 2
        self.wfile.write(body[:half])
        self.wfile.flush()
        if is_torn:
            sky.note("the body breaks off")
            self.connection.close()
            self.close_connection = True
            return
        sky.clock.sleep(later_s)
        self.wfile.write(body[half:])


def _name(path: str) -> str:
    """Without the bucket, and without the folder that the store is below."""
    return "/".join(path.split("/")[3:]).rstrip("/")


def _refusal(error: StoreError, rng: random.Random) -> Answer:
    headers: dict[str, str] = {}
    match error:
        case Conflict():
            status, code = rng.choice([(409, "ConditionalRequestConflict"), (412, "PreconditionFailed")])
        case Undecided():
            status, code = 409, "OperationAborted"
        case Denied():
            status, code = 403, "AccessDenied"
        case Unavailable():
            status, code = (429, "TooManyRequests") if "429" in str(error) else (503, "SlowDown")
            headers = rng.choice([{}, {"Retry-After": "1"}])
        case _:
            raise error
    return Answer(status, headers, f"<Error><Code>{code}</Code></Error>".encode())


@contextmanager
def front_of(upstream_port: int, sky: Sky, witness: Witness | None = None) -> Iterator[Front]:
    with Front(upstream_port, sky, witness) as front:
        thread = threading.Thread(target=front.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield front
        finally:
            front.shutdown()
            thread.join()
