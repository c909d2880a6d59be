"""Serves the page: only what is asked with the token has figures, nothing can be changed, no path is a file.

Every connection answers one request and has seconds for it. There are few at a time: the oldest makes room.
"""

import json
import re
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from jobs.watching.access import Access
from jobs.watching.page import POLICY, chart_key, frame, live, script, style
from jobs.watching.prometheus import KIND, exposition
from jobs.watching.runs import RunRecords
from jobs.watching.snapshot import Snapshot, as_data

_MOST_CONNECTIONS = 64
_SILENT_S = 10.0
# A connection that asks or reads more slowly than this is cut.
_DEADLINE_S = 20.0
_CHART = re.compile(r"/charts/([a-z_]{1,40}-[0-9a-f]{16})\.svg")
_HTML, _TEXT = "text/html; charset=utf-8", "text/plain; charset=utf-8"
# A picture alone in its window could be a page of its own.
_PICTURE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: HTTPStatus
    kind: str
    body: bytes
    policy: str = POLICY


class Site:
    """What each path answers. ``look`` returns at once what is known by then."""

    def __init__(self, look: Callable[[], Snapshot], access: Access) -> None:
        self._look = look
        self._access = access
        self._open = {
            "/": (_HTML, frame().encode()),
            "/style.css": ("text/css; charset=utf-8", style().encode()),
            # Browsers ask for it, and would complain of an answer that is none.
            "/favicon.ico": ("image/x-icon", b""),
            "/watch.js": ("text/javascript; charset=utf-8", script().encode()),
        }

    def answer(self, path: str, host: str | None, authorization: str | None) -> Answer:
        if not self._access.is_ours(host):
            return _said(HTTPStatus.MISDIRECTED_REQUEST, "asked by a name that is not this machine's")
        if path in self._open:
            kind, body = self._open[path]
            return Answer(status=HTTPStatus.OK, kind=kind, body=body)
        if not self._access.knows_token(authorization):
            return _said(HTTPStatus.UNAUTHORIZED, "the token is missing or another one")
        return self._figures(path)

    def _figures(self, path: str) -> Answer:
        if path == "/live":
            return Answer(status=HTTPStatus.OK, kind=_HTML, body=live(self._look()).encode())
        if path == "/snapshot.json":
            body = json.dumps(as_data(self._look()), indent=1).encode()
            return Answer(status=HTTPStatus.OK, kind="application/json", body=body)
        if path == "/metrics":
            return Answer(status=HTTPStatus.OK, kind=KIND, body=exposition(self._look()).encode())
        if found := _CHART.fullmatch(path):
            return self._chart(found[1])
        return _said(HTTPStatus.NOT_FOUND, "there is no such page")

    def _chart(self, wanted: str) -> Answer:
        records = self._look().records.value
        charts = records.charts if isinstance(records, RunRecords) else ()
        for chart in charts:
            if f"{chart.name}-{chart_key(chart)}" == wanted:
                body = chart.svg.encode()
                return Answer(status=HTTPStatus.OK, kind="image/svg+xml", body=body, policy=_PICTURE_POLICY)
        return _said(HTTPStatus.NOT_FOUND, "the picture is an older one")


class WatchServer(ThreadingHTTPServer):
    """Listens once it is made; ``address`` says where. Used as a context, with ``serve_forever``."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, site: Site) -> None:
        self.site = site
        self._connections: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Without looking up this machine's name, which may take seconds."""
        # Not with SO_REUSEPORT: nobody else may listen on the same port.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.server_address[:2]
        return str(host), int(port)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._connections) >= _MOST_CONNECTIONS:
                self._cut(next(iter(self._connections)))
            self._connections[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called twice a second."""
        with self._lock:
            late_s = time.monotonic() - _DEADLINE_S
            for connection in [one for one, began_s in self._connections.items() if began_s < late_s]:
                self._cut(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone, or was cut, is no news."""

    def _cut(self, connection: socket.socket) -> None:
        self._connections.pop(connection, None)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    timeout = _SILENT_S
    server_version = "longhaul"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        hosts = self.headers.get_all("Host") or []
        host = hosts[0] if len(hosts) == 1 else None
        answer = self.server.site.answer(path, host, self.headers.get("Authorization"))
        self.send_response(answer.status)
        for name, value in _headers(answer).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged: a path or a header may hold what somebody typed by mistake."""


def _headers(answer: Answer) -> dict[str, str]:
    found = {
        "Content-Type": answer.kind,
        "Content-Length": str(len(answer.body)),
        "Content-Security-Policy": answer.policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-store",
        "Connection": "close",
    }
    return found | ({"WWW-Authenticate": "Bearer"} if answer.status is HTTPStatus.UNAUTHORIZED else {})


def _said(status: HTTPStatus, text: str) -> Answer:
    return Answer(status=status, kind=_TEXT, body=f"longhaul watch: {text}\n".encode())
