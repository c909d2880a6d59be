"""How fast bytes come from another host: what is counted, and whom nobody listens to."""

import socket
import time
from collections.abc import Callable

import pytest

from jobs.launch.ray_train.link_end import TOKEN_BYTES, LinkEnd

HERE = "127.0.0.1"
TOKEN = bytes(range(TOKEN_BYTES))
DEADLINE_S = 10.0


def wait_until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def end(token: bytes = TOKEN) -> LinkEnd:
    return LinkEnd(HERE, [HERE], token)


def sends(one: LinkEnd, other: LinkEnd, number: int) -> None:
    """On a busy machine one try may pass without anybody having looked."""

    def is_counted() -> bool:
        one.send(place(other), number)
        return other.received().get(number, 0.0) > 0

    wait_until(is_counted)


def place(of: LinkEnd) -> tuple[str, int]:
    return HERE, of.port()


def test_what_a_host_sends_is_counted_under_its_number_and_takes_a_moment() -> None:
    one, other = end(), end()
    for number in (7, 3):
        sends(one, other, number)
    assert other.received().keys() == {7, 3}
    assert one.received() == {}


def test_a_sender_that_is_held_back_has_its_own_rate() -> None:
    other = end()
    with socket.create_connection(place(other)) as way:
        way.sendall(TOKEN + (5).to_bytes(4, "big"))
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            way.sendall(bytes(1000))
            time.sleep(0.01)
        wait_until(lambda: bool(other.received()))
    # At most what was sent in a fifth of a second, counted over a quarter.
    assert other.received()[5] <= 21 * 1000 / 0.25


@pytest.mark.parametrize(
    "says",
    [
        pytest.param(lambda way: way.sendall(TOKEN[:5]), id="half a token"),
        pytest.param(lambda way: None, id="nothing"),
        pytest.param(lambda way: way.sendall(TOKEN + bytes(4)), id="goes before anything is counted"),
    ],
)
def test_who_does_not_belong_there_has_no_figure_and_keeps_nobody_else_from_one(
    says: Callable[[socket.socket], None],
) -> None:
    other = end()
    with socket.create_connection(place(other)) as stranger:
        says(stranger)
    sends(end(), other, 1)
    assert other.received().keys() == {1}


def test_who_has_another_token_has_no_figure_however_long_it_sends() -> None:
    other, stranger = end(), end(bytes(TOKEN_BYTES))
    for _ in range(3):
        stranger.send(place(other), 7)
    sends(end(), other, 1)
    assert other.received().keys() == {1}


def test_an_end_that_is_not_there_costs_nothing_and_raises_nothing() -> None:
    with socket.create_server((HERE, 0)) as gone:
        missing = gone.getsockname()
    end().send(missing, 1)
