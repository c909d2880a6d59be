"""What each start does after any loss: every prefix, every record, the hint; as one reviewed table.

The history is two attempts, which saved at steps 10 to 30 and 40 to 50. Each row is one loss: what a start
does then, what it commits again, what it keeps without a name, and what ``--fresh`` does instead.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import pytest

from checkpointing.errors import NothingToResume
from checkpointing.generations.choice import choose
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention
from checkpointing.log.log import read_hint
from checkpointing.stores.memory import MemoryStore
from tests.conftest import Golden
from tests.unit.small_generations import RUN, Ranks

LOG, HINT, GEN = f"runs/{RUN}/log", f"runs/{RUN}/hint.json", f"runs/{RUN}/gen"
TWO = Retention(last=2, best=0)
NUM_RECORDS = 12  # lease, 3 x (commit, verified); lease, 2 x (commit, verified)
Loss = Callable[[MemoryStore], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a start did: ``says`` for people, and the store afterwards."""

    says: str
    store: MemoryStore
    term: int | None


def history() -> MemoryStore:
    """A copy: to train all this anew for each row would take long."""
    store, before = MemoryStore(), _history()
    for name in before.contents():
        store.put(name, before.get(name))
    return store


@cache
def _history() -> MemoryStore:
    store = MemoryStore()
    for steps in ((10, 20, 30), (40, 50)):
        repository = Repository(store, RUN)
        ranks = Ranks(repository, repository.take_over("me"))
        for step in steps:
            ranks.save(step)
    assert len(list(store.list(LOG))) == NUM_RECORDS
    return store


def slot(number: int) -> str:
    return f"{LOG}/{number:012d}.json"


def newest_lost(count: int, *, hint: str) -> Loss:
    def lose(store: MemoryStore) -> None:
        for number in range(NUM_RECORDS - count + 1, NUM_RECORDS + 1):
            store.delete(slot(number))
        left = NUM_RECORDS - count
        if hint == "gone" or (hint == "restored" and not left):
            store.delete(HINT)
        elif hint == "restored":
            store.put(HINT, json.dumps({"number": left, "term": 1 if left < 8 else 2}).encode())

    return lose


def oldest_lost(count: int) -> Loss:
    return lambda store: [store.delete(slot(number)) for number in range(1, count + 1)] and None


def one_lost(number: int) -> Loss:
    return lambda store: store.delete(slot(number))


def one_damaged(number: int) -> Loss:
    return lambda store: store.put(slot(number), b"damaged")


def hint_at(number: int, term: int) -> Loss:
    return lambda store: store.put(HINT, json.dumps({"number": number, "term": term}).encode())


def losses() -> Iterator[tuple[str, Loss]]:
    yield "nothing", lambda _store: None
    for hint in ("kept", "restored", "gone"):
        for count in range(1, NUM_RECORDS + 1):
            yield f"the newest {count} records, hint {hint}", newest_lost(count, hint=hint)
    for count in range(1, NUM_RECORDS):
        yield f"the oldest {count} records", oldest_lost(count)
    for number in range(1, NUM_RECORDS):
        yield f"record {number}", one_lost(number)
    for number in range(1, NUM_RECORDS + 1):
        yield f"record {number} is damaged", one_damaged(number)
    yield "the hint", lambda store: store.delete(HINT)
    yield "the hint is behind, at 3", hint_at(3, 1)
    yield "the hint is ahead, at 15 of term 2", hint_at(15, 2)
    yield "the hint is ahead, at 15 of term 5", hint_at(15, 5)


def steps_in(store: MemoryStore) -> list[int]:
    return sorted({int(name.split("/")[3].split("-")[0]) for name in store.list(GEN)})


def start(lose: Loss, *, fresh: bool = False) -> Start:
    store = history()
    lose(store)
    repository = Repository(store, RUN)
    try:
        term = repository.take_over("me", fresh=fresh)
    except NothingToResume as error:
        why = "its log is gone or damaged" if "its log is gone" in str(error) else "newer records are gone"
        return Start(says=f"refused, {why}", store=store, term=None)
    chosen = choose(repository.view).chosen
    again = sorted(one.step for one in repository.surplus.adopted)
    kept = sorted(one.step for one in repository.surplus.kept)
    parts = [
        f"goes on from {chosen.step}" if chosen else "begins at 0",
        f"term {term}",
        f"commits again {again}" if again else "",
        f"keeps unnamed {kept}" if kept else "",
        f"{repository.surplus.num_gone} records gone" if repository.surplus.num_gone else "",
    ]
    ranks = Ranks(repository, term, retention=TWO)
    for step in (100, 110):
        ranks.save(step)
    return Start(says="; ".join(filter(None, parts)), store=store, term=term)


@pytest.fixture(scope="module")
def starts() -> Mapping[str, tuple[Start, Start]]:
    return {title: (start(lose), start(lose, fresh=True)) for title, lose in losses()}


def test_what_each_start_does_is_what_was_reviewed(
    starts: Mapping[str, tuple[Start, Start]], golden: Golden
) -> None:
    rows = [("lost", "a start", "with --fresh")]
    rows += [(title, one.says, fresh.says) for title, (one, fresh) in starts.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = (f"{lost:{widths[0]}}  {one:{widths[1]}}  {fresh}" for lost, one, fresh in rows)
    golden("starts.txt", "\n".join(line.rstrip() for line in lines) + "\n")


def test_no_start_is_given_a_term_that_was_given_before(
    starts: Mapping[str, tuple[Start, Start]],
) -> None:
    given = [(title, one.term) for title, both in starts.items() for one in both if one.term is not None]
    assert [title for title, term in given if term <= 2] == []


def test_a_start_that_is_refused_changes_nothing(starts: Mapping[str, tuple[Start, Start]]) -> None:
    refused = [one for both in starts.values() for one in both if one.term is None]
    assert refused
    assert all(steps_in(one.store) == [10, 20, 30, 40, 50] for one in refused)
    assert all(read_hint(one.store, RUN).number in (0, *range(1, 16)) for one in refused)


def test_no_start_that_begins_afresh_is_refused_or_deletes_what_its_log_does_not_name(
    starts: Mapping[str, tuple[Start, Start]],
) -> None:
    for title, lose in losses():
        store = history()
        lose(store)
        named = {one.step for one in Repository(store, RUN).refresh().generations}
        fresh = starts[title][1]
        assert fresh.term is not None, title
        assert {10, 20, 30, 40, 50} - named <= {*steps_in(fresh.store)}, title
