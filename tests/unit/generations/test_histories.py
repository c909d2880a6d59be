"""Random histories of one run over a store that does whatever the documents of S3, GCS and Azure allow.

Two drivers begin, save, rotate, are killed in the middle of any request and begin again, while tools collect
garbage, adopt and pin. In each history, and at each moment of it:

- the next start goes on from what was told durable last, or from something newer;
- what the log commits, verifies or keeps is there, to the byte, as the reader's code reads it. Where a bit of
  it flipped on its way in, it is never verified and never loaded;
- each term has one owner, who alone commits in it, and nobody is fenced by less than a later term;
- nothing whole is deleted that no record gave up.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from checkpointing.errors import Corrupt, Fenced, NothingToResume
from checkpointing.format import loading, manifest, pieces
from checkpointing.format.loading import GenerationPlace
from checkpointing.format.manifest import Cut, FilePart, manifest_of
from checkpointing.generations import audit, garbage, manifests
from checkpointing.generations.adoption import adopt, adoptable
from checkpointing.generations.choice import OnDisk, choose
from checkpointing.generations.garbage import find_garbage, remove
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention
from checkpointing.log import folding
from checkpointing.log.codec import LogRecord, decode
from checkpointing.log.history import (
    Commit,
    Generation,
    Lease,
    Load,
    LogView,
    Pin,
    Quarantine,
    Resumed,
    Tombstone,
    Unpin,
    Verified,
)
from checkpointing.saving.budget import Share
from checkpointing.saving.save import SaveFailed, Tally
from checkpointing.stores.contract import Buffer, Store, Unavailable
from checkpointing.stores.memory import MemoryStore
from checkpointing.stores.retrying import RetryingStore, RetryLimits
from tests.faults import FaultyStore, PowerCut
from tests.unit.hostile import Clock, HostileStore, Panic, Sky, Weather
from tests.unit.log_rules import check_step
from tests.unit.seeds import each_seed, in_processes
from tests.unit.small_generations import RUN, Ranks, content, load, load_from
from tests.unit.turns import Turns

GEN = f"runs/{RUN}/gen/"
LOG = f"runs/{RUN}/log/"
# What a bad day may end in; anything else is a fault of ours.
EXPECTED = (Fenced, SaveFailed, Unavailable, Panic, PowerCut)
BUDGET_S = 60.0
NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Watched(MemoryStore):
    """The server. It holds each write against the log as that is at this very moment."""

    def __init__(self) -> None:
        super().__init__()
        self.view = LogView()
        self.given_up: set[str] = set()
        self.flipped: set[str] = set()
        # What lost records gave up: its objects may be gone, and the log may name it again.
        self.gone: set[str] = set()
        self.committed_in: dict[str, int] = {}
        self.whole_before: set[str] = set()
        self.requested: set[str] = set()
        self.failure: BaseException | None = None

    def tell(self, method: str, name: str, body: bytes) -> None:
        """Another server has done this."""
        write = self.create if name.startswith(LOG) else self.put
        try:
            self.delete(name) if method == "DELETE" else write(name, body)
        except BaseException as error:
            self.failure = self.failure or error

    def may_be_damaged(self, generation: str) -> bool:
        is_flipped = any(name.startswith(f"{GEN}{generation}/") for name in self.flipped)
        return is_flipped or generation in self.gone

    def create(self, name: str, data: Buffer) -> None:
        newest = max(self.list(LOG[:-1]), default="")
        super().create(name, data)
        # Where records are gone, nobody counts what is appended before those that a rebuild has begun with.
        if name.startswith(LOG) and name > newest:
            self._appended(decode(bytes(data), int(name.removeprefix(LOG).removesuffix(".json"))))

    def delete(self, name: str) -> None:
        if name.startswith(GEN):
            generation = name.split("/")[3]
            assert self.view.generation(generation) is None, f"{name} is deleted, but kept"
            is_whole = name.endswith(f"/{manifest.MANIFEST}") and generation in self._whole()
            assert not is_whole or generation in self.given_up, f"{generation} is whole, and not given up"
        super().delete(name)

    def _appended(self, record: LogRecord) -> None:
        before, self.view = self.view, record.view
        check_step(before, record)
        match record.entry:
            case Commit(generation=Generation(name=name)):
                self.committed_in.setdefault(name, record.view.term)
                assert self.may_be_damaged(name) or self._is_there(name), f"{name} is not there"
            case Verified(name=name):
                assert name in self.gone or self._is_there(name), f"{name} is verified and not there"
            case Lease():
                self.whole_before = self._whole()
            case Tombstone(names=names):
                unknown = self.whole_before.intersection(names) - {one.name for one in before.generations}
                assert unknown <= self.requested | self.given_up, f"{unknown} are whole, and not in the log"
                self.given_up.update(names)
            case Quarantine(name=name):
                assert self.may_be_damaged(name), f"{name} is quarantined, and was never damaged"

    def _is_there(self, generation: str) -> bool:
        """Or is no longer named: it was given up before this record."""
        found = self.view.generation(generation)
        return found is None or load(Repository(self, RUN), found) == content(generation, 1)

    def _whole(self) -> set[str]:
        """Those that the log neither names nor gave up."""
        repository = Repository(self, RUN)
        repository.refresh()
        return {one.name for one in repository.unnamed()}


@dataclass(slots=True, kw_only=True)
class Told(Tally):
    """Notes which generations were told durable, and were written without damage."""

    history: "History"

    def durable(self, generation: Generation) -> None:
        Tally.durable(self, generation)
        server = self.history.server
        is_ours = server.committed_in.get(generation.name) == generation.term
        assert is_ours, f"{generation} was told durable, and is not committed by its attempt"
        if not server.may_be_damaged(generation.name):
            self.history.told.append(generation)


@dataclass(slots=True, kw_only=True)
class History:
    """What the actors of one history share, and what they were told."""

    server: Watched
    rng: random.Random
    clock: Clock
    sky: Sky
    note: Callable[[str], None]
    # What a process of it has between itself and the server.
    client: Callable[[Store], Store]
    most_starts: int = 4
    most_saves: int = 8
    told: list[Generation] = field(default_factory=list)
    owners: dict[int, str] = field(default_factory=dict)

    def repository(self, store: Store) -> Repository:
        """As a process has it that may be killed at any of its requests."""
        cut_at = self.rng.randrange(1, 150) if self.rng.random() < 0.6 else None
        machine = FaultyStore(self.client(store), cut_at=cut_at, after=self.rng.random() < 0.5)
        waiting = RetryingStore(
            machine,
            RetryLimits(budget_s=BUDGET_S),
            clock=self.clock,
            sleep=self.clock.sleep,
            spread=lambda: 0.5,
        )
        return Repository(waiting, RUN, clock=self.clock, ticks=self.clock)

    def driver(self, name: str) -> Callable[[Store], None]:
        """Starts again and again, as its supervisor has it."""

        def act(store: Store) -> None:
            for start in range(self.rng.randint(1, self.most_starts)):
                self.tries(f"{name}{start}", lambda owner: self.attempt(self.repository(store), owner))

        return act

    def tool(self, name: str, do: Callable[[Repository], object]) -> Callable[[Store], None]:
        def act(store: Store) -> None:
            for _ in range(self.rng.randint(1, 3)):
                self.tries(name, lambda _: do(self.repository(store)))

        return act

    def tries(self, name: str, do: Callable[[str], object]) -> None:
        try:
            do(name)
        except EXPECTED as error:
            self.note(f"{name} ends: {error!r}")

    def attempt(self, repository: Repository, owner: str) -> None:
        told = [*self.told]
        term = self.begin(repository, owner)
        assert term not in self.owners, f"term {term} is that of {self.owners.get(term)} and of {owner}"
        self.owners[term] = owner
        self.note(f"{owner} has term {term}")
        try:
            self.go_on(repository, term, told)
            self.save(repository, term, owner)
        except Fenced:
            assert self.server.view.term > term, f"{owner} is fenced, and nobody took over"
            raise

    def begin(self, repository: Repository, owner: str) -> int:
        return repository.take_over(owner)

    def keep(self, repository: Repository, cut: Cut) -> None:
        """Before the save goes to the store."""

    def on_disk(self, repository: Repository) -> Sequence[Share]:
        """What the disk has of the run; the world has one rank."""
        return ()

    def near(self, repository: Repository, name: str) -> Sequence[GenerationPlace]:
        return ()

    def save(self, repository: Repository, term: int, owner: str) -> None:
        retention = Retention(last=self.rng.randint(0, 3), best=0, every_steps=self.rng.choice((None, 70)))
        ranks = Ranks(
            repository,
            term,
            retention=retention,
            ticks=self.clock,
            tally=Told(history=self),
            keep=lambda cut: self.keep(repository, cut),
        )
        step = max((one.step for one in repository.view.generations), default=0)
        for _ in range(self.rng.randint(1, self.most_saves)):
            step += 10
            if self.rng.random() < 0.15:
                # Longer than this save waits for it: its files are there, and its commit is not.
                self.sky.close(LOG.rstrip("/"), 1.5 * BUDGET_S)
            try:
                self.note(f"{owner} has saved {ranks.save(step)}")
            except (SaveFailed, Unavailable, Panic) as error:
                # As the writer does: a save that failed is one save less.
                self.note(f"{owner} has not saved step {step}: {error!r}")

    def go_on(self, repository: Repository, term: int, told: Iterable[Generation]) -> None:
        """As a start does. All that was told durable by earlier attempts is in the log that it took over."""
        for name in repository.view.loads:
            repository.append(Resumed(name=name), term=term)
        newest = max(
            (one for one in told if one.term >= repository.view.life_term), key=place_of, default=None
        )
        shares = {cut.generation: (cut, part) for cut, part in self.on_disk(repository)}
        try:
            chosen = choose(repository.view, [_as_candidate(cut) for cut, _ in shares.values()]).chosen
        except NothingToResume as error:
            assert newest is None, f"{newest} was told durable: {error}"
            raise SaveFailed("all that was saved is damaged: it is the user's turn") from error
        if chosen is None:
            assert newest is None, f"{newest} was told durable, and the run begins anew"
            return
        found = repository.view.generation(chosen.name)
        place = place_of(found or shares[chosen.name][0])
        assert newest is None or place >= place_of(newest), f"{newest} was told durable"
        repository.append(Load(name=chosen.name), term=term)
        try:
            whole = repository.manifest(found) if found else manifest_of(*_alone(shares[chosen.name]))
            places = [*self.near(repository, chosen.name), repository.place(chosen.name)]
            assert load_from(whole, places) == content(chosen.name, 1)
        except Corrupt as error:
            repository.quarantine(chosen.name, str(error), term=term)
            is_lost = chosen.name in self.server.gone
            assert is_lost or (found and not found.is_verified), f"{found} can't be loaded: {error}"
            self.go_on(repository, term, told)
            return
        repository.append(Resumed(name=chosen.name), term=term)

    def collect(self, repository: Repository) -> None:
        repository.refresh()
        garbage, is_requested = find_garbage(repository, now=NOW), self.rng.random() < 0.1
        if is_requested:
            self.server.requested.update(garbage.spared)
        remove(repository, garbage, with_unnamed=is_requested)

    def adopt(self, repository: Repository) -> None:
        if repository.refresh().term == 0:
            return  # as the command refuses it
        for adoption in adopt(repository, adoptable(repository)):
            self.note(f"adopted: {adoption}")
            assert not adoption.is_corrupt or self.server.may_be_damaged(adoption.generation.name)

    def pin(self, repository: Repository) -> None:
        if found := repository.refresh().generations:
            entry = self.rng.choice((Pin, Pin, Unpin))
            repository.append(entry(name=self.rng.choice(found).name))

    def goes_on(self) -> bool:
        """Whether another part follows, before which anything may happen while nobody is at work."""
        return False

    def check_end(self, store: Store) -> None:
        """A last start, over a store that is well again."""
        repository = Repository(store, RUN)
        records = [*repository.records()]
        assert [record.number for record in records] == list(range(1, len(records) + 1))
        for before, record in pairwise(records):
            check_step(before.view, record)
        leases = [
            (record.view.term, record.entry.owner) for record in records if isinstance(record.entry, Lease)
        ]
        assert len({term for term, _ in leases}) == len(leases)
        assert self.owners.items() <= dict(leases).items()
        assert {one.name for one in self.told} <= {
            record.entry.generation.name for record in records if isinstance(record.entry, Commit)
        }
        self.tries("last", lambda owner: self.go_on(repository, repository.take_over(owner), self.told))
        assert repository.given_up() == self.server.given_up
        for found in repository.view.generations:
            assert not found.is_good or load(repository, found) == content(found.name, 1)


def place_of(one: Generation | Cut) -> tuple[int, int]:
    return one.term, one.number


def _as_candidate(cut: Cut) -> OnDisk:
    return OnDisk(name=cut.generation, step=cut.step, term=cut.term, number=cut.number)


def _alone(share: Share) -> tuple[Cut, list[FilePart]]:
    cut, part = share
    return cut, [part]


def weather(rng: random.Random) -> Weather:
    """A third of all histories have little of everything, the others much of something."""
    much = {name: rng.choice((0.0, 0.02, 0.1)) for name in ("refused", "unanswered", "late", "torn")}
    return Weather(
        **much,
        closed=rng.choice((0.0, 0.02)),
        closed_s=rng.choice((10.0, 200.0)),
        denied=rng.choice((0.0, 0.0, 0.05, 1.0)),
        flipped=rng.choice((0.0, 0.0, 0.03)),
        panics=rng.choice((0.0, 0.0, 0.01)),
        page=rng.choice((1, 3, 1000)),
        slow_s=rng.choice((0.0, 5.0)),
    )


Serve = Callable[[Watched, Sky], Store]


def relive(seed: int, serve: Serve | None = None, kind: Callable[..., History] = History) -> int:
    """Returns how many storage calls it took. ``serve`` opens what does to each request as the sky has it,
    and tells the server of all that it does.
    """
    rng, clock, server, story = random.Random(seed), Clock(), Watched(), list[str]()

    def note(what: str) -> None:
        story.append(f"    {what}")

    sky = Sky(base=server, rng=rng, weather=weather(rng), clock=clock, note=note)
    server.flipped, its_weather = sky.flipped, sky.weather
    store = serve(server, sky) if serve else server
    client: Callable[[Store], Store] = (lambda store: store) if serve else partial(HostileStore, sky=sky)
    history = kind(server=server, rng=rng, clock=clock, sky=sky, note=note, client=client)
    if serve:
        history.most_starts = history.most_saves = 2
    try:
        play_part(store, history, story)
        while history.goes_on():
            play_part(store, history, story)
        sky.settle()
        history.check_end(store)
        if server.failure:
            raise server.failure
    except BaseException as error:
        if server.failure:
            error.add_note(f"before that: {server.failure!r}")
        error.add_note(f"{its_weather}\n" + "\n".join(story))
        raise
    return len(story)


def play_part(store: Store, history: History, story: list[str]) -> None:
    turns = Turns(store, history.rng)
    turns.story = story
    for name in ("a", "b"):
        turns.add(name, history.driver(name))
    for tool in history.rng.sample((history.collect, history.adopt, history.adopt, history.pin), 2):
        turns.add(f"{tool.__name__}{len(story)}", history.tool(tool.__name__, tool))
    for outcome in turns.run().values():
        if isinstance(outcome, BaseException):
            raise outcome


class InTurn:
    """A pool of threads that has none: whoever hands over does it, so a seed gives the same."""

    def __init__(self, *args: object, **more: object) -> None: ...

    def __enter__(self) -> "InTurn":
        return self

    def __exit__(self, *args: object) -> None: ...

    def map(self, do: Callable[..., Any], *items: Iterable[Any]) -> Iterator[Any]:
        return map(do, *items)


def relive_from(first: int, num: int) -> int:
    return each_seed(relive_in_turn, first, num, __file__)


def relive_in_turn(seed: int, serve: Serve | None = None, kind: Callable[..., History] = History) -> int:
    """Every second history has manifests in pieces."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (audit, garbage, manifests, loading):
            patch.setattr(module, "ThreadPoolExecutor", InTurn)
        patch.setattr(folding, "EVERY", 6)
        if seed % 2:
            patch.setattr(pieces, "MOST_IN_ONE_OBJECT", 0)
        return relive(seed, serve, kind)


def test_no_history_loses_what_was_told_durable() -> None:
    print(in_processes(relive_from, 120, "histories", chunk=15))


@pytest.mark.soak
def test_none_of_very_many_histories_loses_what_was_told_durable() -> None:
    print(in_processes(relive_from, 1_000, "histories"))
