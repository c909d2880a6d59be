"""Which of the places where Ray listens a process reaches, and what of it is a broken way."""

import socket
from contextlib import closing

from cluster.probe.broken_ways import ends_to_leave, unreached, ways_between


def test_what_a_process_does_not_reach_is_told_by_its_number() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as open_one:
        with closing(socket.create_server(("127.0.0.1", 0))) as other:
            gone = other.getsockname()
        places = [open_one.getsockname(), gone, open_one.getsockname(), ("no host", 1)]
        assert unreached(places) == [1, 3]


def test_nobody_is_asked_for_nothing() -> None:
    assert unreached([]) == []


def test_that_a_node_which_tells_nothing_is_missed_is_no_broken_way() -> None:
    """It may have fallen silent a moment ago: then it, and no end of a way, is the one that is gone."""
    assert ways_between({0: [1], 2: [1, 0]}) == [(2, 0)]
    assert ways_between({1: [0]}) == []


def test_who_does_not_reach_itself_is_no_broken_way() -> None:
    assert ways_between({0: [0, 1], 1: [1]}) == [(0, 1)]


def test_of_a_row_of_broken_ways_the_middle_is_left_out_and_of_one_the_later_end() -> None:
    assert ends_to_leave([(0, 1), (2, 1)]) == [1]
    assert ends_to_leave([(0, 3), (3, 0)]) == ends_to_leave([(3, 0)]) == [3]
    assert ends_to_leave([(0, 1), (3, 2)]) == [3, 1]
    assert ends_to_leave([]) == []
