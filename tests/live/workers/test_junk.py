"""A neighbour on the network sends junk to where ranks meet, or answers there: real processes on loopback."""

import gc
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from cluster.probe import gloo_store
from cluster.probe import meeting as meetings
from cluster.probe.gloo_store import GlooStore
from cluster.probe.meeting import join, meet_at, meet_in, tcp_store
from cluster.probe.roll_call import Unmet
from jobs.execution.causes import is_echo
from jobs.training.loop.control import Control
from jobs.training.state.rank_mailbox import open_mailboxes
from jobs.training.task.context import Context
from tests.live.ranks import FORKS, run_ranks

KEY = b"the run's own"
DEADLINE_S = 120.0
# Somebody writes it when a rank that is held between the roll call and gloo may go on.
GO = "go"
NEIGHBOUR = "127.0.0.9"
# As Linux counts the states of a connection.
ESTABLISHED = 1
# What torch's clients send first, and questions with lengths that nobody has.
HELLO = b"\x00" + (0x3C85F7CE).to_bytes(4, "little")
JUNK = [
    b"",
    bytes(64),
    b"\xff" * 4096,
    b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    HELLO + b"\x01" + (2**62).to_bytes(8, "little"),
    HELLO + b"\x05" + (2**40).to_bytes(8, "little"),
    HELLO + b"\x63",
]


def test_junk_in_the_rendezvous_is_dropped_and_the_ranks_meet() -> None:
    with ranks() as (start, hear):
        rank_0 = start(0, None, 2)
        meeting = hear(rank_0)
        host, port = place_of(hear(rank_0))
        kept = []
        for junk in JUNK * 3:
            kept.append(socket.create_connection((host, port), DEADLINE_S))
            kept[-1].sendall(junk)
        rank_1 = start(1, meeting, 2)
        assert [hear(rank_0), hear(rank_1)] == ["met", "met"]


def test_a_neighbour_reaches_no_server_of_torchs_before_while_and_after_ranks_meet() -> None:
    """It would keep whatever he sends, in rank 0's memory."""
    with ranks() as (start, hear):
        rank_0 = start(0, None, 2)
        meeting = hear(rank_0)
        host, port = place_of(hear(rank_0))
        assert not reaches(host, port, NEIGHBOUR)
        # At an address of a rank.
        other = client(host, port)
        other.wait(["longhaul/card/0"])
        assert not reaches(host, port, NEIGHBOUR)
        rank_1 = start(1, meeting, 2, is_held=True)
        other.wait(["0//cpu//0/0"])
        assert not reaches(host, port, NEIGHBOUR) and reaches(host, port, host)
        other.set(GO, "")
        assert [hear(rank_0), hear(rank_1)] == ["met", "met"]


@pytest.mark.parametrize("is_of_one_machine", [False, True])
def test_once_gloo_has_connected_the_ranks_nobody_reaches_its_port(
    is_of_one_machine: bool, tmp_path: Path
) -> None:
    """It would end the process at the first who comes when no more files can be opened."""
    ours, theirs = FORKS.Pipe(duplex=False)
    meeting = meet_in(tmp_path) if is_of_one_machine else None
    process = FORKS.Process(target=be_alone, args=(meeting, theirs), daemon=True)
    process.start()
    # Those of the first group and of the control word's; beside them is that of another group, and the store.
    beside = [True] if is_of_one_machine else [True, True]
    assert hear((process, ours)) == str([False, False, *beside])
    process.join()


def be_alone(meeting: str | None, answers: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    meeting = meeting or meet_at("127.0.0.1")
    join(meeting, "gloo", rank=0, world_size=1, key=KEY, timeout_s=DEADLINE_S)
    control = Control(lambda: None, DEADLINE_S, KEY)
    group = dist.new_group(backend="gloo")
    dist.barrier(group)
    control.agree()
    for gate in (thread for thread in threading.enumerate() if thread.name == "gate"):
        gate.join(DEADLINE_S)
    answers.send(str(sorted(reaches(host, port, host) for host, port in listening_of(psutil.Process()))))


def reaches(host: str, port: int, neighbour: str) -> bool:
    """On loopback a first packet is answered, or dropped, before the call that sends it returns."""
    with socket.socket() as asks:
        asks.setblocking(False)
        asks.bind((neighbour, 0))
        asks.connect_ex((host, port))
        return asks.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO) == ESTABLISHED


