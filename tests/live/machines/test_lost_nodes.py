"""A node that takes no connection is lost, whatever Ray knows of it by then: real sockets in Ray's table."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from cluster import live
from cluster.live import lost_nodes


def row(node_id: str, port: int, *, reason: int | None = None) -> dict[str, Any]:
    return {
        "NodeID": node_id,
        "Alive": reason is None,
        "DeathReason": reason or 0,
        "NodeManagerAddress": "127.0.0.1",
        "NodeManagerPort": port,
    }


@pytest.fixture
def ports() -> Iterator[dict[str, int]]:
    with ExitStack() as sockets:

        def listener(backlog: int) -> socket.socket:
            one = sockets.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            one.listen(backlog)
            return one

        # As a raylet that is too busy to accept anything.
        busy, full, refusing = listener(8), listener(0), socket.socket()
        for _ in range(4):
            # Beyond what it queues nothing is answered, as from a machine without power.
            waiting = sockets.enter_context(socket.socket())
            waiting.settimeout(0.2)
            with suppress(TimeoutError):
                waiting.connect(full.getsockname())
        with refusing:
            refusing.bind(("127.0.0.1", 0))
            yield {
                name: one.getsockname()[1]
                for name, one in {"busy": busy, "full": full, "refusing": refusing}.items()
            }


def told(table: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, draining: str = "") -> dict[str, bool]:
    monkeypatch.setattr(live.ray, "nodes", lambda: table)
    monkeypatch.setattr(live, "draining_nodes", lambda: frozenset({draining}))
    return lost_nodes({node["NodeID"] for node in table if node["NodeID"] != "not asked"})


def test_who_refuses_or_does_not_answer_is_lost_and_who_is_busy_is_not(
    ports: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = [row("busy", ports["busy"]), row("not asked", ports["refusing"])]
    assert told(table, monkeypatch) == {}
    assert told([row("refusing", ports["refusing"])], monkeypatch) == {"refusing": False}
    assert told([row("full", ports["full"])], monkeypatch) == {"full": False}
    assert told([row("full", ports["full"])], monkeypatch, draining="full") == {"full": True}


def test_whom_ray_has_found_dead_is_not_asked(ports: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    table = [row("preempted", ports["refusing"], reason=3), row("ended", ports["busy"], reason=1)]
    assert told(table, monkeypatch) == {"preempted": True, "ended": False}


def test_of_many_silent_nodes_two_are_asked(ports: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    table = [row(str(number), ports["refusing"]) for number in range(5)]
    assert len(told(table, monkeypatch)) == 2
