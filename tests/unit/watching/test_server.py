"""Who gets the page: who knows the token and asks by a name of this machine; nobody else."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection

import pytest

from checkpointing.stores.memory import MemoryStore
from jobs.watching.access import Access
from jobs.watching.server import Site, WatchServer
from tests.unit.watching.watched import put_run, run_snapshot

TOKEN = "a-token-of-enough-letters"
OWN = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def server() -> Iterator[WatchServer]:
    store = MemoryStore()
    put_run(store)
    found = run_snapshot(store)
    site = Site(lambda: found, Access(token=TOKEN, names=("login-1",)))
    with WatchServer("127.0.0.1", 0, site) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(
    server: WatchServer, path: str, *, method: str = "GET", host: str | None = None, **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    with closing(HTTPConnection(*server.address, timeout=30)) as connection:
        named = {"Host": host} if host is not None else {}
        connection.request(method, path, headers={**named, **headers})
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())


def test_who_knows_the_token_gets_the_figures(server: WatchServer) -> None:
    status, body, headers = ask(server, "/live", **OWN)
    assert (status, b"35 of 40" in body) == (200, True)
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert (headers["Cache-Control"], headers["X-Content-Type-Options"]) == ("no-store", "nosniff")
    assert "Set-Cookie" not in headers


@pytest.mark.parametrize(
    "path", ["/live", "/snapshot.json", "/metrics", "/charts/goodput-0123456789abcdef.svg", "/nowhere"]
)
@pytest.mark.parametrize(
    "said", ["", "Bearer", "Bearer x", f"bearer {TOKEN}", f"Bearer {TOKEN}x", f"Basic {TOKEN}"]
)
def test_without_the_token_no_figure_leaves_the_server(server: WatchServer, path: str, said: str) -> None:
    status, body, _ = ask(server, path, **({"Authorization": said} if said else {}))
    assert (status, body) == (401, b"longhaul watch: the token is missing or another one\n")


def test_a_token_in_the_address_or_in_a_cookie_is_none(server: WatchServer) -> None:
    assert ask(server, f"/live?token={TOKEN}")[0] == 401
    assert ask(server, "/live", Cookie=f"longhaul-watch={TOKEN}")[0] == 401


def test_prometheus_gets_the_figures_with_the_token(server: WatchServer) -> None:
    status, body, headers = ask(server, "/metrics", **OWN)
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b'ray_longhaul_step{run="r"} 35.0\n' in body


@pytest.mark.parametrize("path", ["/", "/style.css", "/watch.js"])
def test_the_frame_is_for_everybody_and_tells_nothing_of_the_run(server: WatchServer, path: str) -> None:
    status, body, _ = ask(server, path)
    assert status == 200
    assert b"35 of 40" not in body and TOKEN.encode() not in body


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8266", "127.0.0.1.evil.example", "", "a b", "[::1"]
)
def test_a_page_of_another_name_cant_ask_even_with_the_token(server: WatchServer, host: str) -> None:
    status, body, _ = ask(server, "/live", host=host, **OWN)
    assert status == 421
    assert b"35 of 40" not in body


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost:9000", "LOCALHOST", "[::1]:8266", "login-1:80", "10.0.0.7"]
)
def test_this_machines_names_and_all_addresses_may_be_asked_by(server: WatchServer, host: str) -> None:
    assert ask(server, "/live", host=host, **OWN)[0] == 200


def test_two_hosts_in_one_request_are_none(server: WatchServer) -> None:
    with socket.create_connection(server.address, timeout=30) as connection:
        own = f"Authorization: Bearer {TOKEN}"
        connection.sendall(f"GET /live HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n{own}\r\n\r\n".encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.0 421")


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/%2e%2e/watch.js",
        "//etc/passwd",
        "/charts/../live",
        "/watch.py",
        "/charts/",
        "x",
    ],
)
def test_no_path_is_a_file(server: WatchServer, path: str) -> None:
    assert ask(server, path, **OWN)[0] in (400, 404)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(server: WatchServer, method: str) -> None:
    assert ask(server, "/live", method=method, **OWN)[0] == 501


def test_two_hundred_who_hold_their_connections_keep_nobody_away(server: WatchServer) -> None:
    held = [socket.create_connection(server.address, timeout=30) for _ in range(200)]
    try:
        for one in held[::2]:
            one.sendall(b"GET /live HTTP/1.1\r\nHost: local")
        assert ask(server, "/live", **OWN)[0] == 200
        # The oldest made room.
        assert held[0].recv(1) == b""
    finally:
        for one in held:
            one.close()


def test_a_request_that_never_ends_is_cut(server: WatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.watching.server._DEADLINE_S", 0.0)
    with socket.create_connection(server.address, timeout=30) as connection:
        connection.sendall(b"GET /live HTTP/1.1\r\n")
        assert connection.recv(1) == b""


def test_nothing_that_is_asked_is_logged(server: WatchServer, capfd: pytest.CaptureFixture[str]) -> None:
    ask(server, f"/live?token={TOKEN}")
    ask(server, "/\x1b[2J".encode("unicode_escape").decode(), **OWN)
    with socket.create_connection(server.address, timeout=30) as connection:
        connection.sendall(b"\x16\x03\x01 no request\r\n\r\n")
        connection.recv(1 << 16)
    assert capfd.readouterr() == ("", "")


def test_a_second_server_cant_take_the_port(server: WatchServer) -> None:
    with pytest.raises(OSError, match="in use"):
        WatchServer(*server.address, server.site)