def test_a_neighbour_who_did_not_come_to_the_gate_reaches_no_mailbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meetings, "_admitted", {"127.0.0.1"})
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    others = listening_of(psutil.Process())
    mailbox = open_mailboxes(
        Context(rank=0, world_size=1, local_rank=0, device=torch.device("cpu"))
    ).to_rank_0
    [(host, port)] = listening_of(psutil.Process()) - others
    mailbox.post("g/1/read", b"verified", to=0)
    assert not reaches(host, port, NEIGHBOUR)
    assert mailbox.take("g/1/read", DEADLINE_S, sender=0) == b"verified"


def test_once_its_ranks_have_come_nobody_reaches_the_mailbox_of_a_leader(tmp_path: Path) -> None:
    said = run_ranks(post_to_leader, num_ranks=3, tmp_path=tmp_path)
    assert said == [(1, [], b""), (1, [False], b"whole"), (0, [], b"")]


def post_to_leader() -> tuple[int, list[bool], bytes]:
    """How many ports are new, whether those of a leader are reached, and what it is told. Runs on a rank."""
    rank = dist.get_rank()
    context = Context(rank=rank, world_size=3, local_rank=0, device=torch.device("cpu"))
    context.node = "abb"[rank]
    others = listening_of(psutil.Process())
    boxes = open_mailboxes(context)
    host = boxes.host
    new = listening_of(psutil.Process()) - others
    if host and rank != host.leader:
        host.mailbox.post("g/2/written", b"whole", to=host.leader)
    told = host.mailbox.take("g/2/written", DEADLINE_S, sender=2) if host and rank == host.leader else None
    are_reached = [reaches(*place, place[0]) for place in new] if told else []
    # None ends, and its server with it, before the others are done.
    dist.barrier()
    return len(new), are_reached, told or b""


def test_where_somebody_spoils_what_ranks_count_all_say_the_same_sentence_and_blame_nobody() -> None:
    with ranks() as (start, hear):
        rank_0 = start(0, None, 3)
        meeting = hear(rank_0)
        host, port = place_of(hear(rank_0))
        rank_1 = start(1, meeting, 3)
        stranger = client(host, port)
        stranger.wait(["longhaul/card/0", "longhaul/card/1"])
        stranger.set("longhaul/card/num", "none")
        said = [hear(rank_0), hear(rank_1)]
    assert said[0] == said[1]
    assert said[0].startswith("Unmet () rank 0 cannot read what ranks tell (")
    assert "another process may have written in their place; keep others off the network" in said[0]


@pytest.mark.parametrize("place", ["cut off", "another rank's", "empty"])
@pytest.mark.parametrize("is_beside", [False, True], ids=["between CPUs", "beside NCCL"])
def test_who_changes_where_gloo_finds_a_rank_ends_no_process_and_blames_nobody(
    is_beside: bool, place: str
) -> None:
    with ranks() as (start, hear):
        rank_0 = start(0, None, 3, is_beside=is_beside)
        meeting = hear(rank_0)
        host, port = place_of(hear(rank_0))
        start(1, meeting, 3, is_beside=is_beside)
        rank_2 = start(2, meeting, 3, is_held=True, is_beside=is_beside)
        stranger, group = client(host, port), "beside/0" if is_beside else "cpu/"
        names = [f"0//{group}/0/{rank}" for rank in (0, 1)]
        stranger.wait(names)
        of_rank_0, of_rank_1 = map(stranger.get, names)
        stranger.set(names[1], {"cut off": of_rank_1[:1], "another rank's": of_rank_0, "empty": b""}[place])
        stranger.set(GO, "")
        said = hear(rank_2)
    # The group beside it knows torch's store alone.
    place = f"{host}:{port}" if is_beside else meeting.removeprefix("tcp://")
    assert said == (
        f"Unmet () somebody else writes to the rendezvous at {place}: words of ranks are changed or gone; "
        "keep others off the network between the machines"
    )


def test_what_torch_writes_there_as_text_is_read_as_its_bytes() -> None:
    store = GlooStore(dist.HashStore(), KEY, "here")
    store.set("barrier", "1")
    assert store.get("barrier") == b"1"


@pytest.mark.parametrize("word", [b"", b"his own", "another", bytes(200)])
def test_what_a_stranger_wrote_there_blames_nobody(word: bytes | str) -> None:
    inner = dist.HashStore()
    GlooStore(inner, KEY, "10.0.0.1:7").set("another", b"1")
    inner.set("0", word if isinstance(word, bytes) else inner.get(word))
    with pytest.raises(Unmet, match=r"^somebody else writes to the rendezvous at 10\.0\.0\.1:7: ") as found:
        GlooStore(inner, KEY, "10.0.0.1:7").get("0")
    assert found.value.ranks == ()


