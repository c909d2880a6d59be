"""A writer that was thought dead, its successor, a reader, a collector and a tool, all at once in any order.

Whatever the order: a fenced writer commits nothing, what is pinned or good is not lost, and who chose a
generation under a lease of its own gets its bytes unless somebody takes the run over.
"""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from checkpointing.errors import Corrupt, Fenced
from checkpointing.generations.choice import choose
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention
from checkpointing.log.codec import LogRecord
from checkpointing.log.history import Commit, Load, LogView, Pin, Resumed
from checkpointing.saving.save import SaveFailed
from checkpointing.stores.contract import Store, Unavailable
from checkpointing.stores.memory import MemoryStore
from tests.unit.log_rules import check_step, num_good
from tests.unit.seeds import each_seed, in_processes
from tests.unit.small_generations import RUN, Ranks, content, load
from tests.unit.turns import Turns

ONE = Retention(last=1, best=0)
FLAKY = 0.02
# Requests that a log takes to be read.
NUM_READS = 4
# What a failure of the store may end in; anything else is one of ours.
EXPECTED = (Fenced, SaveFailed, Unavailable)


class Guarded(MemoryStore):
    """Refuses to delete what the log keeps at that very moment."""

    def delete(self, name: str) -> None:
        if name.startswith(f"runs/{RUN}/gen/"):
            view = Repository(self, RUN).refresh()
            assert view.generation(name.split("/")[3]) is None, f"{name} is deleted, but kept"
        super().delete(name)


def beginning() -> dict[str, bytes]:
    """A first attempt with three good generations, the oldest of which may go."""
    store = MemoryStore()
    repository = Repository(store, RUN)
    ranks = Ranks(repository, repository.take_over("first"), retention=Retention())
    for step in (10, 20, 30):
        ranks.save(step)
    return {name: store.get(name) for name in store.list("runs")}


def zombie(store: Store) -> None:
    """The first attempt goes on as if nothing had happened, from what it knew then."""
    repository = Repository(store, RUN)
    assert repository.refresh().term == 1
    save_on(Ranks(repository, 1, retention=ONE, num_saved=3), (40, 50, 60))


def save_on(ranks: Ranks, steps: tuple[int, ...]) -> None:
    """As the training does: a save that failed is one save less, a fenced writer ends."""
    for step in steps:
        try:
            ranks.save(step)
        except (SaveFailed, Unavailable):
            continue


def successor(store: Store) -> None:
    repository = Repository(store, RUN)
    term = repository.take_over("successor")
    clean(repository)
    go_on(repository, term)
    save_on(Ranks(repository, term, retention=ONE), (70, 80))


def reader(store: Store) -> None:
    repository = Repository(store, RUN)
    go_on(repository, repository.take_over("reader"))


def go_on(repository: Repository, term: int) -> None:
    chosen = choose(repository.view).chosen
    assert chosen is not None
    found = repository.view.generation(chosen.name)
    assert found is not None
    repository.append(Load(name=found.name), term=term)
    try:
        loaded = load(repository, found)
    except Corrupt as error:
        # As the training does: raises ``Fenced`` where a successor has given it up meanwhile.
        repository.quarantine(found.name, str(error), term=term)
        raise
    assert loaded == content(found.name, 1)
    repository.append(Resumed(name=found.name), term=term)


def collector(store: Store) -> None:
    repository = Repository(store, RUN)
    repository.refresh()
    clean(repository)
    repository.retire(ONE, term=repository.view.term)


def clean(repository: Repository) -> None:
    repository.delete_unnamed(repository.expendable())


def pinning(number: int) -> Callable[[Store], str | None]:
    """The name that is pinned from then on, None if it was gone before."""

    def act(store: Store) -> str | None:
        repository = Repository(store, RUN)
        found = repository.refresh().generations
        name = found[number % len(found)].name
        pinned = repository.append(Pin(name=name)).generation(name)
        return pinned.name if pinned else None

    return act


def interleave(objects: dict[str, bytes], seed: int) -> int:
    """How many storage calls it took."""
    rng = random.Random(seed)
    store = Guarded()
    for name, data in objects.items():
        store.put(name, data)
    turns = Turns(store, rng, flaky=FLAKY if seed % 2 else 0.0)
    turns.add("zombie", zombie, head_start=NUM_READS)
    for act in (successor, reader, collector):
        turns.add(act.__name__, act)
    turns.add("tool", pinning(rng.randrange(3)))
    outcomes = turns.run()
    try:
        check(store, outcomes)
    except BaseException as error:
        error.add_note("\n".join(turns.story))
        raise
    return len(turns.story)


def check(store: Store, outcomes: dict[str, object]) -> None:
    for outcome in outcomes.values():
        if isinstance(outcome, Exception) and not isinstance(outcome, EXPECTED):
            raise outcome
    repository = Repository(store, RUN)
    records = list(repository.records())
    assert [record.number for record in records] == list(range(1, len(records) + 1))
    for before, record in pairwise(records):
        check_step(before.view, record)
        check_commit(before.view, record)
    view = repository.refresh()
    if isinstance(pinned := outcomes["tool"], str):
        assert view.generation(pinned) is not None
    assert num_good(view) >= 2
    for found in view.generations:
        assert load(repository, found) == content(found.name, 1)


def check_commit(before: LogView, record: LogRecord) -> None:
    """Of an attempt that is over only the newest of all is committed, which a start has found whole."""
    if isinstance(record.entry, Commit):
        generation = record.entry.generation
        places = [(one.term, one.number) for one in before.generations]
        is_newest = (generation.term, generation.number) > max(places, default=(0, 0))
        assert generation.term == before.term or (generation.term < before.term and is_newest)


def interleave_from(first: int, num: int) -> int:
    objects = beginning()
    return each_seed(lambda seed: interleave(objects, seed), first, num, __file__)


def test_no_order_of_storage_calls_loses_anything() -> None:
    print(in_processes(interleave_from, 1_000, "interleavings"))


@pytest.mark.soak
@pytest.mark.longest
def test_no_order_of_very_many_loses_anything() -> None:
    print(in_processes(interleave_from, 100_000, "interleavings"))
