"""A log that has gone back or is gone: nothing good is deleted since nobody knows it, no term given twice."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from checkpointing.errors import NothingToResume
from checkpointing.format.manifest import encode_manifest, manifest_of
from checkpointing.generations.choice import choose
from checkpointing.generations.garbage import find_garbage, remove
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention
from checkpointing.log.codec import LogRecord, decode, encode
from checkpointing.log.history import Lease, LogView, after
from checkpointing.stores.contract import Buffer, Store
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from tests.unit.small_generations import RUN, Ranks, content, cut_of, file_of, load, names, part_of

pytestmark = pytest.mark.usefixtures("each_form")

LOG, HINT, GEN = f"runs/{RUN}/log", f"runs/{RUN}/hint.json", f"runs/{RUN}/gen"
NOW = datetime(2030, 1, 1, tzinfo=UTC)
STEPS = (10, 20, 30, 40, 50)
TWO = Retention(last=2, best=0)


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path)


def train(store: Store, *steps: int, fresh: bool = False, what: str = "latest") -> list[str]:
    """One attempt, which is killed after its last save."""
    repository = Repository(store, RUN)
    ranks = Ranks(repository, repository.take_over("me", fresh=fresh, what=what), retention=TWO)
    return [ranks.save(step) for step in steps]


def trained(store: Store) -> list[str]:
    """Five generations that no rule gives up."""
    repository = Repository(store, RUN)
    ranks = Ranks(repository, repository.take_over("me"))
    return [ranks.save(step) for step in STEPS]


def go_back(store: Store, num_records: int) -> None:
    """The newest records are gone, and the hint is not."""
    for name in sorted(store.list(LOG))[-num_records:]:
        store.delete(name)


def restore(store: Store, num_records: int) -> None:
    """So is the hint: it is as old as the log."""
    go_back(store, num_records)
    newest = max(store.list(LOG))
    store.put(HINT, json.dumps({"number": int(newest[-17:-5]), "term": 1}).encode())


def lose(store: Store) -> None:
    for name in [*store.list(LOG), HINT]:
        store.delete(name)


def payload(store: Store) -> set[str]:
    return {name.split("/")[3] for name in store.list(GEN)}


def leave(store: Store, step: int, *, term: int, number: int) -> str:
    """All of a save but its commit."""
    cut = cut_of(step, term=term, number=number)
    repository = Repository(store, RUN)
    repository.put_file(cut.generation, part_of(cut, 0).file, file_of(cut, 0))
    repository.put_file(cut.generation, "manifest.json", encode_manifest(manifest_of(cut, [part_of(cut, 0)])))
    return cut.generation


def chosen(store: Store) -> str | None:
    found = choose(Repository(store, RUN).refresh()).chosen
    return found.name if found else None


def test_a_log_that_has_gone_back_behind_its_hint_is_refused_and_names_what_it_does_not_know(
    store: Store,
) -> None:
    saved = trained(store)
    go_back(store, 6)
    before = sorted(store.list("runs"))
    with pytest.raises(NothingToResume) as error:
        Repository(store, RUN).take_over("me")
    assert all(name in str(error.value) for name in saved[2:])
    assert "the log ends at record 5" in str(error.value)
    assert all(word in str(error.value) for word in ("restore", "--resume NAME", "--fresh"))
    assert sorted(store.list("runs")) == before


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_the_one_that_is_named_then_is_gone_on_from_and_all_others_stay(store: Store, number: int) -> None:
    saved = trained(store)
    go_back(store, 6)
    repository = Repository(store, RUN)
    term = repository.take_over("me", what=saved[number])
    found = choose(repository.view, what=saved[number]).chosen
    assert (found.name if found else None, term) == (saved[number], 2)
    assert repository.surplus.num_gone == 6
    ranks = Ranks(repository, term, retention=TWO)
    later = [ranks.save(step) for step in (100, 110, 120)]
    assert payload(store) >= {*saved[2:], *later[-2:]}


def test_where_the_hint_went_back_too_a_start_goes_on_from_the_newest_that_is_whole(store: Store) -> None:
    saved = trained(store)
    restore(store, 6)
    repository = Repository(store, RUN)
    assert repository.take_over("me") == 2
    assert names(repository.surplus.adopted) == saved[2:]
    assert names(repository.view.generations) == saved
    assert chosen(store) == saved[-1]
    assert load(repository, repository.view.generations[-1]) == content(saved[-1], 1)


@pytest.mark.parametrize("num_gone", range(1, 11))
@pytest.mark.parametrize("loses", [go_back, restore])
def test_however_far_a_log_went_back_no_start_deletes_what_it_does_not_name(
    loses: Callable[[Store, int], None], num_gone: int
) -> None:
    store = MemoryStore()
    saved = trained(store)
    loses(store, num_gone)
    known = {one.name for one in Repository(store, RUN).refresh().generations}
    unnamed = {*saved} - known
    try:
        new = train(store, 100, 110, 120)
    except NothingToResume:
        new = train(store, 100, 110, 120, fresh=True)
    # A single one is what a killed save leaves: the usual rules take it once newer ones are good.
    assert payload(store) >= (unnamed if len(unnamed) > 1 else set()) | {*new[-2:]}


@pytest.mark.parametrize("new", [(100,), (100, 110, 120)])
def test_begun_afresh_beside_generations_without_a_log_all_of_them_stay(
    store: Store, new: tuple[int, ...]
) -> None:
    saved = trained(store)
    lose(store)
    with pytest.raises(NothingToResume, match=r"--resume NAME.*--fresh"):
        train(store, 100)
    first = train(store, *new, fresh=True)
    second = train(store, 130)
    assert payload(store) >= {*saved, *second}
    assert chosen(store) == second[-1]
    assert "-t2-" in first[0] and "-t3-" in second[0]


def test_a_fresh_start_that_is_killed_before_its_first_save_does_not_go_on_from_the_old_ones(
    store: Store,
) -> None:
    saved = trained(store)
    lose(store)
    train(store, fresh=True)
    train(store)
    assert chosen(store) is None
    assert Repository(store, RUN).refresh().has_begun_since(1)
    assert payload(store) == {*saved}


def test_of_a_log_that_is_gone_the_one_that_is_named_is_gone_on_from(store: Store) -> None:
    saved = trained(store)
    lose(store)
    train(store, what=saved[3])
    assert chosen(store) == saved[3]
    (new,) = train(store, 60)
    assert chosen(store) == new
    assert payload(store) == {*saved, new}


def test_a_save_that_was_killed_before_its_commit_is_gone_on_from(store: Store) -> None:
    trained(store)
    left = leave(store, 60, term=1, number=6)
    repository = Repository(store, RUN)
    repository.take_over("me")
    assert (chosen(store), names(repository.surplus.adopted)) == (left, [left])
    assert repository.surplus.kept == ()


def test_one_that_is_not_newer_than_what_the_log_names_is_kept_and_told_with_its_size(store: Store) -> None:
    trained(store)
    old = leave(store, 45, term=1, number=4)
    num_bytes = sum(len(store.get(name)) for name in store.list(f"{GEN}/{old}"))
    repository = Repository(store, RUN)
    term = repository.take_over("me")
    assert [(one.name, one.num_bytes) for one in repository.surplus.kept] == [(old, num_bytes)]
    Ranks(repository, term, retention=TWO).save(60)
    assert old in payload(store)


def test_a_half_of_an_attempt_that_is_over_still_goes(store: Store) -> None:
    trained(store)
    cut = cut_of(60, term=1, number=6)
    Repository(store, RUN).put_file(cut.generation, part_of(cut, 0).file, file_of(cut, 0))
    train(store, 70)
    assert cut.generation not in payload(store)


def test_what_lacks_a_file_or_is_of_another_run_is_not_gone_on_from_and_stays(store: Store) -> None:
    saved = trained(store)
    lacking, foreign = leave(store, 60, term=1, number=6), leave(store, 70, term=1, number=7)
    store.delete(f"{GEN}/{lacking}/rank-00000.safetensors")
    for name in list(store.list(f"{GEN}/{foreign}")):
        store.put(name.replace(foreign, foreign.replace("s7", "s8")), store.get(name))
        store.delete(name)
    train(store)
    assert chosen(store) == saved[-1]
    train(store, 80)
    assert payload(store) >= {lacking, foreign.replace("s7", "s8")}


def test_what_went_wrong_or_was_given_up_or_is_of_a_former_life_is_not_brought_back(store: Store) -> None:
    saved = trained(store)
    spoilt = leave(store, 60, term=1, number=6)
    repository = Repository(store, RUN)
    repository.take_over("me", spoilt=lambda: ((1, 50),))
    assert (chosen(store), names(repository.surplus.kept)) == (saved[-1], [spoilt])
    repository.delete_unnamed({spoilt: []})  # as a tidying that was killed right after its record
    repository.take_over("me")
    assert (chosen(store), repository.surplus.kept) == (saved[-1], ())
    former = leave(store, 70, term=3, number=1)
    repository.take_over("me", fresh=True)
    repository.take_over("me")
    assert chosen(store) is None
    assert former in payload(store)


def test_what_was_given_up_and_not_deleted_goes_with_the_next_attempt_though_it_is_whole(
    store: Store,
) -> None:
    trained(store)
    left = leave(store, 45, term=1, number=4)
    train(store, 60)
    assert left in payload(store)
    tool = Repository(store, RUN)
    tool.refresh()
    tool.delete_unnamed({left: []})
    train(store, 70)
    assert left not in payload(store)


def test_what_is_given_up_while_a_start_commits_it_again_stays_given_up() -> None:
    class Raced(MemoryStore):
        """Somebody tidies right before the start's commit lands."""

        left: str | None = None

        def create(self, name: str, data: Buffer) -> None:
            if self.left and b'"kind":"commit"' in bytes(data):
                left, self.left = self.left, None
                tool = Repository(self, RUN)
                tool.refresh()
                tool.delete_unnamed({left: list(self.list(f"{GEN}/{left}"))})
            super().create(name, data)

    store = Raced()
    saved = trained(store)
    store.left = left = leave(store, 60, term=1, number=6)
    repository = Repository(store, RUN)
    repository.take_over("me")
    assert (chosen(store), repository.surplus.adopted) == (saved[-1], ())
    assert payload(store) == {*saved}
    assert left not in names(repository.view.generations)


