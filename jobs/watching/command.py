"""``longhaul watch``: looks for the run or sweep, then shows it as a page, in the terminal or as JSON."""

import argparse
import errno
import json
import os
import re
import secrets
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkpointing.errors import NothingToResume
from checkpointing.stores.contract import Store, is_name
from jobs.commandline.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE, OF_STORES, run_command
from jobs.commandline.output import say
from jobs.commandline.own_file import text_of_own_file
from jobs.commandline.store_waits import open_to_read, waits_told
from jobs.commandline.usage_error import SpecError
from jobs.watching.access import LEAST_TOKEN, Access
from jobs.watching.choosing import Watched, choose
from jobs.watching.following import Following
from jobs.watching.runs import RunReading
from jobs.watching.snapshot import Records, Snapshot, as_data
from jobs.watching.sweeps import SweepReading
from reporting.results.redaction import without_credentials

if TYPE_CHECKING:
    from jobs.watching.server import WatchServer

TOKEN_VARIABLE = "LONGHAUL_WATCH_TOKEN"
_LOOPBACK, _PORT = "127.0.0.1", 8266
_LISTEN = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>[0-9]{1,5}))?")
_WAIT_S = 30.0
_STATUS_EVERY_S, _RECORDS_EVERY_S = 1.0, 5.0
# Records of a long run take long to read and to draw. They must not keep a core of a login node busy.
_RECORDS_SHARE = 0.1


def watch(args: argparse.Namespace) -> int:
    codes = {SpecError: EXIT_USAGE, NothingToResume: EXIT_USAGE, **OF_STORES}
    return run_command("watch", lambda: _watch(args), codes)


def _watch(args: argparse.Namespace) -> int:
    is_page, token = not (args.terminal or args.json), token_of(args.token_file, os.environ)
    place = place_of(args.listen, token, may_print=sys.stdout.isatty()) if is_page else None
    # A page tells by itself that its store is away, and asks again.
    store = open_to_read(args.store, _WAIT_S, advice="")
    if args.name and not is_name(args.name):
        raise SpecError([f"{args.name[:100]!r} is not the name of a run or a sweep"])
    with waits_told("watch"):
        watched = choose(store, args.name)
    with following(store, watched, with_charts=is_page) as found:
        if place is not None:
            return _serve(found, place)
        if args.json:
            return _print_once(found)
        # The import loads rich.
        from jobs.watching.terminal import show

        found.first_snapshot()
        show(found.snapshot)
        return EXIT_OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A run or a sweep with both of its readers."""

    watched: Watched
    store: str
    status: Following[dict[str, Any]]
    records: Following[Records]

    def snapshot(self) -> Snapshot:
        return self._of(is_first=False)

    def first_snapshot(self) -> Snapshot:
        return self._of(is_first=True)

    def _of(self, *, is_first: bool) -> Snapshot:
        status = self.status.first_look() if is_first else self.status.look()
        return Snapshot(
            kind=self.watched.kind,
            name=self.watched.name,
            store=self.store,
            status=status,
            records=self.records.first_look() if is_first else self.records.look(),
        )


@contextmanager
def following(store: Store, watched: Watched, *, with_charts: bool) -> Iterator[Followed]:
    with (
        _status_of(store, watched) as status,
        _records_of(store, watched, with_charts=with_charts) as records,
    ):
        yield Followed(watched=watched, store=without_credentials(store.url), status=status, records=records)


def _status_of(store: Store, watched: Watched) -> Following[dict[str, Any]]:
    is_run, name = watched.kind == "run", watched.name
    read = RunReading(store, name).status if is_run else SweepReading(store, name).status
    return Following(read, pause_s=_STATUS_EVERY_S)


def _records_of(store: Store, watched: Watched, *, with_charts: bool) -> Following[Records]:
    name = watched.name
    read: Callable[[], Records] = (
        RunReading(store, name, with_charts=with_charts).records
        if watched.kind == "run"
        else SweepReading(store, name).records
    )
    return Following(read, pause_s=_RECORDS_EVERY_S, share=_RECORDS_SHARE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the page is. ``port`` None: the usual one, or any that is free. ``is_shown``: the token was made
    up for this start, and is printed with the address.
    """

    host: str
    port: int | None
    token: str
    is_shown: bool


def token_of(file: Path | None, variables: Mapping[str, str]) -> str | None:
    """The token that the user gave: in a file, or in a variable. Raises ``SpecError`` if others may read the
    file.
    """
    if file is None:
        return variables.get(TOKEN_VARIABLE)
    return text_of_own_file(file.expanduser(), "--token-file", "with the token").strip()


def place_of(listen: str | None, token: str | None, *, may_print: bool) -> Place:
    """Raises ``SpecError`` for an address that is none, or that others reach and no token protects. A token
    is made up only if it ``may_print``: what is no terminal may be a log that others read.
    """
    host, port = _host_and_port(listen)
    if token is not None and (len(token) < LEAST_TOKEN or not re.fullmatch(r"[!-~]+", token)):
        raise SpecError(
            [
                f"{TOKEN_VARIABLE} or --token-file: expected at least {LEAST_TOKEN} characters, all "
                "printable and no blank"
            ]
        )
    if token is None and not ip_address(host).is_loopback:
        raise SpecError(
            [
                f"--listen: others reach {host}; set {TOKEN_VARIABLE} to a token that they must know, "
                "or give --token-file"
            ]
        )
    if token is None and not may_print:
        raise SpecError(
            [
                "the page's address holds a token, which must not be printed where it stays, and the output "
                f"is no terminal; set {TOKEN_VARIABLE}, which is not printed"
            ]
        )
    return Place(host=host, port=port, token=token or secrets.token_urlsafe(32), is_shown=token is None)


def _host_and_port(listen: str | None) -> tuple[str, int | None]:
    if listen is None:
        return _LOOPBACK, None
    found = _LISTEN.fullmatch(listen)
    host = (found["six"] or found["host"]) if found else ""
    port = int(found["port"]) if found and found["port"] else None
    host = _LOOPBACK if host == "localhost" else host
    try:
        ip_address(host)
    except ValueError:
        host = ""
    if not host or (port or 0) > 65535:
        raise SpecError([f"--listen: {listen!r} is no address; expected one such as 127.0.0.1:8266"])
    return host, port


def _print_once(found: Followed) -> int:
    snapshot = found.first_snapshot()
    print(json.dumps(as_data(snapshot), indent=1), flush=True)
    return EXIT_FAILED if snapshot.status.value is None else EXIT_OK


def _serve(found: Followed, place: Place) -> int:
    # The import loads the page's parts, which neither a terminal nor JSON needs.
    from jobs.watching.server import Site, WatchServer

    names = {name.lower() for name in (socket.gethostname(), socket.gethostname().partition(".")[0])}
    site = Site(found.snapshot, Access(token=place.token, names=names))
    with _listening(place, lambda port: WatchServer(place.host, port, site)) as server:
        host, port = server.address
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{port}/"
        say(f"{found.watched.name}: {address}{'#' + place.token if place.is_shown else ''}", to=sys.stdout)
        say("Ctrl-C ends the page; the run goes on", to=sys.stderr)
        server.serve_forever()
    return EXIT_OK


def _listening(place: Place, make: Callable[[int], "WatchServer"]) -> "WatchServer":
    """The server on the port that was asked for, or on the usual one, or on any if somebody has that."""
    try:
        return make(_PORT if place.port is None else place.port)
    except OSError as error:
        if place.port is None and error.errno == errno.EADDRINUSE:
            return make(0)
        raise SpecError([f"--listen: {place.host}: {error.strerror or error}"]) from None
