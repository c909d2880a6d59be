"""Random histories in which runs also begin anew, disks fail, and the log is lost between two parts.

What ``test_histories`` holds, holds here too, and over any loss of the log's records, its hint and its fold:

- a start goes on from what was told durable last, or from something newer, or is refused, and then whatever
  it advises helps;
- what was told durable is there, to the byte, unless a record gave it up;
- no term is given twice;
- a disk that is full or can't be read costs no save its way to the store, and loses nothing that it had.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from checkpointing.errors import NothingToResume
from checkpointing.format.loading import GenerationPlace
from checkpointing.format.manifest import Cut
from checkpointing.generations.adoption import rebuild
from checkpointing.generations.repository import Repository
from checkpointing.log.folding import fold_name
from checkpointing.log.history import Lease, Tombstone
from checkpointing.saving.budget import Share
from checkpointing.saving.local_tier import LocalTier, local_tier_name
from checkpointing.stores.contract import Buffer, Full, Store, StoreError, Unavailable
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from tests.unit.generations.test_histories import LOG, History, place_of, relive_in_turn
from tests.unit.log_rules import check_step
from tests.unit.seeds import each_seed, in_processes
from tests.unit.small_generations import RUN, content, file_of, load, part_of

HINT = f"runs/{RUN}/hint.json"


@dataclass(slots=True, kw_only=True)
class Disk:
    """The node's disk. While it fails, some of its files can't be read, and it takes few writes."""

    folder: Path
    rng: random.Random
    is_failing: bool = False

    @contextmanager
    def fails(self) -> Iterator[None]:
        self.is_failing = self.rng.random() < 0.4
        try:
            yield
        finally:
            self.is_failing = False

    def install(self, patch: pytest.MonkeyPatch) -> None:
        read, put = LocalStore.read, LocalStore.put

        def reads(store: LocalStore, name: str, start: int, into: memoryview) -> tuple[int, str | None]:
            if self.is_failing and self.rng.random() < 0.4:
                raise Unavailable(f"store: {name}: Input/output error")
            return read(store, name, start, into)

        def puts(store: LocalStore, name: str, data: Buffer) -> None:
            if self.is_failing and self.rng.random() < 0.4:
                raise Full(f"store: {name}: No space left on device")
            put(store, name, data)

        patch.setattr(LocalStore, "read", reads)
        patch.setattr(LocalStore, "put", puts)


@dataclass(slots=True, kw_only=True)
class LongHistory(History):
    disk: Disk
    has_lost: bool = False

    def begin(self, repository: Repository, owner: str) -> int:
        try:
            term = repository.take_over(owner, fresh=self.rng.random() < 0.05)
        except NothingToResume as error:
            assert self.has_lost, f"refused, and nothing is lost: {error}"
            self.note(f"{owner} is refused: {error}")
            term = self.do_as_told(repository, owner)
        tier = self.tier(repository)
        before = tier.inventory()
        with self.disk.fails(), suppress(StoreError):
            tier.tidy()
        assert tier.inventory() == before
        # As a driver leaves it of its attempt.
        repository.store.put(f"runs/{RUN}/attempts/{term:012d}.json", b"{}")
        return term

    def do_as_told(self, repository: Repository, owner: str) -> int:
        """One of the ways that a refused start names."""
        whole = repository.unnamed()
        match self.rng.choice(("--fresh", "--resume", "fsck --rebuild")):
            case "--fresh":
                return repository.take_over(owner, fresh=True)
            case "--resume" if whole:
                return repository.take_over(owner, what=whole[-1].name)
            case _:
                for adoption in rebuild(repository, "here"):
                    name = adoption.generation.name
                    assert not adoption.is_corrupt or self.server.may_be_damaged(name), f"{adoption}"
                return repository.take_over(owner)

    def keep(self, repository: Repository, cut: Cut) -> None:
        tier = self.tier(repository)
        before = self._newest(tier.inventory())
        with self.disk.fails():
            try:
                tier.keep(cut, part_of(cut, 0), memoryview(file_of(cut, 0)))
            except StoreError as error:
                self.note(f"not on the disk: {error}")
        assert self._newest(tier.inventory()) >= before
        verified = [one for one in repository.view.generations if one.is_verified]
        with self.disk.fails(), suppress(StoreError):
            tier.free_before(max(verified, key=place_of, default=None))
        assert self._newest(tier.inventory()) >= before

    def on_disk(self, repository: Repository) -> Sequence[Share]:
        tier = self.tier(repository)
        with self.disk.fails():
            return tier.inventory()

    def near(self, repository: Repository, name: str) -> Sequence[GenerationPlace]:
        return [self.tier(repository).place(name)]

    def tier(self, repository: Repository) -> LocalTier:
        return LocalTier(self.disk.folder, local_tier_name(RUN, repository.lineage()), 2)

    def _newest(self, shares: Sequence[Share]) -> tuple[int, int]:
        return max((place_of(cut) for cut, _ in shares), default=(0, 0))

    def goes_on(self) -> bool:
        if self.has_lost:
            return False
        weather = self.sky.weather
        self.sky.settle()
        self.sky.weather = weather
        self.lose()
        return True

    def check_end(self, store: Store) -> None:
        repository = Repository(store, RUN)
        records = [*repository.records()]
        for before, record in pairwise(records):
            if record.number == before.number + 1:
                check_step(before.view, record)
        terms = [record.view.term for record in records if isinstance(record.entry, Lease)]
        assert len({*terms}) == len(terms)
        self.tries("last", lambda owner: self.go_on(repository, self.begin(repository, owner), self.told))
        given_up = {name for one in records if isinstance(one.entry, Tombstone) for name in one.entry.names}
        assert given_up <= repository.given_up() <= self.server.given_up
        for found in repository.view.generations:
            is_good = found.is_good and found.name not in self.server.gone
            assert not is_good or load(repository, found) == content(found.name, 1)
        there = {one.name: one for one in (*repository.unnamed(), *repository.view.generations)}
        for one in self.told:
            if one.name not in self.server.given_up:
                assert load(repository, there[one.name]) == content(one.name, 1)

    def lose(self) -> None:
        """Some of the log, of its hint and of its fold. What knows of them is gone, too."""
        self.has_lost = True
        server, numbers = self.server, sorted(self.server.list(LOG[:-1]))
        few = self.rng.randint(1, 8)
        if not numbers:
            return
        at = self.rng.randrange(len(numbers))
        kinds: dict[str, Sequence[str]] = {
            "all": numbers,
            "newest": numbers[-few:],
            "oldest": numbers[:few],
            "one": [numbers[at]],
        }
        kind = self.rng.choice([*kinds])
        for name in kinds[kind]:
            MemoryStore.delete(server, name)
        hint = self.rng.choice(("stays", "gone", "as old as the log"))
        left = sorted(server.list(LOG[:-1]))
        if hint == "gone" or (hint == "as old as the log" and not left):
            MemoryStore.delete(server, HINT)
        elif hint == "as old as the log":
            record = Repository(server, RUN)
            record.refresh()
            server.put(HINT, b'{"number": %d, "term": %d}' % (int(left[-1][-17:-5]), record.view.term))
        if self.rng.random() < 0.5:
            MemoryStore.delete(server, fold_name(RUN))
        self.note(f"lost: {kind}, {len(kinds[kind])} of {len(numbers)} records; the hint: {hint}")
        repository = Repository(server, RUN)
        server.view = repository.refresh()
        left_given_up = {
            name
            for one in repository.records()
            if isinstance(one.entry, Tombstone)
            for name in one.entry.names
        }
        server.gone |= server.given_up - left_given_up


def relive(seed: int) -> int:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        disk = Disk(folder=Path(folder), rng=random.Random(seed))
        disk.install(patch)
        return relive_in_turn(seed, kind=partial(LongHistory, disk=disk))


def relive_from(first: int, num: int) -> int:
    return each_seed(relive, first, num, __file__)


def test_no_loss_of_the_log_and_no_failing_disk_loses_what_was_told_durable() -> None:
    print(in_processes(relive_from, 40, "histories with losses", chunk=5))


@pytest.mark.soak
def test_no_loss_in_very_many_histories_loses_what_was_told_durable() -> None:
    print(in_processes(relive_from, 1_000, "histories with losses"))
