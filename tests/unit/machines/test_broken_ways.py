"""Which of the places where Ray listens a process reaches."""

import socket
from contextlib import closing

from cluster.probe.broken_ways import unreached


def test_what_a_process_does_not_reach_is_told_by_its_number() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as open_one:
        with closing(socket.create_server(("127.0.0.1", 0))) as other:
            gone = other.getsockname()
        places = [open_one.getsockname(), gone, open_one.getsockname(), ("no host", 1)]
        assert unreached(places) == [1, 3]


def test_nobody_is_asked_for_nothing() -> None:
    assert unreached([]) == []