def test_what_the_log_does_not_name_is_deleted_by_who_asks_for_exactly_that(store: Store) -> None:
    trained(store)
    unnamed, half = leave(store, 45, term=1, number=4), cut_of(5, term=1, number=9)
    Repository(store, RUN).put_file(half.generation, "rank-00000.safetensors", b"half")
    train(store)
    repository = Repository(store, RUN)
    repository.refresh()
    found = find_garbage(repository, now=NOW)
    assert (found.spared, [one.generation for one in found.remainders]) == ((unnamed,), [half.generation])
    remove(repository, found)
    assert unnamed in payload(store) and half.generation not in payload(store)
    remove(repository, found, with_unnamed=True)
    assert unnamed not in payload(store)
    assert payload(store) == {*names(repository.refresh().generations)}


def test_who_tidies_takes_nothing_that_was_committed_again_meanwhile(store: Store) -> None:
    trained(store)
    left = leave(store, 60, term=1, number=6)
    Repository(store, RUN).append(Lease(owner="killed before it looked"))
    tool = Repository(store, RUN)
    tool.refresh()
    found = find_garbage(tool, now=NOW)
    assert found.spared == (left,)
    Repository(store, RUN).take_over("me")
    remove(tool, found, with_unnamed=True)
    assert left in payload(store)
    assert chosen(store) == left


