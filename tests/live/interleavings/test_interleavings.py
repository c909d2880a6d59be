"""Copies, steps, stops, faults and peers' answers in any order: what is read is what some step has left.

The real classes save and restore, on threads and ranks that go on one at a time. Whatever the order: no
generation is torn, nothing waits for ever, and a save that a stop, a fault or a crash overtakes is whole or
never was. Each start goes on from the newest one that is whole anywhere.
"""

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from checkpointing.format.digests import digests
from checkpointing.format.manifest import Cut, FilePart
from checkpointing.generations.repository import Repository
from checkpointing.saving.memory_tier import MOST_SAVES
from checkpointing.saving.save import Save
from checkpointing.stores.contract import Buffer, Missing, Unavailable
from checkpointing.stores.memory import MemoryStore
from jobs.training.loop.last_state import PeersLost
from jobs.training.state.saved_run import SavedRun
from tests.live.interleavings.in_turn import Turns
from tests.live.interleavings.ranks import (
    EPOCHS_END,
    RUN,
    Life,
    Plan,
    near_of,
    ranks_in_turn,
    run_of,
    steps_in,
    train,
)
from tests.live.interleavings.wire import Peer, Wire
from tests.unit.seeds import each_seed, in_processes

# ``cut``: a node reaches no other one any more, and its rank trains on for a while.
Fault = Literal["none", "stop", "failure", "kill", "stop and kill", "cut"]
FAULTS: tuple[Fault, ...] = ("none", "stop", "failure", "kill", "kill", "kill", "stop and kill", "cut")
NUM_STEPS = 3
# Of some: so many have five snapshots, if their copies come within a step, and no save in the store.
MANY_STEPS, NEVER = 13, 100
# About as many turns as an attempt of that many steps has.
MOST_TURNS = 400
NUM_FAULTS = (1, 1, 1, 1, 1, 2)
# How often the clock jumps, a piece of a share is damaged on its way, and a share while nobody looks.
JUMPS = (0.0, 0.0, 0.0, 0.002)
DAMAGES = (0.0, 0.0, 0.0, 0.05)
DAMAGED = 0.2
# Which share of the calls of a store fails, before or after it is carried out.
AWAYS = (0.0, 0.0, 0.0, 0.02)
# Of turns, a thousand a second.
UPLOAD_S = (0.0, 0.0, 0.0, 0.2)
# Of a step: a snapshot's copies are on their way for many steps, or come within one.
STEP_S = (0.0, 0.05, 5.0)
# Where they lie in a share's file.
TENSORS = (4096, 4096 + 8 * 30)
# A folder in memory is the faster one.
MEMORY = Path("/dev/shm")


class TurningStore(MemoryStore):
    """Others have their turn before each call. ``is_away`` says before each call of a rank, and after it,
    whether it fails.
    """

    def __init__(self, turns: Turns, upload_s: Callable[[], float], is_away: Callable[[], bool]) -> None:
        super().__init__()
        self._turns = turns
        self._upload_s = upload_s
        self._is_away = is_away

    def put(self, name: str, data: Buffer) -> None:
        # An upload takes its time, as long as some other threads have many turns.
        with self._called(f"put {name}", self._upload_s()):
            super().put(name, data)

    def create(self, name: str, data: Buffer) -> None:
        with self._called(f"create {name}"):
            super().create(name, data)

    def get(self, name: str) -> bytes:
        with self._called(f"get {name}"):
            return super().get(name)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        with self._called(f"list {prefix}"):
            return super().list(prefix, after=after)

    def delete(self, name: str) -> None:
        with self._called(f"delete {name}"):
            super().delete(name)

    @contextmanager
    def _called(self, what: str, takes_s: float = 0.0) -> Iterator[None]:
        self._turns.wait(what, lambda: False, timeout_s=takes_s)
        is_of_rank = isinstance(self._turns.process, Peer)
        if is_of_rank and self._is_away():
            raise Unavailable(f"{what}: away")
        yield
        if is_of_rank and self._is_away():
            raise Unavailable(f"{what}: away, and it was carried out")