def test_where_rank_0_dies_while_ranks_meet_the_others_echo_it_in_one_sentence() -> None:
    with ranks() as (start, hear):
        rank_0 = start(0, None, 3)
        meeting = hear(rank_0)
        host, port = place_of(hear(rank_0))
        rank_1 = start(1, meeting, 3)
        client(host, port).wait(["longhaul/card/1"])
        rank_0[0].kill()
        said = hear(rank_1)
    assert said.startswith("Rank0Gone: rank 1 on ")
    assert "connection closed, and rank 0's store does not answer any more (" in said
    assert is_echo(said)


@pytest.mark.parametrize("is_silent", [False, True])
def test_who_answers_in_the_place_of_rank_0_is_told_with_the_address(is_silent: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor, ranks() as (start, hear):
        if not is_silent:
            threading.Thread(target=answer_junk, args=[impostor], daemon=True).start()
        port = impostor.getsockname()[1]
        said = hear(start(1, f"tcp://127.0.0.1:{port}", 2, coming_s=3.0))
    assert said.startswith("Unmet () rank 1 on ")
    assert f"what answers at 127.0.0.1:{port} is not rank 0's store (" in said


def answer_junk(listener: socket.socket) -> None:
    with suppress(OSError):
        while True:
            with listener.accept()[0] as asked:
                asked.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)


Rank = tuple[BaseProcess, Connection]


@contextmanager
def ranks() -> Iterator[tuple[Any, Any]]:
    """Inside, ranks are started and heard; the first rank 0 says where they meet."""
    started: list[Rank] = []

    def start(
        rank: int,
        meeting: str | None,
        world_size: int,
        *,
        coming_s: float = DEADLINE_S,
        is_held: bool = False,
        is_beside: bool = False,
    ) -> Rank:
        ours, theirs = FORKS.Pipe(duplex=False)
        given = (meeting, rank, world_size, coming_s, is_held, is_beside, theirs)
        process = FORKS.Process(target=be_rank, args=given, daemon=True)
        process.start()
        theirs.close()
        started.append((process, ours))
        return process, ours

    try:
        yield start, hear
    finally:
        for process, _ in started:
            process.kill()
            process.join()


def hear(rank: Rank) -> str:
    assert rank[1].poll(DEADLINE_S), "a rank says nothing"
    said: str = rank[1].recv()
    return said


def listening_of(process: psutil.Process) -> set[tuple[str, int]]:
    ends = process.net_connections("tcp")
    return {(end.laddr.ip, end.laddr.port) for end in ends if end.status == psutil.CONN_LISTEN}


def place_of(meeting: str) -> tuple[str, int]:
    host, _, port = meeting.removeprefix("tcp://").rpartition(":")
    return host, int(port)


def client(host: str, port: int) -> Any:
    return tcp_store(host, port, None, timedelta(seconds=DEADLINE_S))


def be_rank(
    meeting: str | None,
    rank: int,
    world_size: int,
    coming_s: float,
    is_held: bool,
    is_beside: bool,
    answers: Connection,
) -> None:
    """``is_beside``: what is attacked is the group over gloo beside one whose store is torch's own."""
    meetings.COMING_S = coming_s
    held: list[Any] = []
    if is_beside:
        # As NCCL's.
        gloo_store.for_default_group = lambda inner, key, place: held.append(inner) or inner
    elif is_held:
        connect = dist.init_process_group

        def once_told(*args: Any, store: dist.Store, **named: Any) -> None:
            store.wait([GO], timedelta(seconds=DEADLINE_S))
            connect(*args, store=store, **named)

        dist.init_process_group = once_told
    if meeting is None:
        meeting = meet_at("127.0.0.1")
        answers.send(meeting)
        # Whoever scans the machine finds the store too.
        [(host, port)] = listening_of(psutil.Process()) - {place_of(meeting)}
        answers.send(f"{host}:{port}")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        join(meeting, "gloo", rank=rank, world_size=world_size, key=KEY, timeout_s=2 * DEADLINE_S)
        if is_beside:
            if is_held:
                held[0].wait([GO], timedelta(seconds=DEADLINE_S))
            Control(lambda: None, DEADLINE_S, KEY)
    except Unmet as error:
        answers.send(f"Unmet {error.ranks} {error}")
        # The store of rank 0 would end with it.
        threading.Event().wait(DEADLINE_S)
    except Exception as error:
        answers.send(f"{type(error).__name__}: {error}")
    else:
        gc.collect()
        # Made by words in the same store.
        dist.barrier(dist.new_group(backend="gloo"))
        answers.send("met")
        # Neither ends before the other is done.
        dist.barrier()