@pytest.mark.parametrize("is_old_hint", [False, True])
@pytest.mark.parametrize("num_gone", range(12))
def test_a_term_is_not_given_twice_however_many_records_are_gone_behind_the_hint(
    num_gone: int, is_old_hint: bool
) -> None:
    store = MemoryStore()
    for _ in range(12):
        train(store)
    number = len(list(store.list(LOG)))
    if is_old_hint:
        store.put(HINT, json.dumps({"number": number}).encode())
    go_back(store, num_gone) if num_gone else None
    repository = Repository(store, RUN)
    assert repository.take_over("me") == 13
    assert repository.surplus.num_gone == num_gone
    assert Repository(store, RUN).take_over("me too") == 14


@pytest.mark.parametrize("witness", [f"{GEN}/000000000070-t7-s1/rank-00000.safetensors", None])
def test_a_term_is_not_given_twice_if_a_name_in_the_store_tells_of_it(witness: str | None) -> None:
    store = MemoryStore()
    train(store)
    store.put(witness or f"runs/{RUN}/attempts/000000000007.json", b"")
    store.delete(HINT)
    assert Repository(store, RUN).take_over("me") == 8
    lose(store)
    store.put(f"runs/{RUN}/attempts/000000000008.json", b"")
    assert Repository(store, RUN).take_over("me", fresh=True) == 9


def test_a_lease_is_written_as_before_unless_terms_are_left_out() -> None:
    def written(entry: Lease) -> bytes:
        return encode(LogRecord(number=1, id="i", written_s=1.0, entry=entry, view=after(LogView(), entry)))

    assert b'"entry":{"owner":"a"}' in written(Lease(owner="a"))
    record = decode(written(Lease(owner="a", term=7)), 1)
    assert (record.view.term, record.view.life_term, record.entry) == (7, 7, Lease(owner="a", term=7))


NO_TERM = 10**12 - 1


@pytest.mark.parametrize(
    ("name", "data"),
    [
        (f"{GEN}/000000000001-t{NO_TERM}-x/rank-00000.json", b"x"),
        (f"runs/{RUN}/attempts/{NO_TERM}.json", b"{}"),
        (HINT, json.dumps({"number": 9, "term": NO_TERM}).encode()),
        (HINT, json.dumps({"number": NO_TERM}).encode()),
    ],
)
def test_a_term_that_no_run_reaches_does_not_use_the_terms_up(store: Store, name: str, data: bytes) -> None:
    """Anybody who may write to the store may plant it. Names of saves have room for twelve digits."""
    train(store, 10)
    store.put(name, data)
    saved = train(store, 20, 30, 40, 50)
    assert Repository(store, RUN).refresh().term < 10**11
    assert {one for one in payload(store) if str(NO_TERM) not in one} == set(saved[-2:])