class Run:
    """A run of several attempts, of which each but the last meets a fault."""

    def __init__(self, turns: Turns, rng: random.Random, plan: Plan, *, damages: float, aways: float) -> None:
        self.num_from_memory = 0
        self._turns = turns
        self._rng = rng
        self._plan = plan
        self._damages = damages
        self._is_calm = not (damages or aways or turns.jumps)
        self._aways = aways
        self._store = TurningStore(
            turns, lambda: rng.choice(UPLOAD_S), lambda: self._aways > 0 and rng.random() < self._aways
        )
        self._nodes = [f"node-{rank}" for rank in range(plan.num_ranks)]
        self._num_nodes = plan.num_ranks
        self._wires: dict[Peer, Wire] = {}
        self._zombies: list[Peer] = []
        # Of the saves that lie with all ranks and their keepers: the newest one, and what is lost since.
        self._promised = 0
        self._lost_since: set[str] = set()
        self._with_copies: dict[str, set[int]] = {}
        self._broken: set[Path] = set()
        # Whether a save of the epoch's end was told to have failed, as where a node was cut off meanwhile.
        self._is_end_dropped = False

    def has_copies(self, save: Save) -> None:
        ranks = self._with_copies.setdefault(save.cut.generation, set())
        ranks.add(save.part.rank)
        process = self._turns.process
        assert isinstance(process, Peer)
        if len(ranks) == self._plan.num_ranks and not process.is_cut:
            self._promised, self._lost_since = save.cut.step, set()

    def wire(self) -> Wire:
        process = self._turns.process
        assert isinstance(process, Peer)
        return self._wires[process]

    def live(self) -> None:
        for _ in range(self._rng.choice(NUM_FAULTS)):
            self._attempt(self._rng.choice(FAULTS))
        # All is done already where no fault came in time.
        self._turns.jumps = self._aways = 0.0
        lives = self._attempt("none")
        if self._were_half_loaded(lives):
            lives = self._attempt("none")
        assert [life.end for life in lives] == ["done"] * len(lives), lives
        self._check_the_end()

    def _attempt(self, fault: Fault) -> list[Life]:
        turns, rng, plan = self._turns, self._rng, self._plan
        own = Repository(self._store, RUN)
        term = own.take_over("a test")
        turns.story.append(f"attempt {term}: {fault}")
        saved = run_of(plan, term, f"{term:08x}", own.lineage())
        expected = self._newest_whole(own, saved)
        promised = (self._promised, len(self._lost_since))
        peers = [Peer(f"{term}/{rank}", rank=rank) for rank in range(plan.num_ranks)]
        lives = [Life(peer=peer, node=node) for peer, node in zip(peers, self._nodes, strict=True)]
        wire = Wire(turns, peers, self._damaging(lives))
        self._wires |= dict.fromkeys(peers, wire)
        if fault == "failure":
            rng.choice(lives).fails_at = rng.randint(1, plan.num_steps)
        are_done = [
            turns.start(partial(train, life, plan, saved, wire, self._store), process=life.peer, name="train")
            for life in lives
        ]
        self._meet(fault, lives, lambda: all(is_done() for is_done in are_done))
        self._wait_turns(rng.choice((0, 0, 30, 300)), lambda: False)
        zombies = [peer for peer in peers if peer.is_cut]
        for peer in {*peers, *self._zombies} - {*zombies}:
            turns.kill(peer)
        self._zombies = zombies
        self._check_lives(fault, lives, expected, promised, own)
        notes = [note for life in lives for note in life.notes if note.problem and note.place == "store"]
        self._is_end_dropped |= any(note.step == EPOCHS_END for note in notes)
        self._check_whole(saved)
        self._lose_nodes(fault, lives)
        if rng.random() < DAMAGED:
            self._damage_one(saved)
        return lives

    def _damaging(self, lives: Sequence[Life]) -> Callable[[], bool]:
        """Whether the next piece is damaged. At a start two may be, and then the third try brings all."""
        num_left = 2

        def is_damaged() -> bool:
            nonlocal num_left
            is_at_start = any(life.start is None for life in lives)
            if not self._damages or (is_at_start and not num_left) or self._rng.random() >= self._damages:
                return False
            num_left -= is_at_start
            return True

        return is_damaged

    def _meet(self, fault: Fault, lives: Sequence[Life], are_done: Callable[[], bool]) -> None:
        turns, rng = self._turns, self._rng
        if fault in ("stop", "stop and kill", "kill", "cut"):
            self._wait_turns(rng.randrange(MOST_TURNS), are_done)
        if fault in ("stop", "stop and kill"):
            rng.choice(lives).is_asked_to_stop = True
        if fault == "stop and kill":
            self._wait_turns(rng.randrange(MOST_TURNS // 2), are_done)
        if fault in ("kill", "stop and kill"):
            for life in rng.sample(lives, rng.randint(1, len(lives))):
                turns.kill(life.peer)
        if fault == "cut":
            rng.choice(lives).peer.is_cut = True
        dead = [life for life in lives if life.peer.is_killed]
        if dead or fault == "cut":
            self._ask_for_last_states([life for life in lives if life not in dead])
        if fault in ("none", "stop", "failure") or (not dead and fault != "cut"):
            turns.wait("all are done", are_done)

    def _ask_for_last_states(self, lives: Sequence[Life]) -> None:
        """As Ray Train's controller or the driver does, or is too late to do."""
        for life in lives:
            if life.last_state and self._rng.random() < 0.5:
                leave = partial(life.last_state.leave, within_s=self._rng.choice((0.0, 2.0)))
                self._turns.start(lambda leave=leave: leave() and None, process=life.peer, name="controller")

    def _wait_turns(self, num: int, are_done: Callable[[], bool]) -> None:
        last = self._turns.num_turns + num
        # If nobody goes on, the clock does.
        self._turns.wait("a while", lambda: self._turns.num_turns >= last or are_done(), timeout_s=1e6)

    def _lose_nodes(self, fault: Fault, lives: Sequence[Life]) -> None:
        """A rank whose node is cut off gets another one; a killed one's memory may be lost with it."""
        for life in lives:
            is_lost = fault in ("kill", "stop and kill") and self._rng.random() < 0.25
            if is_lost:
                shutil.rmtree(self._plan.folder / life.node, ignore_errors=True)
            if is_lost or life.peer.is_cut:
                self._lost_since.add(life.node)
            if life.peer.is_cut:
                self._nodes[life.peer.rank] = f"node-{self._num_nodes}"
                self._num_nodes += 1

    def _damage_one(self, saved: SavedRun) -> None:
        """Turns one bit of a share that lies in a node's memory."""
        paths = sorted({path for *_, path in self._shares(saved) if "/memory/" in str(path)})
        if paths:
            path = self._rng.choice(paths)
            data = bytearray(path.read_bytes())
            data[self._rng.randrange(*TENSORS)] ^= 1
            path.write_bytes(data)
            self._broken.add(path)
            # Where the other copy is lost too.
            self._lost_since.add(f"{path}")

    def _newest_whole(self, own: Repository, saved: SavedRun) -> tuple[str, int] | None:
        """What a start must go on from: name and step."""
        places = {
            one.name: (one.term, one.number, one.step)
            for one in own.view.generations
            if one.quarantined is None
        }
        ranks: dict[str, set[int]] = {}
        for cut, part, path in self._shares(saved):
            # What is damaged there may lie in the store, uncommitted.
            files = [path.read_bytes()]
            with suppress(Missing):
                files.append(self._store.get(f"{own.place(cut.generation).folder}/{part.file}"))
            if all(digests(memoryview(file)) != part.chunks for file in files):
                continue
            ranks.setdefault(cut.generation, set()).add(part.rank)
            known = own.view.generation(cut.generation)
            if len(ranks[cut.generation]) == self._plan.num_ranks and not (known and known.quarantined):
                places[cut.generation] = (cut.term, cut.number, cut.step)
        if not places:
            return None
        name = max(places, key=lambda one: places[one])
        return name, places[name][2]

    def _shares(self, saved: SavedRun) -> Iterator[tuple[Cut, FilePart, Path]]:
        for node in self._nodes:
            near = near_of(self._plan, node, saved)
            for tier in near.fastest_first:
                for cut, part in tier.inventory():
                    place = tier.place(cut.generation)
                    yield cut, part, Path(place.store.url) / place.folder / part.file

    def _check_lives(
        self,
        fault: Fault,
        lives: Sequence[Life],
        expected: tuple[str, int] | None,
        promised: tuple[int, int],
        own: Repository,
    ) -> None:
        began = [life for life in lives if life.start is not None]
        starts = {life.start for life in began if life.start is not None}
        assert len(starts) <= 1, f"ranks began at different steps: {starts}"
        if began and expected:
            own.refresh()
            poison = [one.name for one in own.view.generations if one.quarantined]
            was_passed = expected[0] in poison or any(
                "ended before one step" in one for one in began[0].trail
            )
            assert starts == {expected[1]} or was_passed, (expected, began[0].trail)
        step, num_lost = promised
        if began and num_lost < 2:
            assert min(starts) >= step, (promised, began[0])
        self.num_from_memory += any("the hosts' memory" in life.trail[-1] for life in began if life.trail)
        expected_ones = (RuntimeError, PeersLost, *([Unavailable] if self._aways else []))
        errors = [life.error for life in lives if life.error and not isinstance(life.error, expected_ones)]
        if self._were_half_loaded(lives):
            assert expected is None or not self._is_calm, expected
            return
        if fault == "failure":
            errors = [error for error in errors if type(error).__name__ != "Failure"]
        assert not errors, errors
        if fault in ("none", "stop") and self._is_calm:
            assert not [life.error for life in lives if life.error]
            assert all(life.end for life in lives), lives
            assert not [note for life in lives for note in life.notes if note.problem], lives
            assert lives[0].problem is None

    def _were_half_loaded(self, lives: Sequence[Life]) -> bool:
        """Whether what memory alone had was damaged, so that the next attempt begins anew."""
        return all("the next attempt looks again" in str(life.error) for life in lives)

    def _check_whole(self, saved: SavedRun) -> None:
        """All that any node or the store has of a generation is to the bit what its step has left."""
        in_memory: dict[str, set[str]] = {}
        for cut, part, path in self._shares(saved):
            file = path.read_bytes()
            if path in self._broken:
                continue
            assert digests(memoryview(file)) == part.chunks, f"{path} is not what its part says"
            assert steps_in(file, part.rank) == cut.step, f"{path} is torn"
            if "/memory/" in str(path):
                in_memory.setdefault(path.parts[-8], set()).add(cut.generation)
        for node, names in in_memory.items():
            # What is left when a peer is lost comes beside them, be it of two steps.
            assert len(names) <= MOST_SAVES + 2 * self._plan.is_replicated, (node, names)
        own = Repository(self._store, RUN)
        for one in own.refresh().generations:
            for part in own.manifest(one).parts:
                file = self._store.get(f"{own.place(one.name).folder}/{part.file}")
                assert digests(memoryview(file)) == part.chunks
                assert steps_in(file, part.rank) == one.step, f"{one.name}: rank {part.rank} is torn"

    def _check_the_end(self) -> None:
        view = Repository(self._store, RUN).refresh()
        newest = view.generations[-1]
        assert newest.step == self._plan.num_steps and newest.quarantined is None
        if self._is_calm:
            ends = [one.step for one in view.generations if one.epoch_end == 1 and one.is_whole]
            assert EPOCHS_END in ends or self._is_end_dropped, (
                "whatever a start went on from, the epoch's end got into the store"
            )
            left = [
                path
                for node in self._nodes
                for path in (self._plan.folder / node / "memory").rglob("*.safetensors")
            ]
            assert left == [], "memory is given back at the end"


def explore(seed: int) -> int:
    """Returns how many turns it took."""
    rng = random.Random(seed)
    is_long = rng.random() < 0.15
    place = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="longhaul-test-", dir=place) as folder:
        plan = Plan(
            folder=Path(folder),
            num_ranks=3 if rng.random() < 0.1 else 2,
            is_replicated=rng.random() < 0.4,
            num_steps=MANY_STEPS if is_long else NUM_STEPS,
            step_s=max(STEP_S) if is_long else rng.choice(STEP_S),
            copies_lazily=rng.random() < 0.75,
            must_wait=rng.random() < 0.3,
            has_disk=rng.random() < 0.2,
            store_every=NEVER if is_long else 2,
        )
        turns = Turns(rng, jumps=rng.choice(JUMPS))
        run = Run(turns, rng, plan, damages=rng.choice(DAMAGES), aways=rng.choice(AWAYS))
        with ranks_in_turn(turns, run.wire, run.has_copies):
            try:
                turns.run(run.live)
            except BaseException as error:
                error.add_note("\n".join([str(plan), *turns.story]))
                raise
    return turns.num_turns


def explore_from(first: int, num: int) -> int:
    return each_seed(explore, first, num, __file__)


def test_no_order_of_copies_steps_stops_faults_and_answers_tears_a_generation() -> None:
    print(in_processes(explore_from, 200, "schedules"))


@pytest.mark.soak
@pytest.mark.longest
def test_no_order_of_very_many_tears_a_generation() -> None:
    print(in_processes(explore_from, 30_000, "schedules"))
