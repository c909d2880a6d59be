"""Somebody in the network who can connect, but has not the run's key: he runs nothing and spoils nothing.

He has torch's own client and knows all of this code.
"""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from ipaddress import ip_address
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from checkpointing.generations.repository import Repository
from checkpointing.saving.save import SaveFailed
from checkpointing.stores.opening import open_store
from cluster.inventory import WorkerGroup
from cluster.live import live_inventory
from cluster.local_ray.private_ray import private_ray
from cluster.probe import gloo_store
from cluster.probe.meeting import Stranger, join, listen_at, meet_at, meet_in, prove, tcp_store
from cluster.probe.roll_call import Card
from cluster.probe.signed_store import in_time
from cluster.run_key import mac, new_key, sign
from jobs.execution.messages import SessionLimits
from jobs.launch.ray_train.cells import launch
from jobs.training.ranks.gathering import BadMessage, from_rank_0, gather
from jobs.training.state import rank_mailbox
from jobs.training.state.rank_mailbox import RankMailbox
from jobs.training.task.context import Context
from jobs.training.task.job import Strategy
from tests.live.attempts import Story, Wanted, attempt
from tests.live.listening import ENDLESS, Listener, job, session, workers
from tests.live.ranks import FORKS, run_ranks
from tests.live.trainings import STRATEGIES, recipe_for

KEY = b"the run's own"
DEADLINE = timedelta(seconds=60)

# Comes in as rank 1 and answers each collective of the proof, if there is one, before he sends what runs
# wherever it is unpickled.
STRANGER = """
import sys, torch, torch.distributed as dist
from datetime import timedelta
address, proofs, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
class Evil:
    def __reduce__(self):
        return (exec, (f"open({path!r}, 'w')",))
host, _, port = address.removeprefix("tcp://").rpartition(":")
patience = timedelta(seconds=20)
store = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=patience)
store.set("longhaul/card/1", bytes.fromhex(sys.argv[4]))
store.add("longhaul/card/num", 1)
dist.init_process_group("gloo", store=store, rank=1, world_size=2, timeout=patience)
print("in rank 1's place", flush=True)
for _ in range(proofs):
    word = torch.randint(256, (32,), dtype=torch.uint8)
    dist.all_gather([torch.empty_like(word), torch.empty_like(word)], word)
dist.all_gather_object([None, None], Evil())
"""


@pytest.mark.parametrize("num_proofs", [0, 1, 2])
def test_who_takes_rank_1s_seat_is_found_out_and_nothing_of_his_runs(num_proofs: int, tmp_path: Path) -> None:
    ours, theirs = FORKS.Pipe(duplex=False)
    rank_0 = FORKS.Process(target=be_rank_0, args=(theirs,), daemon=True)
    rank_0.start()
    theirs.close()
    run_by_him = tmp_path / "run-by-him"
    # Rank 1's own, which he has heard and repeats.
    told = json.dumps(asdict(Card(rank=1, host="his"))).encode()
    card = sign(KEY, ("roll call", "longhaul/card/1"), told)
    try:
        assert ours.poll(60)
        stranger = subprocess.run(
            [sys.executable, "-c", STRANGER, ours.recv(), str(num_proofs), str(run_by_him), card.hex()],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ours.poll(60)
        said = ours.recv()
    finally:
        rank_0.kill()
        rank_0.join()
    assert "in rank 1's place" in stranger.stdout, stranger.stderr
    assert not run_by_him.exists()
    assert said != "welcome"
    if num_proofs == 2:
        assert said.startswith("Stranger: rank 1: another process sits in this place, which does not know")


class Unsigned(gloo_store.GlooStore):
    def set(self, name: str, value: bytes | str) -> None:
        self._inner.set(name, value)

    def get(self, name: str) -> bytes:
        return bytes(self._inner.get(name))


def be_rank_0(answers: Connection) -> None:
    """As a worker does on the first of several machines, up to the first words of all ranks.

    Where gloo finds a rank is not signed, as if he were between the two and passed on what rank 1 signed.
    """
    gloo_store.GlooStore = Unsigned  # type: ignore[misc]  # in this process
    meeting = meet_at("127.0.0.1")
    # Whoever scans the machine finds the store too, to which the gate keeps other machines from coming.
    [store] = {f"tcp://127.0.0.1:{port}" for port in listening_ports()} - {meeting}
    answers.send(store)
    try:
        join(meeting, "gloo", rank=0, world_size=2, key=KEY, timeout_s=30)
        gather("hello", str)
    except Exception as error:
        answers.send(f"{type(error).__name__}: {error}")
    else:
        answers.send("welcome")
    answers.close()
    os._exit(0)


def listening_ports() -> list[int]:
    ends = psutil.Process().net_connections("tcp")
    return [end.laddr.port for end in ends if end.status == psutil.CONN_LISTEN]


def test_ranks_with_the_key_meet_in_a_file_and_at_an_address(tmp_path: Path) -> None:
    for meeting in (meet_in(tmp_path), None):
        assert meet(meeting) == ["rank 0", "rank 1"]
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert folder.stat().st_mode & 0o077 == 0


def meet(meeting: str | None) -> list[str]:
    ours, theirs = FORKS.Pipe()
    ranks = [FORKS.Process(target=be_at, args=(meeting, rank, theirs), daemon=True) for rank in (0, 1)]
    try:
        ranks[0].start()
        if meeting is None:
            assert ours.poll(60)
            ranks[1] = FORKS.Process(target=be_at, args=(ours.recv(), 1, theirs), daemon=True)
        ranks[1].start()
        assert ours.poll(60)
        found: list[str] = ours.recv()
        return found
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()


def be_at(meeting: str | None, rank: int, answers: Connection) -> None:
    if meeting is None:
        meeting = meet_at("127.0.0.1")
        answers.send(meeting)
    join(meeting, "gloo", rank=rank, world_size=2, key=KEY, timeout_s=60)
    found = gather(f"rank {rank}", str)
    if rank == 0:
        answers.send(found)
    # Neither ends before the other is done.
    dist.barrier()


def test_a_rank_with_another_key_is_named_on_all_ranks(tmp_path: Path) -> None:
    said = run_ranks(proof_of_one_stranger, num_ranks=3, tmp_path=tmp_path)
    assert said[0] == said[2] and said[0].startswith("rank 1: another process sits in this place")
    assert said[1].startswith("rank 0, rank 2: another process")


def proof_of_one_stranger() -> str:
    prove(KEY)
    try:
        prove(b"another" if dist.get_rank() == 1 else KEY)
    except Stranger as error:
        return str(error)
    return ""


class Heard:
    """A group of two as rank 0 hears it. Of each word, ``hears`` says what comes as rank 0's and rank 1's."""

    def __init__(self, hears: Callable[[torch.Tensor], Sequence[torch.Tensor]]) -> None:
        self._hears = hears

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2

    def name(self) -> str:
        return "gloo"

    def allgather(self, into: list[list[torch.Tensor]], own: list[torch.Tensor]) -> "Heard":
        for place, word in zip(into[0], self._hears(own[0]), strict=True):
            place.copy_(word)
        return self

    def wait(self) -> None:
        pass


def test_who_echoes_what_a_rank_says_passes_for_no_other_rank() -> None:
    with pytest.raises(Stranger, match=r"^rank 1: another process sits in this place"):
        prove(KEY, Heard(lambda word: [word, word]))  # type: ignore[arg-type]  # all that is asked of a group


def test_who_says_again_all_that_was_once_heard_is_found_out() -> None:
    words = [bytes(32), bytes(32)]
    answers = [mac(KEY, ("sits in the place of", rank), b"".join(words)) for rank in (0, 1)]
    earlier = iter(
        [[torch.tensor([*one], dtype=torch.uint8) for one in all_of] for all_of in (words, answers)]
    )
    with pytest.raises(Stranger, match=r"^somebody: another process sits in this place"):
        prove(KEY, Heard(lambda _: next(earlier)))  # type: ignore[arg-type]  # as above


def test_nobody_reads_more_of_a_peer_than_was_agreed(tmp_path: Path) -> None:
    said = run_ranks(tell_too_much, num_ranks=2, tmp_path=tmp_path)
    assert said == ["rank 1 sends 102 bytes, expected at most 101"] * 2


def tell_too_much() -> str:
    own = "x" * (100 if dist.get_rank() == 1 else 2)
    assert gather(own, str, most_bytes=102) == ["xx", "x" * 100]
    try:
        gather(own, str, most_bytes=101)
    except BadMessage as error:
        return str(error)
    raise AssertionError("two bytes of quotes are bytes too")


def test_what_rank_0_says_is_the_same_on_all_ranks_and_of_the_type_that_is_expected(tmp_path: Path) -> None:
    said = run_ranks(hear_rank_0, num_ranks=2, tmp_path=tmp_path)
    assert said == [(7, "", ["a", "bb"], "rank 0's message can't be read: it is 7, expected str")] * 2


def hear_rank_0() -> tuple[int, str, list[str], str]:
    rank = dist.get_rank()
    number, nothing = from_rank_0(7 + rank, int), from_rank_0("" if rank == 0 else "x", str)
    words = gather("a" if rank == 0 else "bb", str)
    try:
        from_rank_0(7, str)
    except BadMessage as error:
        return number, nothing, words, str(error)
    raise AssertionError("a number is no text")


# The mailbox.


class Post:
    """Two ranks' ends of one mailbox, and somebody else's client to its server."""

    def __init__(self) -> None:
        listener = listen_at("127.0.0.1")
        port = listener.getsockname()[1]
        self.server = tcp_store("127.0.0.1", port, listener, DEADLINE)
        self.stranger = tcp_store("127.0.0.1", port, None, DEADLINE)
        key = new_key()
        self.key = key
        self.rank_0, self.rank_1 = (RankMailbox(self._client(port), here(rank), key) for rank in (0, 1))

    def _client(self, port: int) -> Any:
        return tcp_store("127.0.0.1", port, None, DEADLINE)

    def word(self, name: str, *, sender: int, to: int) -> bytes:
        """As a rank wrote it, and the stranger heard it."""
        RankMailbox(self.stranger, here(sender), self.key).post(name, b"verified", to=to)
        return bytes(self.stranger.get(name))


def here(rank: int) -> Context:
    return Context(rank=rank, world_size=2, local_rank=rank, device=torch.device("cpu"))


def test_a_message_is_taken_once() -> None:
    post = Post()
    post.rank_1.post("g/1/read", b"verified", to=0)
    assert post.rank_0.take("g/1/read", 30, sender=1) == b"verified"
    assert post.rank_0.take("g/1/read", 0.01, sender=1) is None


@pytest.mark.parametrize(
    ("proof", "is_leader"),
    [("its own", True), ("an earlier attempt's", False), ("a stranger's", False), ("none", False)],
)
def test_a_rank_tells_nobody_of_its_saves_but_its_leader(
    proof: str, is_leader: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_mailbox, "_LEADER_WITHIN_S", 1.0)
    listener = listen_at("127.0.0.1")
    port = listener.getsockname()[1]
    key = new_key()
    server = tcp_store("127.0.0.1", port, listener, DEADLINE)
    box = RankMailbox(server, here(0), new_key() if proof == "a stranger's" else key)
    if proof != "none":
        box.post("led/1", str(port + (proof == "an earlier attempt's")).encode(), to=1)
    found = rank_mailbox._box_of_leader(here(1), 0, port, key)
    assert (found is not None) == is_leader


def test_a_message_that_is_discarded_is_gone_from_the_server() -> None:
    post = Post()
    post.rank_1.post("g/1/written", bytes(1000), to=0)
    assert post.rank_0.discard("g/1/written")
    assert not post.server.check(["g/1/written"])
    assert not post.rank_0.discard("g/1/written")


@pytest.mark.parametrize(
    ("forge", "why"),
    [
        (lambda post: b"corrupt: says nobody who was there", "MAC is wrong"),
        (lambda post: b"", "0 bytes, expected a MAC"),
        (lambda post: sign(new_key(), ("g/1/read", 1, 0), b"verified"), "MAC is wrong"),
        (lambda post: post.word("f/1/read", sender=1, to=0), "MAC is wrong"),
        (lambda post: post.word("g/1/read", sender=0, to=0), "MAC is wrong"),
        (lambda post: post.word("g/1/read", sender=1, to=1), "MAC is wrong"),
    ],
    ids=["in the clear", "nothing", "another key", "another name", "another sender", "another recipient"],
)
def test_a_strangers_word_is_named_and_the_ranks_own_is_taken_after_it(
    forge: Callable[[Post], bytes], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    post = Post()
    post.stranger.set("g/1/read", forge(post))
    answers: list[bytes | None] = []
    with caplog.at_level(logging.WARNING):
        taker = threading.Thread(target=lambda: answers.append(post.rank_0.take("g/1/read", 60, sender=1)))
        taker.start()
        # Once it is gone, it has been read.
        while post.server.check(["g/1/read"]):
            pass
        post.rank_1.post("g/1/read", b"verified", to=0)
        taker.join(60)
    assert answers == [b"verified"]
    (said,) = caplog.messages
    assert said.startswith("mailbox: g/1/read: a message as of rank 1 is refused: ")
    assert why in said


def test_a_message_of_a_rank_that_there_is_not_is_none(caplog: pytest.LogCaptureFixture) -> None:
    post = Post()
    post.stranger.set("g/7/read", sign(post.key, ("g/7/read", 7, 0), b"verified"))
    assert post.rank_0.take("g/7/read", 0.1, sender=7) is None
    assert "there are ranks 0 to 1" in caplog.text


class Flooded:
    """A store to which somebody writes faster than a rank reads."""

    def __init__(self) -> None:
        self._end = time.monotonic() + DEADLINE.total_seconds()

    def set_timeout(self, _: timedelta) -> None:
        pass

    def get(self, _: str) -> bytes:
        assert time.monotonic() < self._end, "a rank reads on"
        return b"x"

    def delete_key(self, _: str) -> bool:
        return True


def test_who_never_stops_writing_holds_up_no_rank_and_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert RankMailbox(Flooded(), here(0), KEY).take("g/1/read", 0.1, sender=1) is None
    assert len(caplog.messages) == 1


class Emptied:
    """A store of which somebody deletes each message just before it is read."""

    def __init__(self, store: Any, stranger: Any) -> None:
        self._store = store
        self._stranger = stranger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, name: str) -> bytes:
        self._stranger.delete_key(name)
        return bytes(self._store.get(name))


def test_who_deletes_what_a_rank_is_about_to_read_holds_it_up_no_longer_than_it_waits() -> None:
    post = Post()
    reader = RankMailbox(Emptied(post.server, post.stranger), here(0), post.key)
    post.rank_1.post("g/1/read", b"verified", to=0)
    assert in_time(lambda: reader.take("g/1/read", 0.1, sender=1), 10) is None


def test_what_is_too_long_for_a_message_costs_its_save() -> None:
    with pytest.raises(SaveFailed, match="8388608 bytes for rank 0, expected at most 8387584"):
        Post().rank_1.post("g/1/written", bytes(2**23), to=0)


def test_a_stranger_in_the_mailbox_of_a_run_quarantines_nothing(tmp_path: Path) -> None:
    wanted = Wanted(
        name="r",
        recipe=recipe_for("ddp", world_size=2),
        num_steps=4,
        store=tmp_path / "store",
        every_steps=2,
        # He overwrites what is waited for.
        deadline_s=10.0,
    )
    (story, num_written), _ = run_ranks(train_beside_a_stranger, wanted, num_ranks=2, tmp_path=tmp_path)
    assert num_written > 0
    assert story.end.step == 4
    view = Repository(open_store(str(wanted.store)), "r").refresh()
    assert [(one.step, one.quarantined) for one in view.generations] == [(2, None), (4, None)]


def train_beside_a_stranger(wanted: Wanted) -> tuple[Story, int]:
    if dist.get_rank() != 0:
        return attempt(wanted), 0
    ports: list[int] = []
    is_over = threading.Event()
    inner = rank_mailbox.tcp_store

    def seen(address: str, port: int, *rest: Any) -> Any:
        ports.append(port)  # Who scans the machine finds it too.
        return inner(address, port, *rest)

    rank_mailbox.tcp_store = seen
    num_written: list[str] = []
    stranger = threading.Thread(target=write_into, args=(ports, is_over, num_written))
    stranger.start()
    try:
        return attempt(wanted), len(num_written)
    finally:
        is_over.set()
        stranger.join()


def write_into(ports: list[int], is_over: threading.Event, written: list[str]) -> None:
    """All the time: that rank 1 found corrupt what it read back, of each generation that he sees."""
    while not ports:
        if is_over.wait(0.001):
            return
    client = tcp_store("127.0.0.1", ports[0], None, DEADLINE)
    known: set[str] = set()
    while not is_over.wait(0.001):
        with suppress(RuntimeError):
            known.update(name.split("/")[-3] for name in client.list_keys())
            for generation in known:
                client.set(f"{generation}/1/read", "corrupt: says nobody who was there")
                written.append(generation)


# What torch itself does.


@pytest.mark.parametrize(
    "strategies",
    # One of each library, and that which sends most.
    [("ddp", "zero3"), pytest.param(STRATEGIES, marks=pytest.mark.soak)],
    ids=["some", "all"],
)
def test_nothing_that_a_strategy_does_unpickles_what_a_peer_sends(
    strategies: tuple[Strategy, ...], tmp_path: Path
) -> None:
    wanted = [
        Wanted(
            name=strategy,
            recipe=recipe_for(strategy, world_size=2),
            num_steps=num_steps,
            store=tmp_path / "store",
            disk=tmp_path / "disk",
            every_steps=2,
            eval_every=2,
        )
        for strategy in strategies
        # The second one goes on from what the first one saved.
        for num_steps in (2, 4)
    ]
    assert run_ranks(attempt_without_pickles, wanted, num_ranks=2, tmp_path=tmp_path) == [len(wanted)] * 2


def attempt_without_pickles(wanted: list[Wanted]) -> int:
    def refuse(*_args: Any) -> Any:
        raise AssertionError("a peer's bytes are unpickled")

    # All of torch's collectives of objects read through this one.
    distributed_c10d._tensor_to_object = refuse
    with pytest.raises(AssertionError, match="unpickled"):
        dist.all_gather_object([None, None], 1)
    return len([attempt(one) for one in wanted])


# Under Ray.

LIMITS = SessionLimits(schedule_timeout_s=120, cell_timeout_s=300, hang_timeout_s=60)


@pytest.fixture(scope="module")
def group() -> Iterator[WorkerGroup]:
    with private_ray(num_cpus=2):
        (group,) = live_inventory().groups
        yield group


class Seen(Exception):
    """That is enough."""


@pytest.mark.soak
def test_the_ranks_of_one_machine_listen_on_loopback_alone(group: WorkerGroup) -> None:
    found: list[list[str]] = []

    def look() -> None:
        found.extend(map(addresses, workers()))
        raise Seen

    listener = Listener(act=look, act_at_ranks=2)
    with pytest.raises(Seen):
        launch({group.name: [session(group, job("a", group, world_size=2, steps=ENDLESS))]}, LIMITS, listener)
    assert len(found) == 2
    for of_worker in found:
        assert any(map(is_loopback, of_worker))
        # One is Ray's own, which asks for the cluster's token.
        assert len([address for address in of_worker if not is_loopback(address)]) <= 1


def addresses(process: psutil.Process) -> list[str]:
    """At which the process listens."""
    sockets = process.net_connections("tcp")
    return [one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN]


def is_loopback(address: str) -> bool:
    return ip_address(address.removeprefix("::ffff:")).is_loopback
